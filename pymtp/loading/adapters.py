"""LoRA adapters: what their files say, and the handles of those that are loaded for a model.

Knows files and llama.cpp's loader; neither sessions, nor which adapters are applied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import error_message
from pymtp.binding.types import model_pointer
from pymtp.errors import ModelError, RemoteError
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.shards import read_shards
from pymtp.gguf.weights import fingerprint
from pymtp.loading.params import ModelParams

_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter that is loaded for a model."""

    path: Path
    scale: float
    """With which texts apply it that do not say otherwise."""
    task_name: str
    """What it is for, if its file says so; else ""."""
    prompt_prefix: str
    """What prompts begin with, if its file says so; else ""."""
    fingerprint: str = field(repr=False)
    """Of its weights."""
    native: Any = field(repr=False, compare=False)
    """llama.cpp's handle, which is freed with the model."""


def check_adapters(info: GgufInfo, params: ModelParams) -> bool:
    """Whether any of the adapters is for the MTP heads too, before the model is loaded.

    Raises ModelError for a file that is no adapter of the model.
    """
    of_heads = False
    for path, _ in params.adapters:
        metadata, names = _header(path)
        kind = metadata.get("general.type")
        if kind != "adapter" or metadata.get("adapter.type") != "lora":
            what = "a model" if kind in (None, "model") else f"of the type {kind!r}"
            raise ModelError(f"{path} is no LoRA adapter but {what}; llama.cpp's convert_lora_to_gguf.py makes one")
        if metadata.get("general.architecture") != info.architecture:
            made_for = metadata.get("general.architecture")
            raise ModelError(f"{path} is an adapter for {made_for} models, and {info.path.name} is {info.architecture}")
        layers = [int(found[1]) for name in names if (found := _BLOCK.match(name))]
        of_heads |= any(layer >= info.n_layer for layer in layers)
    return of_heads


def load_adapters(model: object, params: ModelParams) -> tuple[LoraAdapter, ...]:
    """Load the adapters for a loaded model. Raises ModelError for one that does not fit, and names the tensor."""
    return tuple(_load(model, Path(path), scale) for path, scale in params.adapters)


def _load(model: object, path: Path, scale: float) -> LoraAdapter:
    native = ffi.new("struct llama_adapter_lora **")
    status = lib.pymtp_adapter_load(model_pointer(model), os.fsencode(path), native)
    if status == lib.PYMTP_LOST:
        raise RemoteError(error_message())
    if status != lib.PYMTP_OK:
        raise ModelError(f"{path} cannot be applied to the model: {error_message()}")
    metadata, _ = _header(path)
    task, prefix = (str(metadata.get(f"adapter.lora.{key}", "")) for key in ("task_name", "prompt_prefix"))
    return LoraAdapter(path, scale, task, prefix, fingerprint(path), native[0])


def _header(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Sequence[str]]:
    (file,) = read_shards(Path(path))[:1]
    return dict(file.header.metadata), [tensor.name for tensor in file.header.tensors]
