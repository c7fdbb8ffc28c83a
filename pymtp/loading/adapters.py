"""LoRA adapters: what their files say, and the handles of those that are loaded for a model.

Knows files and llama.cpp's loader; neither sessions, nor which adapters are applied.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymtp.binding.library import error_message, ffi, lib, model_pointer
from pymtp.errors import ModelError, RemoteError
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.header import Shard
from pymtp.gguf.model_file import layer_of
from pymtp.gguf.shards import read_single
from pymtp.gguf.weights import fingerprint
from pymtp.loading.params import ModelParams


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter that is loaded for a model."""

    path: Path
    scale: float
    """The scale for texts that do not ask for another."""
    task_name: str
    """What it is for, if its file says so; else ""."""
    prompt_prefix: str
    """What prompts begin with, if its file says so; else ""."""
    fingerprint: str = field(repr=False)
    """A hash of its weights."""
    native: Any = field(repr=False, compare=False)
    """llama.cpp's handle, which is freed with the model."""


def check_adapters(info: GgufInfo, params: ModelParams) -> list[Shard]:
    """The adapters' files, before the model is loaded. Raises ModelError for one that is no adapter of it."""
    files = []
    for path, _ in params.adapters:
        file = read_single(Path(path))
        kind, made_for = (file.metadata.get(f"general.{key}") for key in ("type", "architecture"))
        if kind != "adapter" or file.metadata.get("adapter.type") != "lora":
            what = "a model" if kind in (None, "model") else f"of the type {kind!r}"
            raise ModelError(f"{path} is no LoRA adapter but {what}; llama.cpp's convert_lora_to_gguf.py makes one")
        if made_for != info.architecture:
            raise ModelError(f"{path} is an adapter for {made_for} models, and {info.path.name} is {info.architecture}")
        files.append(file)
    return files


def adapt_heads(info: GgufInfo, files: Sequence[Shard]) -> bool:
    """Whether any of the adapters is for the MTP heads too."""
    layers = [layer_of(tensor.name) for file in files for tensor in file.tensors]
    return any(layer >= info.n_layer for layer in layers if layer is not None)


def load_adapters(model: object, params: ModelParams, files: Sequence[Shard]) -> tuple[LoraAdapter, ...]:
    """Load the adapters for a loaded model. Raises ModelError for one that does not fit, and names the tensor."""
    found = []
    for file, (_, scale) in zip(files, params.adapters, strict=True):
        native = ffi.new("struct llama_adapter_lora **")
        status = lib.pymtp_adapter_load(model_pointer(model), os.fsencode(file.path), native)
        if status == lib.PYMTP_LOST:
            raise RemoteError(error_message())
        if status != lib.PYMTP_OK:
            raise ModelError(f"{file.path} cannot be applied to the model: {error_message()}")
        task, prefix = (str(file.metadata.get(f"adapter.lora.{key}", "")) for key in ("task_name", "prompt_prefix"))
        found.append(LoraAdapter(file.path, scale, task, prefix, fingerprint([file]), native[0]))
    return tuple(found)
