"""A model in two files, as llama.cpp's converter writes it with --no-mtp and --mtp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

SHARED = ("token_embd.weight", "output_norm.weight", "output.weight")


def split_heads(model: Path, trunk: Path, heads: Path) -> None:
    """Write `model` as `trunk`, without heads, and `heads`, with all metadata and a copy of what both use."""
    reader = gguf.GGUFReader(model)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields["general.architecture"].contents()
    n_all = fields[f"{architecture}.block_count"].contents()
    n_heads = fields[f"{architecture}.nextn_predict_layers"].contents()
    of_heads = tuple(f"blk.{n_all - n_heads + i}." for i in range(n_heads))

    everything = {name: (field.contents(), field.types) for name, field in fields.items()}
    without = dict(everything)
    del without[f"{architecture}.nextn_predict_layers"]
    for name, (value, types) in everything.items():
        if name == f"{architecture}.block_count":
            without[name] = value - n_heads, types
        elif name.startswith(f"{architecture}.") and isinstance(value, list) and len(value) == n_all:
            without[name] = value[:-n_heads], types
    _write(trunk, without, [t for t in reader.tensors if not t.name.startswith(of_heads)])
    _write(heads, everything, [t for t in reader.tensors if t.name.startswith((*of_heads, *SHARED))])


def _write(path: Path, metadata: dict[str, tuple[Any, list[gguf.GGUFValueType]]], tensors: list[Any]) -> None:
    writer = gguf.GGUFWriter(path, metadata["general.architecture"][0])
    for name, (value, types) in metadata.items():
        if name != "general.architecture":
            writer.add_key_value(name, value, types[0], types[-1] if len(types) > 1 else None)
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
