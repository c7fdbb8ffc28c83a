"""Sizes of models of three architectures, and their tensors and metadata, under the names of llama.cpp's converters.

Knows names, shapes and metadata; no values and no file. Shapes are ggml's, fastest dimension first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Shapes = dict[str, tuple[int, ...]]
Metadata = dict[str, bool | int | float | Sequence[bool] | Sequence[int]]
"""By key, without the architecture's prefix."""

WINDOW = 512
"""Positions that three of every four layers of step35 attend to."""

ATTENTION_INTERVAL, CONV = 4, 4
"""Of qwen35: one layer of N has attention; positions that a delta net's convolution sees."""


@dataclass(frozen=True)
class Size:
    """The size of a model. In glm4moe the first layer is dense and the others, including heads, are mixtures of
    experts with a shared one; in step35 all are dense, and heads have their own output matrix; in qwen35 all are dense,
    and three of four have a gated delta net in the place of attention.
    """

    architecture: Literal["glm4moe", "step35", "qwen35"]
    n_layer: int
    """Of the trunk."""
    n_heads: int
    """MTP heads."""
    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_vocab: int
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    n_state: int = 0
    """Of each head of a delta net: the size of keys and of values."""
    n_head_state: int = 0
    n_ctx: int = 8192

    def scaled(self, divisor: int) -> Size:
        """A size `divisor` times narrower and with fewer layers, but with all kinds of layers."""
        n_head_kv = max(self.n_head_kv // divisor, 1)
        return replace(
            self,
            n_layer=max(self.n_layer // divisor, 5),
            n_embd=_part(self.n_embd, divisor),
            n_head=self.n_head // self.n_head_kv * n_head_kv,
            n_head_kv=n_head_kv,
            n_ff=_part(self.n_ff, divisor),
            n_ff_expert=_part(self.n_ff_expert, divisor),
            n_vocab=_part(self.n_vocab, divisor),
            n_head_state=max(self.n_head_state // divisor, 1) if self.n_state else 0,
        )

    @property
    def n_parameters(self) -> int:
        """The elements of all tensors."""
        return sum(n_elements(shape) for shape in tensors(self).values())


def _part(n: int, divisor: int) -> int:
    return -(-n // divisor // 32) * 32  # Q8_0 quantises 32 values together


def n_elements(shape: tuple[int, ...]) -> int:
    """The number of elements of a tensor."""
    n = 1
    for dimension in shape:
        n *= dimension
    return n


def tensors(size: Size) -> Shapes:
    """The shapes of all tensors, by name."""
    shapes: Shapes = {
        "token_embd.weight": (size.n_embd, size.n_vocab),
        "output_norm.weight": (size.n_embd,),
        "output.weight": (size.n_embd, size.n_vocab),
    }
    layer_tensors = {"glm4moe": _glm4moe, "step35": _step35, "qwen35": _qwen35}[size.architecture]
    for layer in range(size.n_layer + size.n_heads):
        for name, shape in layer_tensors(size, layer).items():
            shapes[f"blk.{layer}.{name}"] = shape
    return shapes


def metadata(size: Size) -> Metadata:
    """The metadata that the architecture needs."""
    common: Metadata = {
        "block_count": size.n_layer + size.n_heads,
        "nextn_predict_layers": size.n_heads,
        "context_length": size.n_ctx,
        "embedding_length": size.n_embd,
        "feed_forward_length": size.n_ff,
        "attention.head_count": size.n_head,
        "attention.head_count_kv": size.n_head_kv,
        "attention.key_length": size.head_size,
        "attention.value_length": size.head_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": size.n_vocab,
    }
    if size.architecture == "glm4moe":
        return common | {
            "rope.dimension_count": size.head_size // 2,
            "expert_count": size.n_expert,
            "expert_used_count": size.n_expert_used,
            "expert_feed_forward_length": size.n_ff_expert,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,  # sigmoid
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
        }
    if size.architecture == "qwen35":
        n_pairs = size.head_size // 8
        return common | {
            "rope.dimension_count": 2 * n_pairs,
            "rope.dimension_sections": [n_pairs - 2 * (n_pairs // 3), n_pairs // 3, n_pairs // 3, 0],
            "full_attention_interval": ATTENTION_INTERVAL,
            "ssm.conv_kernel": CONV,
            "ssm.state_size": size.n_state,
            "ssm.inner_size": size.n_head_state * size.n_state,
            "ssm.time_step_rank": size.n_head_state,
            "ssm.group_count": size.n_head_state,
        }
    return common | {
        "rope.dimension_count": size.head_size,  # of windowed layers; the others rotate half of it
        "rope.freq_base_swa": 10000.0,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [i % 4 != 0 for i in range(size.n_layer + size.n_heads)],
        "expert_feed_forward_length": size.n_ff,  # must be there, although there are no experts
    }


def _glm4moe(size: Size, layer: int) -> Shapes:
    shapes = _attention(size)
    shapes["post_attention_norm.weight"] = (size.n_embd,)
    for name, n in (("q", size.n_head), ("k", size.n_head_kv), ("v", size.n_head_kv)):
        shapes[f"attn_{name}.bias"] = (n * size.head_size,)
    if layer == 0:
        shapes |= _feed_forward(size, "", size.n_ff)
    else:
        shapes["ffn_gate_inp.weight"] = (size.n_embd, size.n_expert)
        shapes["exp_probs_b.bias"] = (size.n_expert,)
        shapes |= _feed_forward(size, "_exps", size.n_ff_expert, size.n_expert)
        shapes |= _feed_forward(size, "_shexp", size.n_ff_expert)
    return shapes | (_head(size) if layer >= size.n_layer else {})


def _step35(size: Size, layer: int) -> Shapes:
    shapes = _attention(size)
    shapes["ffn_norm.weight"] = (size.n_embd,)
    shapes["attn_q_norm.weight"] = shapes["attn_k_norm.weight"] = (size.head_size,)
    shapes["attn_gate.weight"] = (size.n_embd, size.n_head)
    shapes |= _feed_forward(size, "", size.n_ff)
    if layer >= size.n_layer:
        shapes |= _head(size)
        shapes["nextn.shared_head_head.weight"] = (size.n_embd, size.n_vocab)
    return shapes


def _qwen35(size: Size, layer: int) -> Shapes:
    is_head = layer >= size.n_layer
    shapes: Shapes = {"attn_norm.weight": (size.n_embd,), "post_attention_norm.weight": (size.n_embd,)}
    if is_head or layer % ATTENTION_INTERVAL == ATTENTION_INTERVAL - 1:
        shapes |= _attention(size)
        shapes["attn_q.weight"] = (size.n_embd, 2 * size.n_head * size.head_size)  # queries and their gates
        shapes["attn_q_norm.weight"] = shapes["attn_k_norm.weight"] = (size.head_size,)
    else:
        n = size.n_head_state * size.n_state
        shapes["attn_qkv.weight"] = (size.n_embd, 3 * n)
        shapes["attn_gate.weight"] = (size.n_embd, n)
        shapes["ssm_conv1d.weight"] = (CONV, 3 * n)
        shapes["ssm_dt.bias"] = shapes["ssm_a"] = (size.n_head_state,)
        shapes["ssm_alpha.weight"] = shapes["ssm_beta.weight"] = (size.n_embd, size.n_head_state)
        shapes["ssm_norm.weight"] = (size.n_state,)
        shapes["ssm_out.weight"] = (n, size.n_embd)
    shapes |= _feed_forward(size, "", size.n_ff)
    return shapes | (_head(size) if is_head else {})


def _attention(size: Size) -> Shapes:
    n, n_kv = size.n_head * size.head_size, size.n_head_kv * size.head_size
    return {
        "attn_norm.weight": (size.n_embd,),
        "attn_q.weight": (size.n_embd, n),
        "attn_k.weight": (size.n_embd, n_kv),
        "attn_v.weight": (size.n_embd, n_kv),
        "attn_output.weight": (n, size.n_embd),
    }


def _feed_forward(size: Size, kind: str, n_ff: int, *n_expert: int) -> Shapes:
    return {
        f"ffn_gate{kind}.weight": (size.n_embd, n_ff, *n_expert),
        f"ffn_up{kind}.weight": (size.n_embd, n_ff, *n_expert),
        f"ffn_down{kind}.weight": (n_ff, size.n_embd, *n_expert),
    }


def _head(size: Size) -> Shapes:
    norms = ("enorm", "hnorm", "shared_head_norm")
    return {
        "nextn.eh_proj.weight": (2 * size.n_embd, size.n_embd),
        **{f"nextn.{name}.weight": (size.n_embd,) for name in norms},
    }
