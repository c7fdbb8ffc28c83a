"""A tensor that can be written: what a header says of it, and where its bytes come from, piece by piece.

Knows files and bytes; neither heads nor quantisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pymtp.errors import ModelError
from pymtp.gguf.header import TensorInfo
from pymtp.gguf.shards import Shard, data_offset, tensor_bytes
from pymtp.gguf.types import TENSOR_TYPES

PIECE_BYTES = 4 * 2**20

Piece = bytes | bytearray
Pieces = Callable[[], Iterator[Piece]]
"""The bytes of a tensor in order, some megabytes at a time. Raises ModelError where they cannot be read."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file that is going to be written. `shape`: the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    pieces: Pieces

    @property
    def size_bytes(self) -> int:
        """Of its data."""
        return tensor_bytes(TensorInfo(self.name, self.shape, self.type_id, 0))


def stored(shard: Shard, tensor: TensorInfo, piece_bytes: int = PIECE_BYTES) -> Tensor:
    """A tensor as it is in a file, in pieces of `piece_bytes`. Raises ModelError for a type whose size is not known."""
    if tensor.type_id not in TENSOR_TYPES:
        raise ModelError(f"{shard.path}: {tensor.name} is of the unknown type {tensor.type_id}; use a newer pymtp")
    return Tensor(tensor.name, tensor.shape, tensor.type_id, lambda: _pieces(shard, tensor, piece_bytes))


def _pieces(shard: Shard, tensor: TensorInfo, piece_bytes: int) -> Iterator[Piece]:
    left = tensor_bytes(tensor)
    try:
        with shard.path.open("rb") as file:
            file.seek(data_offset(shard, tensor))
            while left > 0:
                piece = file.read(min(left, piece_bytes))
                if not piece:
                    raise ModelError(f"{shard.path} became shorter while it was read; try again")
                left -= len(piece)
                yield piece
    except OSError as error:
        raise ModelError(f"cannot read {shard.path}: {error.strerror or error}") from error
