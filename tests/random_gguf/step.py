"""Step-3.5 and Step-3.7 (step35)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import blocks
from .writer import HEAD, N_EMBD, N_FF_EXPERT, N_HEAD, N_KV, Writer


def write_step35(path: Path, n_heads: int = 3, n_layer: int = 5, window: int = 16) -> Path:
    """Heads with an output of their own. Every fourth layer attends fully, the others to a window (an iSWA cache)."""
    n_all = n_layer + n_heads
    is_swa = [i % 4 != 0 for i in range(n_all)]
    n_head, n_kv = [N_HEAD + 2 * swa for swa in is_swa], [N_KV] * n_all
    clamps = [0.0] * (n_layer - 1) + [7.0] + [0.0] * n_heads
    metadata = {
        **blocks.EXPERTS,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
        "moe_every_n_layers": 1,
        "swiglu_clamp_exp": clamps,
        "swiglu_clamp_shexp": clamps,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": is_swa,
        "rope.dimension_count": HEAD,  # of windowed layers; the others rotate half of it
        "rope.freq_base_swa": 1000.0,
    }
    w = Writer(path, "step35", n_layer, n_heads, metadata)
    blocks.embeddings(w)
    w.add_tensor("rope_freqs.weight", np.linspace(1, 8, HEAD // 2, dtype=np.float32))
    for i in range(n_all):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.attention(w, p, n_head=n_head[i], n_kv=n_kv[i], qk_norm=True)
        w.matrix(p + "attn_gate.weight", N_EMBD, n_head[i])
        blocks.feed_forward(w, p) if i == 0 or i >= n_layer else blocks.experts(w, p)
        if i >= n_layer:
            blocks.head(w, p, own_output=True)
    return w.finish()
