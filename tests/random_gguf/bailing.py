"""Bailing-MoE-2, Ling 2.0 (bailingmoe2), and Bailing-MoE-3, Ling 3.0 (bailingmoe3)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import HEAD, N_EMBD, N_FF_EXPERT, N_HEAD, Writer

N_HEAD_2, N_KV_2 = N_EMBD // HEAD, 1
"""Of bailingmoe2, whose loader wants query heads that are as wide as the model together."""


def write_bailingmoe2(path: Path, n_layer: int = 3) -> Path:
    """Full attention; queries, keys and values in one matrix; experts in the head."""
    metadata = {
        **blocks.EXPERTS,
        "attention.head_count": N_HEAD_2,
        "attention.head_count_kv": N_KV_2,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
    }
    w = Writer(path, "bailingmoe2", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        w.matrix(p + "attn_qkv.weight", N_EMBD, (N_HEAD_2 + 2 * N_KV_2) * HEAD)
        w.matrix(p + "attn_output.weight", N_HEAD_2 * HEAD, N_EMBD)
        w.norm(p + "attn_q_norm.weight", HEAD)
        w.norm(p + "attn_k_norm.weight", HEAD)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p)
    blocks.head(w, f"blk.{n_layer}.", own_norm=False)
    w.norm(f"blk.{n_layer}.layer_output_norm.weight")
    return w.finish()


def write_bailingmoe3(path: Path, n_layer: int = 4) -> Path:
    """Kimi delta attention and, in every second layer and the head, gated latent attention (a hybrid memory).

    Queries have no low-rank form.
    """
    is_recurrent = [i % 2 == 0 for i in range(n_layer)] + [False]
    metadata = {
        **blocks.EXPERTS,
        **blocks.MLA,
        **blocks.KDA,
        "kda.safe_gate": True,
        "attention.head_count_kv": [0 if recurrent else 1 for recurrent in is_recurrent],
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": N_FF_EXPERT,
        "leading_dense_block_count": 1,
    }
    w = Writer(path, "bailingmoe3", n_layer, 1, metadata, without=("attention.value_length", "attention.q_lora_rank"))
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        if is_recurrent[i]:
            blocks.delta_attention(w, p, sign=1, shape=(N_HEAD, 1))
            for x in "fg":
                w.matrix(f"{p}ssm_{x}_a.weight", N_EMBD, N_HEAD * blocks.KDA_HEAD)
        else:
            blocks.latent_attention(w, p, q_lora=False)
            w.matrix(p + "attn_gate.weight", N_EMBD, N_HEAD)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p)
        if i == n_layer:
            blocks.head(w, p, own_norm=False)
            w.norm(p + "layer_output_norm.weight")
    return w.finish()
