"""Writes a GGUF beside its place and moves it there once it is complete.

Owns the layout of what is written, and the refusals that have to come before hours of work: no room, a file that is
there already, the file that is read. Knows nothing about heads.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from pymtp.errors import ModelError
from pymtp.gguf.header import MAGIC
from pymtp.heads.metadata import Metadata
from pymtp.heads.tensors import Tensor

_VERSION = 3

OnWrite = Callable[[int, int], object]
"""Called with the bytes that are written, and how many there will be; an exception from it ends the writing."""


def check_target(target: Path, inputs: Iterable[Path], *, force: bool) -> None:
    """Refuse a file that is read, or one that is there without `force`, or a folder that is not. Raises ModelError.

    A pipe or a device is refused even with `force`, which would put a file in its place.
    """
    if target == Path("-"):
        raise ModelError("heads are not written to stdout; name a file")
    if any(_is_same(target, each) for each in inputs):
        raise ModelError(f"{target} is read and cannot be written as well; name another file")
    if target.is_dir():
        raise ModelError(f"{target} is a directory; name the file to write")
    if target.exists() and not target.is_file():
        raise ModelError(f"{target} is not a regular file; name the file to write")
    if not target.parent.is_dir():
        raise ModelError(f"{target.parent}: no such directory; make it first, or name another file")
    if os.path.lexists(target) and not force:
        raise ModelError(f"{target} exists; name another file, or replace it (force, --force)")


def write_gguf(target: Path, metadata: Metadata, tensors: Sequence[Tensor], on_write: OnWrite | None = None) -> None:
    """Write a GGUF to a path that `check_target` allows. Raises ModelError; no file is left then."""
    offsets, total = _layout(tensors, metadata.alignment)
    header = _header(metadata, tensors, offsets)
    total += len(header)
    free = shutil.disk_usage(target.parent).free
    if free < total:
        raise ModelError(f"{target} will have {total} bytes, but {target.parent} has room for {free}; free some")
    beside = target.with_name(f"{target.name}.{os.getpid()}.incomplete")
    try:
        with beside.open("xb") as file:
            file.write(header)
            _write_data(file, tensors, metadata.alignment, _Progress(on_write, len(header), total))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except OSError as error:
        problem = error.strerror or error
        raise ModelError(f"cannot write {target}: {problem}; free some room, or name another file") from error
    finally:
        with suppress(OSError):  # where its name is too long there is none
            beside.unlink()


class _Progress:
    def __init__(self, on_write: OnWrite | None, done: int, total: int) -> None:
        self._on_write, self._done, self._total = on_write, done, total

    def add(self, n_bytes: int) -> None:
        self._done += n_bytes
        if self._on_write:
            self._on_write(self._done, self._total)


def _write_data(file: IO[bytes], tensors: Sequence[Tensor], alignment: int, progress: _Progress) -> None:
    for tensor in tensors:
        n_written = 0
        for piece in tensor.pieces():
            file.write(piece)
            n_written += len(piece)
            progress.add(len(piece))
        assert n_written == tensor.size_bytes, tensor.name
        file.write(bytes(-n_written % alignment))


def _layout(tensors: Sequence[Tensor], alignment: int) -> tuple[list[int], int]:
    """Where the data of each tensor begins, and where it ends, padding included."""
    offsets, at = [], 0
    for tensor in tensors:
        offsets.append(at)
        at += tensor.size_bytes + -tensor.size_bytes % alignment
    return offsets, at


def _header(metadata: Metadata, tensors: Sequence[Tensor], offsets: Sequence[int]) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)), metadata.encoded()]
    for tensor, offset in zip(tensors, offsets, strict=True):
        name, n_dims = tensor.name.encode(), len(tensor.shape)
        parts.append(struct.pack("<Q", len(name)) + name)
        parts.append(struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, tensor.type_id, offset))
    header = b"".join(parts)
    return header + bytes(-len(header) % metadata.alignment)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
