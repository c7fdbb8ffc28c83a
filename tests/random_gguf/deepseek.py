"""DeepSeek-V3 and its kin (deepseek2), V3.2 (deepseek32), V4 (deepseek4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import blocks
from .writer import N_EMBD, N_EXPERT, N_EXPERT_USED, N_HEAD, N_VOCAB, Metadata, Value, Writer


def write_latent(
    path: Path,
    architecture: str,
    n_layer: int = 4,
    index: Callable[[int], bool] | None = None,
    more: Metadata | None = None,
) -> Path:
    """Latent attention and a mixture of experts. `index`: which layers of the trunk have one. `more`: metadata."""
    metadata: dict[str, Value] = {
        **blocks.EXPERTS,
        **blocks.MLA,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
    }
    if index is not None:
        metadata.update(blocks.INDEXER)
        metadata["attention.indexer.types"] = [index(i) for i in range(n_layer)]
    w = Writer(path, architecture, n_layer, 1, {**metadata, **(more or {})})
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.latent_attention(w, p)
        if index is not None and (i == n_layer or index(i)):
            blocks.indexer(w, p)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p)
        if i == n_layer:
            blocks.head(w, p, own_embedding=True, own_output=True)
    return w.finish()


def write_deepseek3(path: Path) -> Path:
    """DeepSeek-V3 and R1: YaRN, experts in groups. llama.cpp's converter drops the head, so that no published file
    is like this one; llama.cpp loads it all the same.
    """
    yarn: Metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "expert_group_count": 2,
        "expert_group_used_count": 1,
    }
    return write_latent(path, "deepseek2", more=yarn)


def write_deepseek32(path: Path) -> Path:
    """Latent attention over the positions that an index picks, in every layer and in the head."""
    return write_latent(path, "deepseek32", index=lambda i: True)


def write_deepseek4(path: Path) -> Path:
    """Windowed attention beside compressed keys, hyper-connections: hidden states are four streams wide.

    The converter writes trunk and head into two files; this one holds both, as the loader allows.
    """
    ratios, n_hash, n_group, o_lora, window = [0, 4, 128, 4, 0], 1, 2, 32, 16
    n_head = 2 * blocks.INDEX_HEAD  # another than the index has: llama.cpp knows its cache by the size of heads
    n_layer = len(ratios) - 1
    metadata: dict[str, Value] = {
        **blocks.EXPERTS,
        **blocks.INDEXER,
        **blocks.HYPER_CONNECTIONS,
        "expert_gating_func": 4,  # square root of softplus
        "expert_shared_count": 1,
        "swiglu_clamp_exp": [10.0] * (n_layer + 1),
        "swiglu_clamp_shexp": [10.0] * (n_layer + 1),
        "embedding_length_out": blocks.STREAMS * N_EMBD,
        "hash_layer_count": n_hash,
        "attention.head_count_kv": 1,
        "attention.key_length": n_head,
        "attention.value_length": n_head,
        "attention.q_lora_rank": blocks.Q_LORA,
        "attention.output_group_count": n_group,
        "attention.output_lora_rank": o_lora,
        "attention.sliding_window": window,
        "attention.indexer.top_k": 8,
        "attention.compress_ratios": ratios,
        "attention.compress_rope_freq_base": 40000.0,
    }
    w = Writer(path, "deepseek4", n_layer, 1, metadata)
    blocks.embeddings(w)
    w.matrix("output_hc_fn.weight", blocks.STREAMS * N_EMBD, blocks.STREAMS)
    w.matrix("output_hc_base.weight", blocks.STREAMS, scale=0.5)
    w.norm("output_hc_scale.weight", 1)
    for i, ratio in enumerate(ratios):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.hyper_connections(w, p)
        w.matrix(p + "attn_sinks.weight", N_HEAD, scale=1.0)
        w.matrix(p + "attn_q_a.weight", N_EMBD, blocks.Q_LORA)
        w.norm(p + "attn_q_a_norm.weight", blocks.Q_LORA)
        w.matrix(p + "attn_q_b.weight", blocks.Q_LORA, N_HEAD * n_head)
        w.matrix(p + "attn_kv.weight", N_EMBD, n_head)
        w.norm(p + "attn_kv_a_norm.weight", n_head)
        w.matrix(p + "attn_output_a.weight", N_HEAD * n_head // n_group, o_lora * n_group)
        w.matrix(p + "attn_output_b.weight", n_group * o_lora, N_EMBD)
        if ratio:
            _compressor(w, p + "attn_compressor", n_head, ratio)
        if ratio == 4:
            w.matrix(p + "indexer.proj.weight", N_EMBD, blocks.INDEX_HEADS)
            w.matrix(p + "indexer.attn_q_b.weight", blocks.Q_LORA, blocks.INDEX_HEADS * blocks.INDEX_HEAD)
            _compressor(w, p + "indexer_compressor", blocks.INDEX_HEAD, ratio)
        # the first layers route by token
        blocks.experts(w, p, bias="" if i < n_hash else "exp_probs_b.bias")
        if i < n_hash:
            w.choices(p + "ffn_gate_tid2eid.weight", N_EXPERT_USED, N_VOCAB, N_EXPERT)
        if i == n_layer:
            blocks.head(w, p)
    return w.finish()


def _compressor(w: Writer, name: str, n_head: int, ratio: int) -> None:
    """Makes one key of `ratio` positions; a ratio of 4 has windows that overlap."""
    n = 2 * n_head if ratio == 4 else n_head
    w.matrix(name + "_kv.weight", N_EMBD, n)
    w.matrix(name + "_gate.weight", N_EMBD, n)
    w.matrix(name + "_ape.weight", n, ratio)
    w.norm(name + "_norm.weight", n_head)
