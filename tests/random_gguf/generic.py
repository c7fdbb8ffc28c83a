"""Trunks without heads of their own, with a random head of pymtp's form in the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np

from pymtp.gguf.model_file import TRAINED_FOR, ModelFile

from . import blocks
from .gemma import GELU_SCALE
from .hybrids import HEAD, attention, write_granite_hybrid
from .side_files import Tensor, copied
from .writer import N_EMBD, N_FF, N_HEAD, N_KV, Metadata, Value, Writer

_KV = {key: blocks.EXPERTS[key] for key in ("expert_count", "expert_used_count", "expert_feed_forward_length")}
_METADATA: dict[str, dict[str, Value]] = {
    "qwen3moe": _KV,
    "gemma3": {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True, False, True],
        "rope.freq_base_swa": 1000.0,
    },
    "deepseek2": {**_KV, **blocks.MLA, "expert_shared_count": 1, "leading_dense_block_count": 3},
    "mellum": {**_KV, "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False, True]},
    "phi3": {"rope.scaling.original_context_length": 4096},
}
_HYBRIDS = {"granitehybrid": write_granite_hybrid}
TRUNKS = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "mellum", "phi3", "glm4", "deepseek2", *_HYBRIDS)


def write_trunk(path: Path, architecture: str, n_layer: int = 3, more: Metadata = MappingProxyType({})) -> Path:
    """A trunk of one of TRUNKS. `n_layer`, and `more` metadata: of those without recurrent layers."""
    if architecture in _HYBRIDS:
        return _HYBRIDS[architecture](path)
    shape: dict[str, Value] = {f"attention.{x}_length": HEAD for x in ("key", "value")}
    shape["rope.dimension_count"] = HEAD // 2 if architecture == "glm4" else HEAD
    w = Writer(path, architecture, n_layer, 0, {**shape, **_METADATA.get(architecture, {}), **more})
    blocks.embeddings(w, tied=architecture == "gemma3", scale=N_EMBD**-0.5 if architecture == "gemma3" else 1.0)
    for i in range(n_layer):
        _layer(w, architecture, f"blk.{i}.")
    return w.finish()


def write_generic(architecture: str) -> Callable[[Path], Path]:
    """A writer of such a trunk with a head."""

    def write(path: Path) -> Path:
        return add_head(write_trunk(path.with_suffix(".trunk"), architecture), path)

    return write


def add_head(trunk: Path, path: Path) -> Path:
    """Write `trunk` and a random head, with the attention of its last layer, to one file."""
    reader, rng = gguf.GGUFReader(trunk), np.random.default_rng(3)
    architecture = reader.fields["general.architecture"].contents()
    n_layer = reader.fields[f"{architecture}.block_count"].contents()
    n_head_k = reader.fields[f"{architecture}.attention.key_length"].contents()
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (N_HEAD * n_head_k, N_EMBD),
        "attn_k": (N_KV * n_head_k, N_EMBD),
        "attn_v": (N_KV * n_head_k, N_EMBD),
        "attn_output": (N_EMBD, N_HEAD * n_head_k),
    }
    if f"{architecture}.attention.key_length_mla" in reader.fields:  # more queries than the trunk has, and one key
        n_head = 2 * N_HEAD
        shapes = {
            "attn_q": (n_head * n_head_k, N_EMBD),
            "attn_k": (n_head_k, N_EMBD),
            "attn_output": (N_EMBD, n_head * blocks.KV_LORA),
        }
    shapes |= {
        "nextn.eh_proj": (N_EMBD, 2 * N_EMBD),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (N_FF, N_EMBD)),
        "ffn_down": (N_EMBD, N_FF),
        **dict.fromkeys(("attn_norm", "ffn_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"), (N_EMBD,)),
        **dict.fromkeys(("attn_q_norm", "attn_k_norm"), (n_head_k,)),
    }
    tensors = []
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        values = values * shape[1] ** -0.5 if len(shape) > 1 else 1 + 0.1 * values
        tensors.append(Tensor(f"blk.{n_layer}.{name}.weight", values.astype(np.float32)))
    changes: dict[str, str | int] = {
        f"{architecture}.block_count": n_layer + 1,
        f"{architecture}.nextn_predict_layers": 1,
        TRAINED_FOR: ModelFile(trunk).trunk_id,
    }
    copied(reader, path, changes, tensors)
    return path


def _layer(w: Writer, architecture: str, p: str) -> None:
    after = {"gemma3": ("post_attention_norm", "post_ffw_norm"), "glm4": ("post_attention_norm", "post_ffw_norm")}
    for name in ("attn_norm", "ffn_norm", *after.get(architecture, ())):
        # llama.cpp rounds what goes through GELU to F16
        w.norm(f"{p}{name}.weight", scale=GELU_SCALE if (architecture, name) == ("gemma3", "post_ffw_norm") else 1.0)
    n_q, n_kv = N_HEAD * HEAD, N_KV * HEAD
    if architecture == "phi3":
        w.matrix(p + "attn_qkv.weight", N_EMBD, n_q + 2 * n_kv)
        w.matrix(p + "attn_output.weight", n_q, N_EMBD)
    elif architecture == "deepseek2":
        blocks.latent_attention(w, p)
    else:
        attention(w, p)
    if architecture in ("qwen3", "qwen3moe", "gemma3", "mellum"):
        w.norm(p + "attn_q_norm.weight", HEAD)
        w.norm(p + "attn_k_norm.weight", HEAD)
    if architecture == "qwen2":
        for name, n in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            w.matrix(f"{p}attn_{name}.bias", n, scale=0.1)
    if architecture in ("phi3", "glm4"):  # and its gates
        w.matrix(p + "ffn_up.weight", N_EMBD, 2 * N_FF)
        w.matrix(p + "ffn_down.weight", N_FF, N_EMBD)
    elif architecture in ("qwen3moe", "mellum"):
        blocks.experts(w, p, bias="", shared=False)
    else:
        blocks.feed_forward(w, p)
