"""A checkpoint of Hugging Face: config.json, and tensors in safetensors files; and tensors of a head as rows of these.

Reads the headers of the files that are asked for, and maps tensors, of which some rows at a time become numbers of 32
bits. Files that hold nothing that is asked for need not be there. Knows no model.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from pymtp.errors import ModelError, explained
from pymtp.gguf.writer import PIECE_BYTES
from pymtp.heads.quantize import rows_per_piece

Rows = npt.NDArray[np.float32]

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_MAX_JSON_BYTES = 100 * 2**20  # that of safetensors itself
_DTYPES = {name: np.dtype(kind) for name, kind in (("F32", "<f4"), ("F16", "<f2"), ("BF16", "<u2"), ("F8_E4M3", "u1"))}
_SCALE = "_scale_inv"


@dataclass(frozen=True)
class CheckpointTensor:
    """Where a tensor is. `shape`: the fastest dimension last, as in PyTorch.

    FP8: `scale` holds a number for each block of `block` rows and columns.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    scale: "CheckpointTensor | None" = None
    block: tuple[int, int] = (1, 1)

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    def rows(self) -> npt.NDArray[Any]:
        """All rows, (n_rows, shape[-1]): mapped, as they are stored, for `as_numbers`; of FP8 the numbers."""
        return _stored(self) if self.scale is None else _scaled(self)


def _stored(tensor: CheckpointTensor) -> npt.NDArray[Any]:
    shape = tensor.n_rows, tensor.shape[-1]
    with explained(f"read {tensor.path}", "check the disk", ModelError):
        return np.memmap(tensor.path, _DTYPES[tensor.dtype], "r", tensor.offset, shape)


@lru_cache(maxsize=1)  # several spans of a tensor follow each other
def _scaled(tensor: CheckpointTensor) -> Rows:
    assert tensor.scale is not None
    stored, (height, width) = _stored(tensor), tensor.block
    scales = np.repeat(np.repeat(_stored(tensor.scale), height, axis=0), width, axis=1)
    numbers: Rows = _fp8_numbers()[stored] * scales[: stored.shape[0], : stored.shape[1]]
    return numbers


