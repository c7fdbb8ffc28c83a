"""Parts of a layer that several architectures share. `p` is the layer's prefix, "blk.7." for instance.

Knows tensor names and shapes; metadata is the architecture's own, except for what a part needs of it.
"""

from __future__ import annotations

import numpy as np

from .writer import HEAD, N_EMBD, N_EXPERT, N_EXPERT_USED, N_FF, N_FF_EXPERT, N_HEAD, N_KV, N_VOCAB, Value, Writer

# multi-head latent attention
Q_LORA, KV_LORA, ROPE, NOPE, V_HEAD = 64, 64, 32, 32, 64

# the index of sparse attention; with few heads scores of 0 would tie, and which of them are picked is left to chance
INDEX_HEADS, INDEX_HEAD = 16, 64

# Kimi delta attention
KDA_HEAD, KDA_CONV = 64, 4

# hyper-connections: streams of hidden states
STREAMS = 4

EXPERTS: dict[str, Value] = {
    "expert_count": N_EXPERT,
    "expert_used_count": N_EXPERT_USED,
    "expert_feed_forward_length": N_FF_EXPERT,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,  # sigmoid
}

MLA: dict[str, Value] = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": Q_LORA,
    "attention.kv_lora_rank": KV_LORA,
    "attention.key_length": KV_LORA + ROPE,
    "attention.value_length": KV_LORA,
    "attention.key_length_mla": NOPE + ROPE,
    "attention.value_length_mla": V_HEAD,
    "rope.dimension_count": ROPE,
}

# few enough that the index of the tests' texts leaves most positions out
INDEXER: dict[str, Value] = {
    "attention.indexer.head_count": INDEX_HEADS,
    "attention.indexer.key_length": INDEX_HEAD,
    "attention.indexer.top_k": 16,
}

KDA: dict[str, Value] = {
    "ssm.conv_kernel": KDA_CONV,
    "kda.head_dim": KDA_HEAD,
    "kda.gate_lower_bound": -5.0,
}

HYPER_CONNECTIONS: dict[str, Value] = {
    "hyper_connection.count": STREAMS,
    "hyper_connection.sinkhorn_iterations": 4,
    "hyper_connection.epsilon": 1e-6,
}


def embeddings(w: Writer, *, tied: bool = False, scale: float = 1.0) -> None:
    """What comes before and after the layers. `tied`: the output is the token embedding, whose numbers have `scale`."""
    w.matrix("token_embd.weight", N_EMBD, N_VOCAB, scale=scale)
    w.norm("output_norm.weight")
    if not tied:
        w.matrix("output.weight", N_EMBD, N_VOCAB)


def head(w: Writer, p: str, *, own_norm: bool = True, own_embedding: bool = False, own_output: bool = False) -> None:
    """What makes a layer an MTP head; what is not its own is the trunk's."""
    w.matrix(p + "nextn.eh_proj.weight", 2 * N_EMBD, N_EMBD)
    w.norm(p + "nextn.enorm.weight")
    w.norm(p + "nextn.hnorm.weight")
    if own_norm:
        w.norm(p + "nextn.shared_head_norm.weight")
    if own_embedding:
        w.matrix(p + "nextn.embed_tokens.weight", N_EMBD, N_VOCAB, scale=1.0)
    if own_output:
        w.matrix(p + "nextn.shared_head_head.weight", N_EMBD, N_VOCAB)


def attention(
    w: Writer, p: str, *, n_head: int = N_HEAD, n_kv: int = N_KV, qk_norm: bool = False, has_values: bool = True
) -> None:
    """Projections of grouped-query attention. `has_values`: the layer has one matrix of values."""
    w.matrix(p + "attn_q.weight", N_EMBD, n_head * HEAD)
    w.matrix(p + "attn_k.weight", N_EMBD, n_kv * HEAD)
    if has_values:
        w.matrix(p + "attn_v.weight", N_EMBD, n_kv * HEAD)
    w.matrix(p + "attn_output.weight", n_head * HEAD, N_EMBD)
    if qk_norm:
        w.norm(p + "attn_q_norm.weight", HEAD)
        w.norm(p + "attn_k_norm.weight", HEAD)


