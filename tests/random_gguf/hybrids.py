"""Trunks without heads whose layers keep recurrent states beside keys and values: what drafts for them is lookup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import blocks
from .writer import N_EMBD, N_HEAD, N_KV, N_VOCAB, Value, Writer

INNER, STATE, N_HEADS, N_GROUPS, CONV = 2 * N_EMBD, 32, 4, 2, 4
"""Of a Mamba layer."""
HEAD = N_EMBD // N_HEAD
"""Of attention: here all heads together are as wide as the model."""

MAMBA: dict[str, Value] = {
    "ssm.conv_kernel": CONV,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": N_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "rope.dimension_count": HEAD,
}


def mamba2(w: Writer, p: str, *, inner: int = INNER) -> None:
    """A layer of Mamba-2."""
    n_conv = inner + 2 * N_GROUPS * STATE
    w.matrix(p + "ssm_in.weight", N_EMBD, inner + n_conv + N_HEADS)
    w.matrix(p + "ssm_conv1d.weight", CONV, n_conv, scale=0.5)
    w.matrix(p + "ssm_conv1d.bias", n_conv, scale=0.1)
    w.matrix(p + "ssm_dt.bias", N_HEADS, scale=0.5)
    w.add_tensor(p + "ssm_a", -np.linspace(0.5, 2, N_HEADS, dtype=np.float32).reshape(N_HEADS, 1))
    w.norm(p + "ssm_d", 1, N_HEADS)
    w.norm(p + "ssm_norm.weight", inner // N_GROUPS, N_GROUPS)
    w.matrix(p + "ssm_out.weight", inner, N_EMBD)


def write_falcon_h1(path: Path) -> Path:
    """Each layer has attention and Mamba-2 beside each other."""
    w = Writer(path, "falcon-h1", 3, 0, {**MAMBA, "ssm.group_count": N_GROUPS})
    blocks.embeddings(w)
    for i in range(3):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        attention(w, p)
        mamba2(w, p)
        w.norm(p + "ffn_norm")
        blocks.feed_forward(w, p)
    return w.finish()


def write_granite_hybrid(path: Path) -> Path:
    """Layers of Mamba-2, and of attention."""
    return _write_alternating(path, "granitehybrid", {**MAMBA, "ssm.group_count": N_GROUPS}, mamba2)


def write_jamba(path: Path) -> Path:
    """Layers of Mamba, whose states llama.cpp cannot roll back, and of attention."""
    return _write_alternating(path, "jamba", MAMBA, _mamba)


def write_lfm2(path: Path) -> Path:
    """Layers of short convolutions, and of attention."""
    metadata = {key: value for key, value in MAMBA.items() if not key.startswith("ssm.")}
    return _write_alternating(path, "lfm2", {**metadata, "shortconv.l_cache": CONV}, _short_convolution)


def _write_alternating(
    path: Path, architecture: str, metadata: dict[str, Value], recurrent: Callable[[Writer, str], None]
) -> Path:
    pattern = "R*RR*"
    n_kv = [N_KV if kind == "*" else 0 for kind in pattern]
    w = Writer(path, architecture, len(pattern), 0, {**metadata, "attention.head_count_kv": n_kv})
    w.matrix("token_embd.weight", N_EMBD, N_VOCAB, scale=1.0)
    w.norm("token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight")
    w.matrix("output.weight", N_EMBD, N_VOCAB)
    for i, kind in enumerate(pattern):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        if kind == "*":
            attention(w, p)
            if architecture == "lfm2":
                w.norm(p + "attn_q_norm.weight", HEAD)
                w.norm(p + "attn_k_norm.weight", HEAD)
        else:
            recurrent(w, p)
        w.norm(p + "ffn_norm.weight")
        blocks.feed_forward(w, p)
    return w.finish()


def attention(w: Writer, p: str) -> None:
    """Its projections."""
    w.matrix(p + "attn_q.weight", N_EMBD, N_EMBD)
    w.matrix(p + "attn_k.weight", N_EMBD, N_KV * HEAD)
    w.matrix(p + "attn_v.weight", N_EMBD, N_KV * HEAD)
    w.matrix(p + "attn_output.weight", N_EMBD, N_EMBD)


def _mamba(w: Writer, p: str) -> None:
    w.matrix(p + "ssm_in.weight", N_EMBD, 2 * INNER)
    w.matrix(p + "ssm_conv1d.weight", CONV, INNER, scale=0.5)
    w.matrix(p + "ssm_conv1d.bias", INNER, scale=0.1)
    w.matrix(p + "ssm_x.weight", INNER, N_HEADS + 2 * STATE)
    w.norm(p + "ssm_dt_norm.weight", N_HEADS)
    w.matrix(p + "ssm_dt.weight", N_HEADS, INNER)
    w.matrix(p + "ssm_dt.bias", INNER, scale=0.5)
    w.norm(p + "ssm_b_norm.weight", STATE)
    w.norm(p + "ssm_c_norm.weight", STATE)
    w.add_tensor(p + "ssm_a", -np.linspace(0.5, 2, INNER * STATE, dtype=np.float32).reshape(INNER, STATE))
    w.norm(p + "ssm_d", INNER)
    w.matrix(p + "ssm_out.weight", INNER, N_EMBD)


def _short_convolution(w: Writer, p: str) -> None:
    w.matrix(p + "shortconv.conv.weight", CONV, N_EMBD, scale=0.5)
    w.matrix(p + "shortconv.in_proj.weight", N_EMBD, 3 * N_EMBD)
    w.matrix(p + "shortconv.out_proj.weight", N_EMBD, N_EMBD)
