"""MiMo-V2 (mimo2)."""

from __future__ import annotations

from pathlib import Path

from . import blocks
from .writer import HEAD, N_EMBD, N_HEAD, N_KV, Writer


def write_mimo2_split(path: Path) -> Path:
    """MiMo-V2-Flash: queries, keys and values apart."""
    return write_mimo2(path, n_heads=3, is_split=True)


def write_mimo2(path: Path, n_heads: int = 1, n_layer: int = 4, window: int = 16, is_split: bool = False) -> Path:
    """Heads with sliding-window attention; trunk layers of both kinds (an iSWA cache); values narrower than keys."""
    is_swa = [i % 3 != 0 for i in range(n_layer)] + [True] * n_heads
    n_kv, n_value = [2 * N_KV if swa else N_KV for swa in is_swa], HEAD // 2
    metadata = {
        **blocks.EXPERTS,
        "attention.head_count_kv": n_kv,
        "attention.value_length": n_value,
        "attention.value_scale": 0.7,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [int(swa) for swa in is_swa],
        "rope.freq_base_swa": 1000.0,
    }
    w = Writer(path, "mimo2", n_layer, n_heads, metadata)
    blocks.embeddings(w)
    for i in range(n_layer + n_heads):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        widths = {"q": N_HEAD * HEAD, "k": n_kv[i] * HEAD, "v": n_kv[i] * n_value}
        for x, width in widths.items() if is_split else [("qkv", sum(widths.values()))]:
            w.matrix(f"{p}attn_{x}.weight", N_EMBD, width)
        w.matrix(p + "attn_output.weight", N_HEAD * n_value, N_EMBD)
        w.matrix(p + "attn_sinks.weight", N_HEAD, scale=1.0)
        if i == 0 or i >= n_layer:
            blocks.feed_forward(w, p)
        else:
            blocks.experts(w, p, shared=False)
        if i >= n_layer:
            blocks.head(w, p, own_norm=False)
            w.norm(p + "layer_output_norm.weight")
    return w.finish()