def latent_attention(w: Writer, p: str, *, rope: int = ROPE, q_lora: bool = True) -> None:
    """Multi-head latent attention, keys and values absorbed into queries and outputs. `q_lora`: queries of low rank."""
    if q_lora:
        w.matrix(p + "attn_q_a.weight", N_EMBD, Q_LORA)
        w.norm(p + "attn_q_a_norm.weight", Q_LORA)
        w.matrix(p + "attn_q_b.weight", Q_LORA, N_HEAD * (NOPE + rope))
    else:
        w.matrix(p + "attn_q.weight", N_EMBD, N_HEAD * (NOPE + rope))
    w.matrix(p + "attn_kv_a_mqa.weight", N_EMBD, KV_LORA + rope)
    w.norm(p + "attn_kv_a_norm.weight", KV_LORA)
    w.matrix(p + "attn_k_b.weight", NOPE, KV_LORA, N_HEAD)
    w.matrix(p + "attn_v_b.weight", KV_LORA, V_HEAD, N_HEAD)
    w.matrix(p + "attn_output.weight", N_HEAD * V_HEAD, N_EMBD)


def indexer(w: Writer, p: str) -> None:
    """Scores positions, of which sparse attention reads the best."""
    w.norm(p + "indexer.k_norm.weight", INDEX_HEAD)
    w.matrix(p + "indexer.k_norm.bias", INDEX_HEAD, scale=0.1)
    w.matrix(p + "indexer.proj.weight", N_EMBD, INDEX_HEADS)
    w.matrix(p + "indexer.attn_k.weight", N_EMBD, INDEX_HEAD)
    w.matrix(p + "indexer.attn_q_b.weight", Q_LORA, INDEX_HEADS * INDEX_HEAD)


def delta_attention(w: Writer, p: str, *, sign: int, shape: tuple[int, ...]) -> None:
    """What the kinds of Kimi delta attention share. `sign` and `shape`: of the decays as the converter writes them."""
    n_inner = N_HEAD * KDA_HEAD
    for x in "qkv":
        w.matrix(f"{p}ssm_conv1d_{x}.weight", KDA_CONV, 1, n_inner, 1, scale=0.5)
        w.matrix(f"{p}attn_{x}.weight", N_EMBD, n_inner)
    w.add_tensor(p + "ssm_a", sign * np.linspace(0.5, 2, N_HEAD, dtype=np.float32).reshape(shape))
    w.matrix(p + "ssm_beta.weight", N_EMBD, N_HEAD)
    w.matrix(p + "ssm_dt.bias", n_inner, scale=0.5)
    w.norm(p + "ssm_norm.weight", KDA_HEAD)
    w.matrix(p + "attn_output.weight", n_inner, N_EMBD)


def hyper_connections(w: Writer, p: str) -> None:
    """Mix the streams before and after attention and feed-forward."""
    n_mix = (2 + STREAMS) * STREAMS
    for part in ("attn", "ffn"):
        w.matrix(f"{p}hc_{part}_fn.weight", STREAMS * N_EMBD, n_mix)
        w.matrix(f"{p}hc_{part}_base.weight", n_mix, scale=0.5)
        w.norm(f"{p}hc_{part}_scale.weight", 3)


def experts(w: Writer, p: str, *, bias: str = "exp_probs_b.bias", shared: bool = True, gate: bool = True) -> None:
    """A router, routed experts and a shared one. `bias`: the name of the router's selection bias; "": none."""
    w.matrix(p + "ffn_gate_inp.weight", N_EMBD, N_EXPERT)
    if bias:
        w.matrix(p + bias, N_EXPERT, scale=0.01)
    for name in ("gate", "up", "down") if gate else ("up", "down"):
        n_in, n_out = (N_FF_EXPERT, N_EMBD) if name == "down" else (N_EMBD, N_FF_EXPERT)
        w.matrix(f"{p}ffn_{name}_exps.weight", n_in, n_out, N_EXPERT)
        if shared:
            w.matrix(f"{p}ffn_{name}_shexp.weight", n_in, n_out)


def feed_forward(w: Writer, p: str) -> None:
    """A dense feed-forward."""
    w.matrix(p + "ffn_gate.weight", N_EMBD, N_FF)
    w.matrix(p + "ffn_up.weight", N_EMBD, N_FF)
    w.matrix(p + "ffn_down.weight", N_FF, N_EMBD)
