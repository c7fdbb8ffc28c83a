"""GLM-4 (glm4), GLM-4.5 to 4.7 (glm4moe), GLM-4.7-Flash (deepseek2), GLM-5 (glm-dsa, glm5-next)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .deepseek import write_latent
from .writer import HEAD, N_EMBD, N_FF, N_HEAD, N_KV, Metadata, Writer


def write_glm4(path: Path, n_layer: int = 3) -> Path:
    """GLM-OCR: full attention, positions in sections, dense feed-forwards, norms on both sides."""
    w = Writer(path, "glm4", n_layer, 1, {"rope.dimension_sections": [4, 6, 6, 0]})
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            w.norm(f"{p}{name}.weight")
        blocks.attention(w, p)
        w.matrix(p + "ffn_up.weight", N_EMBD, 2 * N_FF)  # and its gates
        w.matrix(p + "ffn_down.weight", N_FF, N_EMBD)
    blocks.head(w, f"blk.{n_layer}.", own_embedding=True, own_output=True)
    return w.finish()


def write_glm4moe_mrope(path: Path) -> Path:
    """GLM-4.5V and 4.6V: positions in sections."""
    return write_glm4moe(path, more={"rope.dimension_sections": [8, 4, 4, 0]})


def write_glm4moe(path: Path, n_layer: int = 3, more: Metadata | None = None) -> Path:
    """Full attention (a plain cache), mixture of experts; the head has an embedding and an output of its own.

    `more`: metadata.
    """
    metadata = {**blocks.EXPERTS, "expert_shared_count": 1, "leading_dense_block_count": 1, **(more or {})}
    w = Writer(path, "glm4moe", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "post_attention_norm.weight")
        blocks.attention(w, p)
        for name, n_head in (("q", N_HEAD), ("k", N_KV), ("v", N_KV)):
            w.matrix(f"{p}attn_{name}.bias", n_head * HEAD, scale=0.1)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p)
        if i == n_layer:
            blocks.head(w, p, own_embedding=True, own_output=True)
    return w.finish()


def write_glm4_flash(path: Path) -> Path:
    """GLM-4.7-Flash: DeepSeek's latent attention (a plain cache of K alone) under the name deepseek2."""
    return write_latent(path, "deepseek2")


def write_glm_dsa(path: Path) -> Path:
    """GLM-5.2: latent attention over the positions that an index picks. Every other layer has one, and the head."""
    return write_latent(path, "glm-dsa", index=lambda i: i % 2 == 0)


def write_glm_dsa_full(path: Path) -> Path:
    """GLM-5 and 5.1: every layer has an index."""
    return write_latent(path, "glm-dsa", index=lambda i: True)


def write_glm5_next(path: Path, n_layer: int = 4, more: Metadata | None = None) -> Path:
    """GLM-5.3-Flash: Kimi delta attention and hyper-connections in the trunk, latent attention to what an index of
    pooled keys picks, also in the head.

    `more`: metadata.
    """
    n_pool, is_recurrent = 4, [i % 2 == 0 for i in range(n_layer)] + [False]
    metadata = {
        **blocks.EXPERTS,
        **blocks.MLA,
        **blocks.INDEXER,
        **blocks.KDA,
        **blocks.HYPER_CONNECTIONS,
        "attention.head_count_kv": [0 if recurrent else 1 for recurrent in is_recurrent],
        "attention.key_length": blocks.KV_LORA,
        "attention.key_length_mla": blocks.NOPE,
        "attention.layer_norm_epsilon": 1e-6,
        "attention.indexer.kpool": n_pool,
        "attention.indexer.kpool_select_tail": True,
        "attention.indexer.types": [True] * n_layer,
        "rope.dimension_count": 0,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "swiglu_clamp_exp": [7.0] * (n_layer + 1),
        "swiglu_clamp_shexp": [7.0] * (n_layer + 1),
        **(more or {}),
    }
    w = Writer(path, "glm5-next", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        if i < n_layer:
            blocks.hyper_connections(w, p)
        if is_recurrent[i]:
            blocks.delta_attention(w, p, sign=-1, shape=(N_HEAD,))
            for x in "fg":
                w.matrix(f"{p}ssm_{x}_a.weight", N_EMBD, blocks.KDA_HEAD)
                w.matrix(f"{p}ssm_{x}_b.weight", blocks.KDA_HEAD, N_HEAD * blocks.KDA_HEAD)
        else:
            blocks.latent_attention(w, p, rope=0)
            blocks.indexer(w, p)
            w.matrix(p + "indexer_compressor_gate.weight", N_EMBD, blocks.INDEX_HEAD)
            w.matrix(p + "indexer_compressor_ape.weight", blocks.INDEX_HEAD, n_pool)
        blocks.feed_forward(w, p) if i == 0 else blocks.experts(w, p)
        if i == n_layer:
            blocks.head(w, p)
    return w.finish()
