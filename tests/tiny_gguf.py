"""Writes GGUFs of a few hundred bytes: sound headers, tensors that mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np


def write(
    path: Path,
    *,
    architecture: str = "glm4moe",
    n_layer: int = 2,
    declared: int = 0,
    heads: int = 0,
    n_vocab: int = 5,
    chat_template: str | None = None,
    kind: str = "model",
    split: tuple[int, int] | None = None,
    n_blocks: int | None = None,
    sampling: Mapping[str, float | int | str] | None = None,
    bos: int | None = None,
) -> Path:
    """Write a model of `n_layer` layers that declares `declared` MTP heads and holds `heads` of them.

    `n_blocks`: the number of layers in the metadata, if it is a wrong one; `sampling`: values of general.sampling.*.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.add_name("tiny")
    writer.add_block_count(n_layer + declared if n_blocks is None else n_blocks)
    writer.add_context_length(64)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_token_list([f"token{i}" for i in range(n_vocab)])
    writer.add_uint32(f"{architecture}.nextn_predict_layers", declared)
    if bos is not None:
        writer.add_int32("tokenizer.ggml.bos_token_id", bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for key, value in (sampling or {}).items():
        kinds = {float: writer.add_float32, int: writer.add_int32, str: writer.add_string}
        kinds[type(value)](f"general.sampling.{key}", value)  # type: ignore[arg-type]
    if split is not None:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
    names = _tensor_names(n_layer, heads)
    for name in names[n_layer:] if split and split[0] else names:  # a later part has the heads
        writer.add_tensor(name, np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensor_names(n_layer: int, heads: int) -> list[str]:
    trunk = [f"blk.{i}.attn_norm.weight" for i in range(n_layer)]
    return trunk + [f"blk.{n_layer + i}.nextn.eh_proj.weight" for i in range(heads)]
