"""The least that drafting costs a prompt, from the shapes of a GGUF's tensors.

A prompt's rows only store the heads' K/V: each row is multiplied with the head's eh_proj and its K and V projections,
and goes through the norms before them. But the heads read the trunk's hidden states of all rows, so the last layer's
feed forward is needed for all rows, too; without heads, llama.cpp computes it only for rows with output in some
architectures (glm4moe; but not in step35).

Counts multiply-adds per row: the elements of each tensor, of routed experts the share that one token uses. Attention
itself, embeddings and the output matrix (one row per prompt) are not counted. If one matrix computes K and V together
with the queries, all of it counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

_KV_ONLY = re.compile(
    r"nextn\.(eh_proj|enorm|hnorm)"  # token and hidden state become the layer's input
    r"|attn_(norm|k|k_norm|v|qkv|kv_a_mqa|kv_a_norm)"
)
_FEED_FORWARD = re.compile(r"ffn_\w+|post_attention_norm|exp_probs_b")


@dataclass
class PromptCost:
    """Multiply-adds per row."""

    trunk: float = 0
    last_feed_forward: float = 0
    """The part of the trunk that rows without output do not need without heads."""
    heads: float = 0

    @property
    def heads_loss(self) -> float:
        """The share of a prompt's speed that is lost to the heads' tensors alone."""
        return self.heads / (self.trunk + self.heads)

    @property
    def floor_loss(self) -> float:
        """The share of a prompt's speed that is lost, the last feed forward included."""
        return (self.heads + self.last_feed_forward) / (self.trunk + self.heads)


def prompt_cost(path: Path, n_heads: int) -> PromptCost:
    """The cost for the model at `path` with its first `n_heads` heads."""
    reader = gguf.GGUFReader(path)
    architecture = _value(reader, "general.architecture")
    n_layer = _value(reader, f"{architecture}.block_count") - _value(reader, f"{architecture}.nextn_predict_layers")
    cost = PromptCost()
    for tensor in reader.tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(.+)\.(weight|bias)", tensor.name)
        if not match:
            continue
        layer, name = int(match[1]), match[2]
        n = float(tensor.n_elements)
        if name.endswith("_exps"):
            n *= _value(reader, f"{architecture}.expert_used_count") / _value(reader, f"{architecture}.expert_count")
        if layer < n_layer:
            cost.trunk += n
            cost.last_feed_forward += n if layer == n_layer - 1 and _FEED_FORWARD.fullmatch(name) else 0
        elif layer < n_layer + n_heads and _KV_ONLY.fullmatch(name):
            cost.heads += n
    return cost


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise KeyError(f"the GGUF has no {key}")
    return field.contents()
