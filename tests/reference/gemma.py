"""Gemma-4 and its assistant: tiny random checkpoints of both, and what transformers computes from them.

An assistant is no head: it is a model of its own, attends to K/V of the trunk, and drafts at one position. Knows no
GGUF and no engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import Gemma4TextConfig

from families import State
from random_gguf.gemma import (
    GELU_SCALE,
    HEAD_FULL,
    HEAD_WINDOW,
    KV_FULL,
    KV_WINDOW,
    N_CHOSEN,
    N_EMBD_ASSISTANT,
    N_GROUPS,
    N_LAYER_ASSISTANT,
)
from random_gguf.writer import N_EMBD, N_FF, N_HEAD, N_VOCAB

from .checkpoints import randomise

WINDOW = 16

TEXT = {
    "vocab_size": N_VOCAB,
    "intermediate_size": N_FF,
    "num_attention_heads": N_HEAD,
    "num_key_value_heads": KV_WINDOW,
    "num_global_key_value_heads": KV_FULL,
    "head_dim": HEAD_WINDOW,
    "global_head_dim": HEAD_FULL,
    "attention_k_eq_v": True,
    "sliding_window": WINDOW,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "bos_token_id": 256,
    "eos_token_id": 256,
}


class Pair(NamedTuple):
    """The folders that were written, and the same weights in PyTorch."""

    folder: Path
    assistant_folder: Path
    model: Any
    assistant: Any


def write_pair(folder: Path, *, chooses: bool = False) -> Pair:
    """Write checkpoints of random weights, as large as the tests' GGUFs. Changes transformers: see kv_sharing_modes.

    `chooses`: the assistant gives logits to a part of the vocabulary, as those of E2B and E4B do.
    """
    torch.manual_seed(1)
    Gemma4TextConfig.kv_sharing_modes = property(kv_sharing_modes)
    types = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = Gemma4TextConfig(
        **TEXT, hidden_size=N_EMBD, num_hidden_layers=len(types), layer_types=types, final_logit_softcapping=30.0
    )
    of_assistant = Gemma4TextConfig(
        **TEXT,
        hidden_size=N_EMBD_ASSISTANT,
        num_hidden_layers=N_LAYER_ASSISTANT,
        num_kv_shared_layers=N_LAYER_ASSISTANT,
        layer_types=[*["sliding_attention"] * (N_LAYER_ASSISTANT - 1), "full_attention"],
    )
    model = _save(folder / "model", transformers.Gemma4ForCausalLM(config))
    assistant = transformers.Gemma4AssistantForCausalLM(
        transformers.Gemma4AssistantConfig(
            text_config=of_assistant,
            backbone_hidden_size=N_EMBD,
            use_ordered_embeddings=chooses,
            num_centroids=N_GROUPS,
            centroid_intermediate_top_k=N_CHOSEN,
        )
    )
    if chooses:
        assistant.masked_embedding.token_ordering.copy_(torch.randperm(N_VOCAB))
    return Pair(folder / "model", folder / "assistant", model, _save(folder / "assistant", assistant))


def kv_sharing_modes(config: Gemma4TextConfig) -> list[str | None]:
    """Which layers store K/V for others and which read them.

    That of transformers 5.23 refuses an assistant, whose layers all read, and has nothing stored for it unless the last
    layers of the trunk read K/V as well.
    """
    n_own = config.num_hidden_layers - config.num_kv_shared_layers
    own = config.layer_types[:n_own]
    last = {n_own - 1 - own[::-1].index(kind) for kind in set(own)}
    return ["reuse" if i >= n_own else "store" if i in last else None for i in range(config.num_hidden_layers)]


def _save(folder: Path, model: Any) -> Any:
    randomise(model)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed_tokens" in name:
                tensor.mul_(tensor.shape[-1] ** -0.5)
            elif name.endswith("k_norm.weight"):
                tensor.mul_(tensor.shape[-1] ** -0.5)  # scores are not scaled further
            elif name.endswith("post_feedforward_layernorm.weight"):
                tensor.mul_(GELU_SCALE)
    model.save_pretrained(folder)
    # the converter counts the tokens
    vocabulary = {"model": {"vocab": {str(i): i for i in range(N_VOCAB)}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [type(model).__name__]}))
    # read again: random numbers are in buffers now that are not saved, and should not have changed
    return type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def trunk(pair: Pair, tokens: list[int]) -> torch.Tensor:
    """Logits: (len(tokens), n_vocab)."""
    return pair.model(torch.tensor([tokens])).logits[0]


@torch.no_grad()
def draft(
    pair: Pair,
    tokens: list[int],
    script: list[int],
    *,
    window: int = WINDOW,
    fed: State = "normed",
    rises: bool = False,
) -> torch.Tensor:
    """Logits of a draft after `tokens`, which continues with the tokens of `script`: (len(script), n_vocab).

    What transformers' SinglePositionMultiTokenCandidateGenerator does with the tokens that it picks. `window`: the
    assistant's, with which it sees `window + 1` positions; `rises`: its position goes up with each step.
    """
    pair.assistant.config.get_text_config().sliding_window = window
    before: list[torch.Tensor] = []
    handle = pair.model.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    said = pair.model(torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
    handle.remove()
    hidden, logits = (said.hidden_states[-1] if fed == "normed" else before[0])[:, -1:], []
    for step, token in enumerate([tokens[-1], *script[:-1]]):
        embedded = pair.model.get_input_embeddings()(torch.tensor([[token]]))
        out = pair.assistant(
            inputs_embeds=torch.cat([embedded, hidden], dim=-1),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            position_ids=torch.tensor([[len(tokens) - 1 + step * rises]]),
            shared_kv_states=said.shared_kv_states,
        )
        hidden = out.last_hidden_state
        logits.append(out.logits[0, 0])
    return torch.stack(logits)
