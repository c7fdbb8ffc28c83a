"""A model in two files, as llama.cpp's converter writes it with --no-mtp and --mtp; heads that are trimmed; shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

SHARED = ("token_embd.weight", "output_norm.weight", "output.weight", "output_hc_")


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
    without.pop("pymtp.head.trunk", None)
    for name, (value, types) in everything.items():
        if name == f"{architecture}.block_count":
            without[name] = value - n_heads, types
        elif name.startswith(f"{architecture}.") and isinstance(value, list) and len(value) == n_all:
            without[name] = value[:-n_heads], types
    _write(trunk, without, [t for t in reader.tensors if not t.name.startswith(of_heads)])
    _write(heads, everything, [t for t in reader.tensors if t.name.startswith((*of_heads, *SHARED))])


def without_tensors(model: Path, path: Path, part: str) -> Path:
    """Write `model` without the tensors whose names have `part` in them."""
    reader = gguf.GGUFReader(model)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    metadata = {name: (field.contents(), field.types) for name, field in fields.items()}
    _write(path, metadata, [tensor for tensor in reader.tensors if part not in tensor.name])
    return path


def write_shards(model: Path, folder: Path, n: int) -> list[Path]:
    """Write `model` in `n` files, as llama-gguf-split does: the first one has the metadata."""
    reader, kinds = gguf.GGUFReader(model), gguf.GGUFValueType
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    metadata = {name: (field.contents(), field.types) for name, field in fields.items()}
    paths = [folder / f"{model.stem}-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]
    for i, path in enumerate(paths):
        own = metadata if i == 0 else {"general.architecture": metadata["general.architecture"]}
        numbers = {"no": (i, [kinds.UINT16]), "count": (n, [kinds.UINT16])}
        numbers["tensors.count"] = (len(reader.tensors), [kinds.INT32])
        _write(path, own | {f"split.{key}": value for key, value in numbers.items()}, list(reader.tensors)[i::n])
    return paths


def copied(reader: gguf.GGUFReader, path: Path, changes: dict[str, str | int], more: Sequence[Tensor]) -> None:
    """Write the file that `reader` has read with other metadata, and more tensors."""
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    metadata = {name: (field.contents(), field.types) for name, field in fields.items()}
    for key, value in changes.items():
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        metadata[key] = value, [kind]
    _write(path, metadata, [*reader.tensors, *more])


class Tensor(NamedTuple):
    """What a file gets of a tensor."""

    name: str
    data: Any
    tensor_type: gguf.GGMLQuantizationType | None = None


def trim_heads(
    heads: Path,
    path: Path,
    tokens: Sequence[int],
    *,
    kind: type = np.int64,
    to: Any = None,
    n_rows: int | None = None,
) -> None:
    """Write `heads` with output matrices for `tokens` only, which d2t lists as numbers of that kind.

    `to`: the ggml type of the matrices; that of `heads` if it is None. `n_rows`: of the matrices, if fewer.
    """
    reader = gguf.GGUFReader(heads)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors: list[Any] = [Tensor("d2t", np.array(tokens, kind))]
    for tensor in reader.tensors:
        if tensor.name == "output.weight" or "shared_head_head" in tensor.name:
            rows = tensor.data[[token % len(tensor.data) for token in tokens[:n_rows]]]
            if to is not None:
                rows = gguf.quants.quantize(gguf.quants.dequantize(rows, tensor.tensor_type), to)
            tensor = Tensor(tensor.name, rows, tensor.tensor_type if to is None else to)
        tensors.append(tensor)
    _write(path, {name: (field.contents(), field.types) for name, field in fields.items()}, tensors)


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
