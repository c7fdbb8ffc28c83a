"""Gemma-4 (gemma4), and the assistant that drafts for it (gemma4-assistant)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import blocks
from .writer import HEAD, N_EMBD, N_FF, N_HEAD, N_KV, N_VOCAB, Value, Writer

# of layers without a window, and of those with one
HEAD_FULL, HEAD_WINDOW = 2 * HEAD, HEAD
KV_FULL, KV_WINDOW = N_KV // 2, N_KV
N_EMBD_ASSISTANT, N_LAYER_ASSISTANT = 64, 4
PER_LAYER = 16
N_GROUPS, N_CHOSEN = 32, 6
"""Of the vocabulary, where an assistant gives logits to a part of it."""

# What goes through a GELU adds little to the states: the CPU's is a table of F16, so that sums in another order, which
# differ by 1e-7, come out of it 1e-4 apart.
GELU_SCALE = 0.01

GEMMA: dict[str, Value] = {
    "attention.key_length": HEAD_FULL,
    "attention.value_length": HEAD_FULL,
    "attention.key_length_swa": HEAD_WINDOW,
    "attention.value_length_swa": HEAD_WINDOW,
    "attention.sliding_window": 16,
    "rope.dimension_count": HEAD_FULL,
    "rope.dimension_count_swa": HEAD_WINDOW,
    "rope.freq_base": 1000000.0,
    "rope.freq_base_swa": 10000.0,
}


def write_gemma4(path: Path, n_layer: int = 6, more: dict[str, Value] | None = None, *, tied: bool = False) -> Path:
    """The dense and the large models: full attention every third layer, whose values are its keys.

    `tied`: the output is the token embedding, as in published models; random ones say the same token again and again.
    """
    return _write_trunk(path, n_layer, {"final_logit_softcapping": 30.0, **(more or {})}, tied=tied)


def write_gemma4_shared(path: Path) -> Path:
    """E2B and E4B: the last layers read the keys and values of earlier ones, and every layer has an embedding."""
    return _write_trunk(path, 6, {}, n_shared=3, n_per_layer=PER_LAYER)


def write_gemma4_choosing_assistant(path: Path) -> Path:
    """As for E2B and E4B."""
    return write_gemma4_assistant(path, chooses=True)


def write_gemma4_assistant(
    path: Path,
    n_embd_trunk: int = N_EMBD,
    more: dict[str, Value] | None = None,
    seed: int = 1,
    *,
    chooses: bool = False,
) -> Path:
    """Layers with queries alone. The last has no window, as the trunk's last has none.

    `chooses`: it gives logits to a part of the vocabulary, as those of E2B and E4B do.
    """
    is_window = [i + 1 < N_LAYER_ASSISTANT for i in range(N_LAYER_ASSISTANT)]
    metadata = {
        **GEMMA,
        **_of_layers(is_window),
        "embedding_length": N_EMBD_ASSISTANT,
        "embedding_length_out": n_embd_trunk,
        "attention.shared_kv_layers": N_LAYER_ASSISTANT,
        "masked_embd.top_k": N_CHOSEN,
        **(more or {}),
    }
    w = Writer(path, "gemma4-assistant", 0, N_LAYER_ASSISTANT, metadata, seed=seed)
    w.matrix("token_embd.weight", N_EMBD_ASSISTANT, N_VOCAB, scale=N_EMBD_ASSISTANT**-0.5)
    w.norm("output_norm.weight", N_EMBD_ASSISTANT)
    if chooses:
        w.matrix("masked_embd_centroids.weight", N_EMBD_ASSISTANT, N_GROUPS)
        w.add_tensor("masked_embd_ordering", np.random.default_rng(seed).permutation(N_VOCAB).astype(np.int32))
    w.matrix("nextn.pre_projection.weight", 2 * n_embd_trunk, N_EMBD_ASSISTANT)
    w.matrix("nextn.post_projection.weight", N_EMBD_ASSISTANT, n_embd_trunk)
    _rope_factors(w)
    for i, windowed in enumerate(is_window):
        p, width = f"blk.{i}.", N_HEAD * (HEAD_WINDOW if windowed else HEAD_FULL)
        _norms(w, p, N_EMBD_ASSISTANT)
        w.norm(p + "attn_q_norm.weight", HEAD_WINDOW if windowed else HEAD_FULL)
        w.matrix(p + "attn_q.weight", N_EMBD_ASSISTANT, width)
        w.matrix(p + "attn_output.weight", width, N_EMBD_ASSISTANT)
        _feed_forward(w, p, N_EMBD_ASSISTANT)
    return w.finish()


def _write_trunk(
    path: Path, n_layer: int, more: dict[str, Value], *, n_shared: int = 0, n_per_layer: int = 0, tied: bool = False
) -> Path:
    is_window = [i % 3 != 2 for i in range(n_layer)]
    metadata = {
        **GEMMA,
        **_of_layers(is_window),
        "attention.shared_kv_layers": n_shared,
        "embedding_length_per_layer_input": n_per_layer,
        **more,
    }
    w = Writer(path, "gemma4", n_layer, 0, metadata)
    w.matrix("token_embd.weight", N_EMBD, N_VOCAB, scale=N_EMBD**-0.5)
    if not tied:
        w.matrix("output.weight", N_EMBD, N_VOCAB)
    w.norm("output_norm.weight")
    _rope_factors(w)
    if n_per_layer:
        w.matrix("per_layer_token_embd.weight", n_per_layer * n_layer, N_VOCAB, scale=n_per_layer**-0.5)
        w.matrix("per_layer_model_proj.weight", N_EMBD, n_per_layer * n_layer)
        w.norm("per_layer_proj_norm.weight", n_per_layer)
    for i, windowed in enumerate(is_window):
        p, head = f"blk.{i}.", HEAD_WINDOW if windowed else HEAD_FULL
        _norms(w, p, N_EMBD)
        w.norm(p + "attn_q_norm.weight", head)
        w.matrix(p + "attn_q.weight", N_EMBD, N_HEAD * head)
        w.matrix(p + "attn_output.weight", N_HEAD * head, N_EMBD)
        if i < n_layer - n_shared:
            w.norm(p + "attn_k_norm.weight", head, scale=head**-0.5)  # scores are not scaled further
            w.matrix(p + "attn_k.weight", N_EMBD, head * (KV_WINDOW if windowed else KV_FULL))
            if windowed:
                w.matrix(p + "attn_v.weight", N_EMBD, head * KV_WINDOW)
        blocks.feed_forward(w, p)
        if n_per_layer:
            w.matrix(p + "inp_gate.weight", N_EMBD, n_per_layer)
            w.matrix(p + "proj.weight", n_per_layer, N_EMBD)
            w.norm(p + "post_norm.weight", scale=GELU_SCALE)
    return w.finish()


def _of_layers(is_window: list[bool]) -> dict[str, Value]:
    return {
        "attention.sliding_window_pattern": is_window,
        "attention.head_count_kv": [KV_WINDOW if windowed else KV_FULL for windowed in is_window],
    }


def _rope_factors(w: Writer) -> None:
    """Full attention turns a quarter of a head; a huge factor leaves the rest where it is."""
    n = HEAD_FULL // 2
    w.values("rope_freqs.weight", [1.0] * (n // 4) + [1e30] * (n - n // 4))


def _norms(w: Writer, p: str, n_embd: int) -> None:
    for name in ("attn_norm", "post_attention_norm", "ffn_norm"):
        w.norm(f"{p}{name}.weight", n_embd)
    w.norm(p + "post_ffw_norm.weight", n_embd, scale=GELU_SCALE)
    w.norm(p + "layer_output_scale.weight", 1)


def _feed_forward(w: Writer, p: str, n_embd: int) -> None:
    for name in ("gate", "up"):
        w.matrix(f"{p}ffn_{name}.weight", n_embd, N_FF)
    w.matrix(p + "ffn_down.weight", N_FF, n_embd)
