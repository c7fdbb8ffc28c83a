"""EXAONE-4 (exaone4), EXAONE-MoE (exaone-moe), Bailing-MoE-2 (bailingmoe2): llama.cpp skips the tensors of their heads.

The loader wants query heads that are as wide as the model together.
"""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import HEAD, N_EMBD, N_FF_EXPERT, Value, Writer

N_HEAD, N_KV = N_EMBD // HEAD, 1
SHAPE: dict[str, Value] = {
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_KV,
    "rope.dimension_count": HEAD,
}


def write_exaone4(path: Path, n_layer: int = 3) -> Path:
    """Norms after attention and feed-forward, not before them."""
    w = Writer(path, "exaone4", n_layer, 1, SHAPE)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        blocks.attention(w, p, n_head=N_HEAD, n_kv=N_KV, qk_norm=True)
        w.norm(p + "post_attention_norm.weight")
        blocks.feed_forward(w, p)
        w.norm(p + "post_ffw_norm.weight")
    blocks.head(w, f"blk.{n_layer}.")
    return w.finish()


def write_exaone_moe(path: Path, n_layer: int = 4, window: int = 16) -> Path:
    """Sliding windows in three of four layers; a dense head."""
    w = Writer(path, "exaone-moe", n_layer, 1, {**SHAPE, **_experts(), "attention.sliding_window": window})
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.attention(w, p, n_head=N_HEAD, n_kv=N_KV, qk_norm=True)
        blocks.feed_forward(w, p) if i in (0, n_layer) else blocks.experts(w, p)
    blocks.head(w, f"blk.{n_layer}.")
    return w.finish()


def write_bailingmoe2(path: Path, n_layer: int = 3) -> Path:
    """Queries, keys and values in one matrix."""
    w = Writer(path, "bailingmoe2", n_layer, 1, {**SHAPE, **_experts()})
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        w.matrix(p + "attn_qkv.weight", N_EMBD, (N_HEAD + 2 * N_KV) * HEAD)
        w.matrix(p + "attn_output.weight", N_HEAD * HEAD, N_EMBD)
        w.norm(p + "attn_q_norm.weight", HEAD)
        w.norm(p + "attn_k_norm.weight", HEAD)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p)
    blocks.head(w, f"blk.{n_layer}.", own_norm=False)
    w.norm(f"blk.{n_layer}.layer_output_norm.weight")
    return w.finish()


def _experts() -> dict[str, Value]:
    return {
        **blocks.EXPERTS,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
    }
