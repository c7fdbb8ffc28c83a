"""Writes a GGUF from parts of others: metadata bit for bit, and tensors a few megabytes at a time.

Owns the layout of what is written. A file gets its name when it is complete. The gguf package's writer wants
each value decoded and each tensor in memory as a whole.
"""

import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pymtp.errors import ModelError, explained
from pymtp.gguf.header import MAGIC, Shard, TensorInfo, padded, tensor_bytes
from pymtp.gguf.types import TENSOR_TYPES

PIECE_BYTES = 4 * 2**20
_VERSION, _UINT32, _STRING = 3, 4, 8

Piece = bytes | bytearray
Pieces = Callable[[], Iterator[Piece]]
"""The bytes of a tensor in order, some megabytes at a time. Raises ModelError where they cannot be read."""
OnWrite = Callable[[int, int], object]
"""Called with the bytes that are written, and how many there will be; an exception from it ends the writing."""


class Metadata:
    """Pairs of keys and values as bytes, in the order in which they are written: those of a file, and changes.

    What says that a file is one of several is left out.
    """

    def __init__(self, shard: Shard) -> None:
        alignment = shard.metadata.get("general.alignment", 32)
        assert isinstance(alignment, int)  # checked when the shard was read
        self.alignment = alignment
        with shard.path.open("rb") as file:
            header = file.read(shard.header_bytes)
        spans = {key: span for key, span in shard.spans.items() if not key.startswith("split.")}
        self.pairs = {key: header[start:end] for key, (start, end) in spans.items()}

    def set(self, key: str, value: int | str) -> None:
        """Have `value` as a uint32 or a text, in the place of the pair `key` if there is one."""
        is_number = isinstance(value, int)
        data = struct.pack("<II", _UINT32, value) if is_number else struct.pack("<I", _STRING) + _text(str(value))
        self.pairs[key] = _text(key) + data

    def header(self, tensors: "Sequence[Tensor]") -> tuple[bytes, int]:
        """What comes before the data of `tensors`, and the bytes of the whole file."""
        parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(self.pairs)), *self.pairs.values()]
        at = 0
        for tensor in tensors:
            n_dims = len(tensor.shape)
            parts += [_text(tensor.name), struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, tensor.type_id, at)]
            at += padded(tensor.size_bytes, self.alignment)
        header = b"".join(parts)
        begin = padded(len(header), self.alignment)
        return header.ljust(begin, b"\0"), begin + at


class Tensor(NamedTuple):
    """One tensor of a file that is going to be written. `shape`: the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    pieces: Pieces

    @property
    def size_bytes(self) -> int:
        return tensor_bytes(self.shape, self.type_id)


def stored(tensor: TensorInfo, piece_bytes: int = PIECE_BYTES) -> Tensor:
    """A tensor as it is in a file, in pieces of `piece_bytes`. Raises ModelError for a type whose size is not known."""
    if tensor.type_id not in TENSOR_TYPES:
        raise ModelError(f"{tensor.path}: {tensor.name} is of the unknown type {tensor.type_id}; use a newer pymtp")

    def pieces() -> Iterator[Piece]:
        left = tensor.size_bytes
        with explained(f"read {tensor.path}", "check the disk", ModelError), tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            while left > 0:
                piece = file.read(min(left, piece_bytes))
                if not piece:
                    raise ModelError(f"{tensor.path} became shorter while it was read; try again")
                left -= len(piece)
                yield piece

    return Tensor(tensor.name, tensor.shape, tensor.type_id, pieces)


def write_gguf(target: Path, metadata: Metadata, tensors: Sequence[Tensor], on_write: OnWrite | None = None) -> None:
    """Write a GGUF, in the place of a file that is there. Raises ModelError; no file is left then."""
    header, total = metadata.header(tensors)
    free = shutil.disk_usage(target.parent).free
    if free < total:
        raise ModelError(f"{target} will have {total} bytes, but {target.parent} has room for {free}; free some")
    partial = target.with_name(f"{target.name}.{os.getpid()}.incomplete")
    with explained(f"write {target}", "free some room, or name another file", ModelError):
        try:
            with partial.open("wb") as file:
                file.write(header)
                for tensor in tensors:
                    start = file.tell()
                    for piece in tensor.pieces():
                        file.write(piece)
                        if on_write:
                            on_write(file.tell(), total)
                    assert file.tell() - start == tensor.size_bytes, tensor.name
                    file.write(bytes(padded(tensor.size_bytes, metadata.alignment) - tensor.size_bytes))
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        finally:
            with suppress(OSError):  # where its name is too long there is none
                partial.unlink()


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
