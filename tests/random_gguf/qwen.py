"""Qwen3-Next (qwen3next), Qwen3.5 (qwen35, qwen35moe) and Qwen3.8-Flash-Next (qwen4exp): gated delta nets beside
attention, a hybrid memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import blocks
from .writer import HEAD, N_EMBD, N_FF_EXPERT, N_HEAD, N_KV, N_VOCAB, Value, Wide, Writer

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


# of Qwen3.8-Flash-Next: positions whose keys the index pools, and the rank of what mixes streams
POOL, MIX_RANK = 4, 16
# rows of the table of n-grams, for each of the heads that hash them
NGRAM, N_ROWS = 3, [31, 37, 41, 43]


def write_qwen4exp(path: Path) -> Path:
    """M-RoPE, streams of hidden states, a layer with a table of n-grams; its index picks all positions of a test."""
    return _write_qwen4exp(path, 512)


def write_qwen4exp_picking(path: Path) -> Path:
    """The same with an index that picks few positions."""
    return _write_qwen4exp(path, 16)


def _write_qwen4exp(path: Path, n_picked: int) -> Path:
    n_layer, ngram_layer = 4, 2
    metadata: dict[str, Value] = {
        **blocks.EXPERTS,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "ssm.conv_kernel": CONV,
        "ssm.inner_size": N_VALUES * STATE,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": N_VALUES,
        "ssm.group_count": N_KEYS,
        "full_attention_interval": 2,
        "rope.dimension_sections": [6, 5, 5, 0],
        "hyper_connection.count": blocks.STREAMS,
        "hyper_connection.low_rank": MIX_RANK,
        "attention.indexer.head_count": blocks.INDEX_HEADS,
        "attention.indexer.key_length": blocks.INDEX_HEAD,
        "attention.indexer.top_k": n_picked,
        "attention.compress_ratios": [POOL * _attends(i, n_layer) for i in range(n_layer + 1)],
        "ple.layers": [ngram_layer],
        "ple.ngram_size": NGRAM,
        "ple.heads_per_ngram": len(N_ROWS) // (NGRAM - 1),
        "ple.conv_kernel": CONV,
        "ple.eos_token_id": 256,
        "ple.layer_multipliers": Wide([0x12345678901, 0x23456789013, 0x3456789ABCD]),
        "ple.head_offsets": Wide([sum(N_ROWS[:i]) for i in range(len(N_ROWS))]),
        "ple.head_vocab_sizes": Wide(N_ROWS),
        "embedding_length_per_layer_input": N_EMBD // len(N_ROWS),
    }
    for key in ("expert_gating_func", "expert_weights_scale", "expert_weights_norm"):
        del metadata[key]
    w = Writer(path, "qwen4exp", n_layer, 1, metadata)
    w.matrix("token_embd.weight", N_EMBD, N_VOCAB, scale=1.0)
    w.matrix("output.weight", N_EMBD, N_VOCAB)
    w.matrix("per_layer_token_embd.weight", N_EMBD // len(N_ROWS), sum(N_ROWS), scale=1.0)
    _mixer(w, "output_hc_")
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        for part in ("attn", "ffn"):
            _mixer(w, f"{p}hc_{part}_")
            w.matrix(f"{p}hc_{part}_inject.weight", WIDE, blocks.STREAMS)
        if _attends(i, n_layer):
            _gated_attention(w, p)
            w.matrix(p + "indexer.q_proj.weight", N_EMBD, blocks.INDEX_HEADS * blocks.INDEX_HEAD)
            w.matrix(p + "indexer.k_proj.weight", N_EMBD, blocks.INDEX_HEAD)
            w.norm(p + "indexer.q_norm.weight", blocks.INDEX_HEAD)
            w.norm(p + "indexer.k_norm.weight", blocks.INDEX_HEAD)
        else:
            _delta_net(w, p, names=("beta", "alpha"))
        if i == ngram_layer:
            w.matrix(p + "ple_key.weight", N_EMBD, WIDE)
            w.matrix(p + "ple_value.weight", N_EMBD, N_EMBD)
            for name in ("key", "query", "conv"):
                w.norm(f"{p}ple_norm_{name}.weight", WIDE)
            w.matrix(p + "ple_conv1d.weight", CONV, WIDE, scale=0.5)
        blocks.experts(w, p, bias="")
        w.matrix(p + "ffn_gate_inp_shexp.weight", N_EMBD)
    p = f"blk.{n_layer}.nextn."
    w.matrix(p + "eh_proj.weight", 2 * N_EMBD, N_EMBD)
    w.norm(p + "enorm.weight")
    w.norm(p + "hnorm.weight", WIDE)
    _mixer(w, p + "hc_head_")
    return w.finish()


WIDE = blocks.STREAMS * N_EMBD
"""All streams of a position."""


def _mixer(w: Writer, p: str) -> None:
    """What makes one of the streams."""
    w.norm(p + "norm.weight", WIDE)
    w.matrix(p + "down.weight", WIDE, MIX_RANK, scale=blocks.STREAMS * WIDE**-0.5)
    w.matrix(p + "up.weight", MIX_RANK, WIDE)


def _attends(i: int, n_layer: int) -> bool:
    return i % 2 == 1 or i == n_layer


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
        if _attends(i, n_layer):
            _gated_attention(w, p)
        else:
            _delta_net(w, p, names=("ba",) if is_next else ("beta", "alpha"))
        if is_moe:
            blocks.experts(w, p, bias="")
            w.matrix(p + "ffn_gate_inp_shexp.weight", N_EMBD)
        else:
            blocks.feed_forward(w, p)
    blocks.head(w, f"blk.{n_layer}.")
    return w.finish()


def _gated_attention(w: Writer, p: str) -> None:
    w.matrix(p + "attn_q.weight", N_EMBD, 2 * N_HEAD * HEAD)  # queries and their gates
    w.matrix(p + "attn_k.weight", N_EMBD, N_KV * HEAD)
    w.matrix(p + "attn_v.weight", N_EMBD, N_KV * HEAD)
    w.matrix(p + "attn_output.weight", N_HEAD * HEAD, N_EMBD)
    w.norm(p + "attn_q_norm.weight", HEAD)
    w.norm(p + "attn_k_norm.weight", HEAD)


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