@dataclass(frozen=True)
class Span:
    """Some rows of a tensor, or of several of one shape side by side, as they are or with rows and columns exchanged.

    `end` None: up to the last one; `stride`: from one of the rows to the next.
    """

    sources: tuple[CheckpointTensor, ...]
    first: int = 0
    end: int | None = None
    stride: int = 1
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of a row, and rows, as they are written."""
        n_rows = len(range(self.sources[0].n_rows)[self.first : self.end : self.stride])
        n_columns = sum(source.shape[-1] for source in self.sources)
        return (n_rows, n_columns) if self.is_transposed else (n_columns, n_rows)

    def pieces(self) -> Iterator[Rows]:
        picked = [source.rows()[self.first : self.end : self.stride] for source in self.sources]
        parts = [rows.T if self.is_transposed else rows for rows in picked]
        n_columns, n_rows = self.shape
        step = rows_per_piece(n_columns, PIECE_BYTES)
        for at in range(0, n_rows, step):
            yield np.concatenate([as_numbers(rows[at : at + step]) for rows in parts], axis=1)


@dataclass(frozen=True)
class Made:
    """A tensor of a head, made of spans that follow each other. `addend`: to each of its numbers."""

    spans: Sequence[Span]
    shape: tuple[int, ...]
    addend: float = 0.0

    def pieces(self) -> Iterator[Rows]:
        for span in self.spans:
            for rows in span.pieces():
                yield rows + self.addend if self.addend else rows


class Checkpoint:
    """The checkpoint in `folder`. Raises ModelError for one that is not there, or damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise ModelError(f"{folder}: no such directory; name the folder of a checkpoint, with its config.json")
        self.config: Mapping[str, Any] = self._json("config.json")
        self._files: dict[Path, dict[str, CheckpointTensor]] = {}

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The names of all tensors, and the files that they are in."""
        if not (self.folder / INDEX).is_file():
            return dict.fromkeys(self._listed(self.folder / SINGLE), SINGLE)
        names = self._json(INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(_is_file_name(name) for name in names.values()):
            raise ModelError(f"{self.folder / INDEX} is damaged: it does not name the files of tensors; get it again")
        return names

    def tensor(self, name: str) -> CheckpointTensor:
        """Look one of `names` up. Raises ModelError: for types that are not numbers of their own too."""
        listed = self._one(name)
        if listed.dtype not in _DTYPES:
            raise ModelError(f"{listed.path}: {name} is of the type {listed.dtype}; get the checkpoint in BF16")
        if 0 in (listed.shape or (0,)):
            raise ModelError(f"{listed.path}: {name} has the shape {list(listed.shape)}; get the checkpoint again")
        return self._with_scale(name, listed) if listed.dtype == "F8_E4M3" else listed

    def _with_scale(self, name: str, listed: CheckpointTensor) -> CheckpointTensor:
        quantization = self.config.get("quantization_config")
        block = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
        scale = self._one(name + _SCALE) if name + _SCALE in self.names else None
        if scale and scale.dtype == "F32" and len(listed.shape) == 2 and _is_block(block):
            height, width = block
            if scale.shape == (-(-listed.shape[0] // height), -(-listed.shape[1] // width)):
                return replace(listed, scale=scale, block=(height, width))
        raise ModelError(f"{listed.path}: {name} is FP8 without scales of a known kind; get the checkpoint in BF16")

    def _one(self, name: str) -> CheckpointTensor:
        path = self.folder / self.names[name]
        found = self._listed(path).get(name)
        if found is None:
            raise ModelError(f"{path} does not hold {name}, although {INDEX} says so; get both again")
        return found

    def _listed(self, path: Path) -> dict[str, CheckpointTensor]:
        if path not in self._files:
            try:
                with explained(f"read {path}", "get it, and check its path", ModelError):
                    self._files[path] = dict(_read_header(path))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error) as error:
                raise ModelError(f"{path} is damaged ({error}); get it again") from error
        return self._files[path]

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            with explained(f"read {path}", "name the checkpoint's folder", ModelError):
                if path.stat().st_size > _MAX_JSON_BYTES:
                    raise ValueError("too large")
                content = json.loads(path.read_text("utf-8"))
            if not isinstance(content, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path} is damaged ({error}); get it again") from error
        return content


def _read_header(path: Path) -> Iterator[tuple[str, CheckpointTensor]]:
    with path.open("rb") as file:
        size_bytes = path.stat().st_size
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(_MAX_JSON_BYTES, size_bytes - 8):
            raise ValueError("its header reaches beyond its end")
        header = json.loads(file.read(length))
    start = 8 + length
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(f"{name} has no shape")
        if start + end > size_bytes:
            raise ValueError(f"{name} reaches beyond its end")
        kind = _DTYPES.get(entry["dtype"])
        if kind is not None and end - begin != kind.itemsize * math.prod(shape):
            raise ValueError(f"{name} has another size than its shape")
        yield name, CheckpointTensor(name, path, entry["dtype"], shape, start + begin)


def _is_block(block: Any) -> TypeGuard[list[int]]:
    return isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def as_numbers(rows: npt.NDArray[Any]) -> Rows:
    """Stored rows as numbers of 32 bits; those of 16 bits that are no floats of NumPy's are BF16."""
    return (rows.astype(np.uint32) << 16).view(np.float32) if rows.dtype == np.uint16 else rows.astype(np.float32)


def _fp8_numbers() -> Rows:
    """The number of each byte: 1 bit of sign, 4 of exponent, 3 of mantissa; no infinities."""
    byte = np.arange(256)
    sign, exponent, mantissa = np.where(byte & 128, -1.0, 1.0), byte >> 3 & 15, byte & 7
    numbers = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    numbers[(byte & 127) == 127] = np.nan
    return (sign * numbers).astype(np.float32)
