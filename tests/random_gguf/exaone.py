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


def write_exaone4_small(path: Path) -> Path:
    """The loader knows windows of a model with 64 layers only."""
    return write_exaone4(path, n_layer=3, window=0)


def write_exaone4(path: Path, n_layer: int = 64, window: int = 16) -> Path:
    """Norms after attention and feed-forward, not before them; windows in three of four layers, and in the head."""
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


def write_exaone_moe_full(path: Path) -> Path:
    """The head attends to all positions, and rotates nothing."""
    return write_exaone_moe(path, of_head=(False,))


def write_exaone_moe(path: Path, n_layer: int = 4, window: int = 16, of_head: tuple[bool, ...] = ()) -> Path:
    """Windows in three of four layers; a dense head. `of_head`: whether it has a window, if the file is to say so."""
    metadata = {
        **SHAPE,
        **blocks.EXPERTS,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
        **_windows(n_layer, window, of_head),
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


def _windows(n_layer: int, window: int, of_head: tuple[bool, ...] = ()) -> dict[str, Value]:
    """As the converter writes them, which says nothing of the head: it attends as the first layer does."""
    if not window:
        return {}
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [*(i % 4 != 3 for i in range(n_layer)), *of_head],
    }
