"""EXAONE-4.5 (exaone4), K-EXAONE (exaone-moe). The loader wants query heads that are as wide as the model together."""

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


def write_exaone4(path: Path, n_layer: int = 64, window: int = 16) -> Path:
    """Norms after attention and feed-forward, not before them; windows in three of four layers, and in the head.

    The loader knows no windows of a model with another number of layers.
    """
    w = Writer(path, "exaone4", n_layer, 1, {**SHAPE, **_windows(n_layer, window)})
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
    """Sliding windows in three of four layers, and in the head, as in the first layer; a dense head."""
    metadata = {
        **SHAPE,
        **blocks.EXPERTS,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
        **_windows(n_layer, window),
    }
    w = Writer(path, "exaone-moe", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.attention(w, p, n_head=N_HEAD, n_kv=N_KV, qk_norm=True)
        blocks.feed_forward(w, p) if i in (0, n_layer) else blocks.experts(w, p)
    blocks.head(w, f"blk.{n_layer}.")
    return w.finish()


def _windows(n_layer: int, window: int) -> dict[str, Value]:
    """As the converter writes them, which names no window of the head: it has that of the first layer."""
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [i % 4 != 3 for i in range(n_layer)],
    }
