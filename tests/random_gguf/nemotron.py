"""Nemotron-H with a mixture of experts (nemotron_h_moe)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .hybrids import CONV, N_GROUPS, N_HEADS, STATE, mamba2
from .writer import N_FF_EXPERT, N_KV, Writer

INNER = 128
"""Of a Mamba-2 layer."""


def write_nemotron_h_moe(path: Path, pattern: str = "MEM*E") -> Path:
    """Each layer is one of Mamba-2 (M), attention (*) and experts (E), a hybrid memory; the head is * and E in one."""
    n_layer = len(pattern)
    metadata = {
        **blocks.EXPERTS,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "expert_group_count": 1,
        "feed_forward_length": [N_FF_EXPERT if kind == "E" else 0 for kind in pattern + "E"],
        "attention.head_count_kv": [N_KV if kind == "*" else 0 for kind in pattern + "*"],
        "attention.layer_norm_epsilon": 1e-5,
        "ssm.conv_kernel": CONV,
        "ssm.state_size": STATE,
        "ssm.group_count": N_GROUPS,
        "ssm.inner_size": INNER,
        "ssm.time_step_rank": N_HEADS,
    }
    w = Writer(path, "nemotron_h_moe", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i, kind in enumerate(pattern + "H"):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        if kind == "M":
            mamba2(w, p, inner=INNER)
        if kind in "*H":
            blocks.attention(w, p)
        if kind in "EH":
            blocks.experts(w, p, gate=False)
        if kind == "H":
            w.norm(p + "post_attention_norm.weight")
            blocks.head(w, p)
    return w.finish()
