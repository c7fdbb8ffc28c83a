"""Tensors of a head as rows of a checkpoint's tensors.

Owns how they are read, piece by piece. Knows no names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymtp.gguf.writer import PIECE_BYTES
from pymtp.heads.checkpoint import CheckpointTensor
from pymtp.heads.rows import rows_per_piece

if TYPE_CHECKING:
    from pymtp.heads.checkpoint import Rows


@dataclass(frozen=True)
class Span:
    """Some rows of a tensor of the checkpoint, as they are or with rows and columns exchanged.

    `stride`: from one of the rows to the next.
    """

    source: CheckpointTensor
    first: int
    n_rows: int
    is_transposed: bool = False
    stride: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of a row, and rows, as they are written."""
        n_columns = self.source.shape[-1]
        return (self.n_rows, n_columns) if self.is_transposed else (n_columns, self.n_rows)

    def pieces(self) -> "Iterator[Rows]":
        import numpy as np

        if self.is_transposed:
            yield np.ascontiguousarray(self.source.rows(self.first, self.n_rows).T)
            return
        step = max(1, rows_per_piece(self.source.shape[-1], PIECE_BYTES) // self.stride)
        for done in range(0, self.n_rows, step):
            n = min(step, self.n_rows - done)
            rows = self.source.rows(self.first + done * self.stride, (n - 1) * self.stride + 1)
            yield np.ascontiguousarray(rows[:: self.stride])


@dataclass(frozen=True)
class Beside:
    """Rows of two tensors of one shape, side by side."""

    left: Span
    right: Span

    @property
    def source(self) -> CheckpointTensor:
        """The one whose type counts."""
        return self.left.source

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of a row, and rows, as they are written."""
        n_columns, n_rows = self.left.shape
        return 2 * n_columns, n_rows

    def pieces(self) -> "Iterator[Rows]":
        import numpy as np

        for left, right in zip(self.left.pieces(), self.right.pieces(), strict=True):
            yield np.concatenate([left, right], axis=1)


@dataclass(frozen=True)
class Made:
    """A tensor of a head, made of spans that follow each other. `addend`: to each of its numbers."""

    spans: Sequence[Span | Beside]
    shape: tuple[int, ...]
    addend: float = 0.0

    def pieces(self) -> "Iterator[Rows]":
        for span in self.spans:
            for rows in span.pieces():
                yield rows + self.addend if self.addend else rows


def whole(tensor: CheckpointTensor) -> Span:
    return Span(tensor, 0, tensor.n_rows)
