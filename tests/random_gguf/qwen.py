"""Qwen3-Next (qwen3next) and Qwen3.5 (qwen35, qwen35moe): gated delta nets beside attention, a hybrid memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import blocks
from .writer import HEAD, N_EMBD, N_HEAD, N_KV, Value, Writer

# of a delta net: heads of keys and of values, all of one size
STATE, N_KEYS, N_VALUES, CONV = 64, 2, 4, 4


def write_qwen35(path: Path) -> Path:
    """M-RoPE, dense feed-forwards."""
    return _write(path, "qwen35")


def write_qwen35moe(path: Path) -> Path:
    """M-RoPE, mixture of experts."""
    return _write(path, "qwen35moe")


def write_qwen3next(path: Path) -> Path:
    """Mixture of experts; llama.cpp cannot roll back the states of its recurrent layers."""
    return _write(path, "qwen3next")


def _write(path: Path, architecture: str, n_layer: int = 4) -> Path:
    is_next, is_moe = architecture == "qwen3next", architecture != "qwen35"
    metadata: dict[str, Value] = {
        "ssm.conv_kernel": CONV,
        "ssm.inner_size": N_VALUES * STATE,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": N_VALUES,
        "ssm.group_count": N_KEYS,
        "full_attention_interval": 2,
    }
    if is_moe:
        metadata.update(blocks.EXPERTS)
        metadata["expert_shared_feed_forward_length"] = metadata["expert_feed_forward_length"]
        metadata["expert_gating_func"] = 1  # softmax
        del metadata["expert_weights_scale"], metadata["expert_weights_norm"]
    if not is_next:
        metadata["rope.dimension_sections"] = [6, 5, 5, 0]
    w = Writer(path, architecture, n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "post_attention_norm.weight")
        if i % 2 == 1 or i == n_layer:
            w.matrix(p + "attn_q.weight", N_EMBD, 2 * N_HEAD * HEAD)  # queries and their gates
            w.matrix(p + "attn_k.weight", N_EMBD, N_KV * HEAD)
            w.matrix(p + "attn_v.weight", N_EMBD, N_KV * HEAD)
            w.matrix(p + "attn_output.weight", N_HEAD * HEAD, N_EMBD)
            w.norm(p + "attn_q_norm.weight", HEAD)
            w.norm(p + "attn_k_norm.weight", HEAD)
        else:
            _delta_net(w, p, names=("ba",) if is_next else ("beta", "alpha"))
        if is_moe:
            blocks.experts(w, p, bias="")
            w.matrix(p + "ffn_gate_inp_shexp.weight", N_EMBD)
        else:
            blocks.feed_forward(w, p)
    blocks.head(w, f"blk.{n_layer}.")
    return w.finish()


def _delta_net(w: Writer, p: str, names: tuple[str, ...]) -> None:
    """A gated delta net; `names`: of the projections that give each head its step size and decay, in one or two."""
    n_key, n_value = N_KEYS * STATE, N_VALUES * STATE
    w.matrix(p + "attn_qkv.weight", N_EMBD, 2 * n_key + n_value)
    w.matrix(p + "attn_gate.weight", N_EMBD, n_value)
    w.matrix(p + "ssm_conv1d.weight", CONV, 2 * n_key + n_value, scale=0.5)
    w.matrix(p + "ssm_dt.bias", N_VALUES, scale=0.5)
    w.add_tensor(p + "ssm_a", -np.linspace(0.5, 2, N_VALUES, dtype=np.float32))
    for name in names:
        w.matrix(f"{p}ssm_{name}.weight", N_EMBD, 2 * N_VALUES // len(names))
    w.norm(p + "ssm_norm.weight", STATE)
    w.matrix(p + "ssm_out.weight", n_value, N_EMBD)
