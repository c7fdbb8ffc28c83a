"""ERNIE 4.5 (ernie4_5-moe)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import HEAD, N_FF_EXPERT, Writer


def write_ernie4_5(path: Path, n_layer: int = 3) -> Path:
    """The dense one, with a head that llama.cpp loads and nothing runs."""
    w = Writer(path, "ernie4_5", n_layer, 1, {"rope.dimension_count": HEAD})
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        w.norm(f"blk.{i}.attn_norm.weight")
        w.norm(f"blk.{i}.ffn_norm.weight")
        blocks.attention(w, f"blk.{i}.")
        blocks.feed_forward(w, f"blk.{i}.")
    blocks.head(w, f"blk.{n_layer}.", own_norm=False)
    return w.finish()


def write_ernie4_5_moe(path: Path, n_layer: int = 3) -> Path:
    """Full attention, experts chosen by softmax, a dense head; the head's last norm is the trunk's."""
    metadata = {
        **{key: blocks.EXPERTS[key] for key in ("expert_count", "expert_used_count", "expert_feed_forward_length")},
        "rope.dimension_count": HEAD,
        "interleave_moe_layer_step": 1,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
    }
    w = Writer(path, "ernie4_5-moe", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.attention(w, p)
        blocks.feed_forward(w, p) if i in (0, n_layer) else blocks.experts(w, p)
    blocks.head(w, f"blk.{n_layer}.", own_norm=False)
    return w.finish()
