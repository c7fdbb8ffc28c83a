"""Cohere2-MoE (cohere2moe)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import HEAD, N_FF_EXPERT, Writer


def write_cohere2moe(path: Path, n_layer: int = 5, window: int = 16) -> Path:
    """Attention beside the feed-forward; a head with full attention above a trunk that mostly has a window.

    The pattern of windows covers the trunk's layers alone.
    """
    metadata = {
        **blocks.EXPERTS,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
        "logit_scale": 0.0625,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [i % 4 != 3 for i in range(n_layer)],
        "rope.dimension_count": HEAD,
    }
    w = Writer(path, "cohere2moe", n_layer, 1, metadata, without=("attention.layer_norm_rms_epsilon",))
    blocks.embeddings(w, tied=True)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        blocks.attention(w, p)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p, bias="")
        if i == n_layer:
            blocks.head(w, p)
    return w.finish()
