"""dots3 (dots3note)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import N_EMBD, N_HEAD, Writer

N_HEAD_WINDOW, KV_LORA_WINDOW, NOPE_WINDOW, V_HEAD_WINDOW = 2, 96, 64, 32


def write_dots3note(path: Path, n_layer: int = 4, window: int = 16) -> Path:
    """Gated latent attention to what an index picks or, in other sizes, to a window; a dense head with a window."""
    is_windowed = [i % 3 != 0 for i in range(n_layer)]
    metadata = {
        **blocks.EXPERTS,
        **blocks.MLA,
        **blocks.INDEXER,
        "attention.head_count": [N_HEAD_WINDOW if windowed else N_HEAD for windowed in [*is_windowed, True]],
        "attention.kv_lora_rank_swa": KV_LORA_WINDOW,
        "attention.key_length_swa": KV_LORA_WINDOW + blocks.ROPE,
        "attention.value_length_swa": KV_LORA_WINDOW,
        "attention.key_length_mla_swa": NOPE_WINDOW + blocks.ROPE,
        "attention.value_length_mla_swa": V_HEAD_WINDOW,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": is_windowed,
        "attention.indexer.types": [not windowed for windowed in is_windowed],
        "rope.freq_base_swa": 1000.0,
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
    }
    w = Writer(path, "dots3note", n_layer, 1, metadata)
    blocks.embeddings(w)
    for i, windowed in enumerate([*is_windowed, True]):
        p = f"blk.{i}."
        n_head, kv_lora, nope, v_head = N_HEAD, blocks.KV_LORA, blocks.NOPE, blocks.V_HEAD
        if windowed:
            n_head, kv_lora, nope, v_head = N_HEAD_WINDOW, KV_LORA_WINDOW, NOPE_WINDOW, V_HEAD_WINDOW
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        w.matrix(p + "attn_q_a.weight", N_EMBD, blocks.Q_LORA)
        w.norm(p + "attn_q_a_norm.weight", blocks.Q_LORA)
        w.matrix(p + "attn_q_b.weight", blocks.Q_LORA, n_head * (nope + blocks.ROPE))
        w.matrix(p + "attn_kv_a_mqa.weight", N_EMBD, kv_lora + blocks.ROPE)
        w.norm(p + "attn_kv_a_norm.weight", kv_lora)
        w.norm(p + "attn_k_norm.weight", blocks.ROPE)
        w.matrix(p + "attn_k_b.weight", nope, kv_lora, n_head)
        w.matrix(p + "attn_v_b.weight", kv_lora, v_head, n_head)
        w.matrix(p + "attn_output.weight", n_head * v_head, N_EMBD)
        w.matrix(p + "attn_gate.weight", N_EMBD, n_head)
        if not windowed:
            blocks.indexer(w, p)
        blocks.feed_forward(w, p) if i in (0, n_layer) else blocks.experts(w, p)
    p = f"blk.{n_layer}."
    blocks.head(w, p, own_embedding=True)
    return w.finish()
