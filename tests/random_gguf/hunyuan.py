"""Hunyuan 3 (hy_v3)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import HEAD, N_FF_EXPERT, Writer


def write_hy_v3(path: Path, n_layer: int = 3) -> Path:
    """Full attention with normalised queries and keys (a plain cache), mixture of experts."""
    metadata = {**blocks.EXPERTS, "expert_shared_feed_forward_length": N_FF_EXPERT, "rope.dimension_count": HEAD}
    w = Writer(path, "hy_v3", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.attention(w, p, qk_norm=True)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p, bias="exp_probs_b")
        if i == n_layer:
            blocks.head(w, p)
    return w.finish()
