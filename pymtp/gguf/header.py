"""The binary layout of a GGUF header: metadata values and tensor infos.

Owns byte offsets. Reads through a memory map, keeps the place of an array instead of its elements
and never touches tensor data, so the cost is that of skipping the vocabulary (tens of milliseconds),
whatever the size of the file. The gguf package's reader makes an object of every array element, which
takes seconds for 150,000 tokens. Knows nothing about models: model_file.py interprets the values.
"""

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pymtp.gguf.types import TENSOR_TYPES

MAGIC = b"GGUF"
MAX_VALUES, MAX_TENSORS = 4096, 65536
"""The most that a header has. Real ones have some hundred, and some thousand; memory for more is not wanted."""
_VALUE_BYTES, _TENSOR_BYTES = 13, 24
"""The fewest bytes that a value, and a tensor, take in a file."""
MAX_TEXT_BYTES = 2**18
"""The longest text that is kept. Longer ones are cut: those that pymtp looks at are much shorter."""
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_NUMBERS = zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True)
SCALARS = {number: struct.Struct(f"<{letter}") for number, letter in _NUMBERS}
"""How values are stored, by the number of their type in a header."""
_U32, _U64 = SCALARS[4], SCALARS[10]


class HeaderError(Exception):
    """The bytes are not a GGUF header that this reader understands. The message says what the file is, and the fix."""


class HeaderTruncated(HeaderError):
    """The file ends inside the header."""

    def __init__(self) -> None:
        super().__init__("is truncated: it ends inside its header; download it again")


@dataclass(frozen=True)
class ArrayLength:
    """Stands for an array in the metadata whose elements were skipped. See `read_numbers`."""

    length: int
    type_id: int = field(default=0, compare=False)
    """The type of the elements."""
    offset: int = field(default=0, compare=False)
    """Where the first element is, in bytes from the start of the file."""


Value = int | float | str | ArrayLength


class TensorInfo(NamedTuple):
    """One tensor as the header lists it, and where its data is: in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    path: Path

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The size of its data; 0 if its type is not known: the loader has the last word."""
        return tensor_bytes(self.shape, self.type_id)


def tensor_bytes(shape: tuple[int, ...], type_id: int) -> int:
    kind = TENSOR_TYPES.get(type_id)
    return padded(math.prod(shape), kind.block_elements) // kind.block_elements * kind.block_bytes if kind else 0


@dataclass(frozen=True)
class Shard:
    """One file of a model, as its header describes it."""

    path: Path
    size_bytes: int
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    header_bytes: int
    """What comes before the data of tensors, without padding."""
    spans: dict[str, tuple[int, int]]
    """By key, the first byte of its pair in the file, and the first after it: for copies, bit for bit."""


def read_header(path: Path) -> Shard:
    """Read the header of a file that is not empty. Raises OSError and HeaderError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Cursor(data).shard(path)
        except (struct.error, OverflowError):
            raise HeaderTruncated from None


def read_numbers(path: Path, array: ArrayLength, n_max: int) -> list[int | float]:
    """Read the first `n_max` numbers of an array in the header of the file at `path`; [] if it holds texts.

    Raises OSError.
    """
    form = SCALARS.get(array.type_id)
    if form is None:
        return []
    with path.open("rb") as file:
        file.seek(array.offset)
        return [value for (value,) in form.iter_unpack(file.read(form.size * min(array.length, n_max)))]


class _Cursor:
    """A position in the mapped file; each method reads one thing and moves past it."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)

    def shard(self, path: Path) -> Shard:
        _check_version(self._number(_U32))
        n_tensors, n_values = self._number(_U64), self._number(_U64)
        if n_values * _VALUE_BYTES + n_tensors * _TENSOR_BYTES > len(self._data):
            raise HeaderTruncated  # it names more of them than the file has room for
        if n_values > MAX_VALUES or n_tensors > MAX_TENSORS:
            raise _damaged(f"{n_values} metadata values and {n_tensors} tensors")
        metadata: dict[str, Value] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(n_values):
            start = self._at
            key, value = self._string(), self._value(self._number(_U32))
            metadata[key], spans[key] = value, (start, self._at)
        listed = [self._tensor_info() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _damaged(f"alignment {alignment}")
        start = padded(self._at, alignment)
        tensors = tuple(TensorInfo(name, shape, kind, start + offset, path) for name, shape, kind, offset in listed)
        return Shard(path, len(self._data), metadata, tensors, self._at, spans)

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _string(self) -> str:
        length: int = self._number(_U64)
        end = self._at + length
        if end > len(self._data):
            raise HeaderTruncated
        text = self._data[self._at : min(end, self._at + MAX_TEXT_BYTES)].decode("utf-8", errors="replace")
        self._at = end
        return text

    def _value(self, type_id: int) -> Value:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._skip_array()
        value: int | float = self._number(_scalar(type_id))
        return value

    def _skip_array(self) -> ArrayLength:
        type_id, length = self._number(_U32), self._number(_U64)
        array = ArrayLength(length, type_id, self._at)
        if type_id == _STRING:
            # this runs once for each token of the vocabulary: locals, no method calls
            unpack, data, at = _U64.unpack_from, self._data, self._at
            for _ in range(length):
                at += 8 + unpack(data, at)[0]
            self._at = at
        else:
            self._at += _scalar(type_id).size * length
        if self._at > len(self._data):
            raise HeaderTruncated
        return array

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type, and offset in the data of a tensor."""
        name, n_dims = self._string(), self._number(_U32)
        if n_dims > _MAX_DIMS:
            raise _damaged(f"tensor {name!r} has {n_dims} dimensions")
        shape = tuple([self._number(_U64) for _ in range(n_dims)])
        return name, shape, self._number(_U32), self._number(_U64)


def padded(n: int, alignment: int) -> int:
    """The least multiple of `alignment` that is `n` or more."""
    return -(-n // alignment) * alignment


def _check_version(version: int) -> None:
    if version in (2, 3):
        return
    if version and version & 0xFFFF == 0:  # a small number, its bytes in the other order
        raise HeaderError("is a big-endian GGUF; use the model's little-endian file, or convert it")
    if version == 1:
        raise HeaderError("is a GGUF of version 1, which is no longer supported; convert the model again")
    raise HeaderError(f"is a GGUF of version {version}, but only 2 and 3 are supported; use a newer pymtp")


def _scalar(type_id: int) -> struct.Struct:
    if type_id not in SCALARS:
        raise _damaged(f"unknown type {type_id} of a metadata value")
    return SCALARS[type_id]


def _damaged(problem: str) -> HeaderError:
    return HeaderError(f"has a damaged header ({problem}); download it again")
