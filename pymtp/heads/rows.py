"""Weights in another type: llama.cpp's own quantisation, a few megabytes at a time.

Owns which types there are, and what becomes of rows that a type's blocks do not fit. Knows no file.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pymtp.errors import ModelError, PymtpError, require
from pymtp.gguf.types import TENSOR_TYPES, WRITABLE_TYPES, TensorType
from pymtp.gguf.writer import Piece

if TYPE_CHECKING:  # slow to import, and not needed to quantise a file
    import numpy as np
    import numpy.typing as npt

_IDS = {kind.name.lower(): type_id for type_id, kind in TENSOR_TYPES.items()}

F32, F16, BF16 = _IDS["f32"], _IDS["f16"], _IDS["bf16"]

# As in llama-quantize, where the rows are no multiple of 256 numbers.
_SMALLER_BLOCKS = {"q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0", "iq4_xs": "iq4_nl", "q3_k": "q4_0", "q2_k": "q4_0"}


def type_id(name: str, parameter: str) -> int:
    """The ggml_type that is called `name`. Raises InvalidParameter about `parameter` if rows cannot become it."""
    require(name in WRITABLE_TYPES, parameter, f"one of {', '.join(WRITABLE_TYPES)}", name)
    return _IDS[name]


def fitting_type(kind: int, n_per_row: int) -> int | None:
    """`kind`, or the type in its place whose blocks fit rows of `n_per_row` numbers; None if there is none."""
    while n_per_row % TENSOR_TYPES[kind].block_elements:
        smaller = _SMALLER_BLOCKS.get(TENSOR_TYPES[kind].name.lower())
        if smaller is None:
            return None
        kind = _IDS[smaller]
    return kind


def rows_per_piece(n_per_row: int, piece_bytes: int) -> int:
    """How many rows to convert at once, so that they take about `piece_bytes` as numbers of 32 bits."""
    return max(1, piece_bytes // (4 * n_per_row))


def convert(
    pieces: "Iterable[Piece | npt.NDArray[np.float32]]", kinds: tuple[int, int], n_per_row: int, what: str
) -> Iterator[Piece]:
    """Rows of one type as rows of another; `kinds`: from, to. Each piece has whole rows.

    `what` they are, for errors. Raises ModelError for numbers that are not finite.
    """
    from pymtp.binding.library import ffi, lib
    from pymtp.binding.status import check

    sizes = [row_bytes(TENSOR_TYPES[kind], n_per_row) for kind in kinds]
    for piece in pieces:
        rows = ffi.from_buffer(piece)
        n_rows, rest = divmod(len(rows), sizes[0])
        assert rest == 0, what
        converted = bytearray(n_rows * sizes[1])
        try:
            check(lib.pymtp_convert_rows(*kinds, n_rows, n_per_row, rows, ffi.from_buffer(converted)))
        except PymtpError as error:
            raise ModelError(f"{what}: {error}; take another file") from error
        yield converted


def row_bytes(kind: TensorType, n_per_row: int) -> int:
    return n_per_row // kind.block_elements * kind.block_bytes
