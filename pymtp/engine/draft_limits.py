"""Which tokens a session's heads may propose: a part of the vocabulary, and banned tokens.

What is emitted is never limited by this: the target judges every draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import check
from pymtp.engine.handle import SessionHandle
from pymtp.errors import InvalidParameter
from pymtp.gguf.types import TENSOR_TYPES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pymtp.binding.arrays import Logits


class DraftLimits:
    """The limits of one session with `n_heads` heads and a vocabulary of `n_vocab` tokens."""

    def __init__(self, handle: SessionHandle, n_heads: int, n_vocab: int) -> None:
        self._handle, self._n_heads, self._n_vocab = handle, n_heads, n_vocab
        self._tokens: npt.NDArray[np.int64] | None = None  # None: the first n_tokens
        self.n_tokens = n_vocab
        """Tokens that drafts are taken from."""

    def limit_to_first(self, n: int | None) -> None:
        """Draft only the first `n` tokens of the vocabulary (rounded up to 32); None: all of it."""
        n_first = self._n_vocab if n is None else n
        check(lib.pymtp_session_limit_drafts(self._handle.native, n_first, ffi.NULL, -1, ffi.NULL))
        self._tokens = None
        self.n_tokens = n_first

    def limit_to(
        self, tokens: Sequence[int], matrices: Sequence[npt.NDArray[np.uint8]], type_id: int | None = None
    ) -> None:
        """Draft only `tokens`. `matrices`: for each head the rows of its output matrix, (len(tokens), bytes of a row).

        They are of its own type, or of the ggml_type `type_id`. See gguf.weights.output_rows.
        """
        import numpy as np

        rows = self._whole(matrices, len(tokens), type_id)
        ggml_type = -1 if type_id is None else type_id
        matrices_of = _pointers(rows)
        check(lib.pymtp_session_limit_drafts(self._handle.native, len(tokens), list(tokens), ggml_type, matrices_of))
        self._tokens = np.asarray(tokens)
        self.n_tokens = len(tokens)

    def requantize(self, kind: str, matrices: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Draft with output matrices of the type `kind` (q4_0, ...). Ends a limit.

        `matrices`: for each head its output matrix, (n_vocab, bytes of a row).
        """
        rows, ggml_type = self._whole(matrices, self._n_vocab), getattr(lib, f"GGML_TYPE_{kind.upper()}")
        check(lib.pymtp_session_requantize(self._handle.native, ggml_type, _pointers(rows)))
        self._tokens, self.n_tokens = None, self._n_vocab

    def ban(self, tokens: Sequence[int]) -> None:
        """Fused drafts never propose these tokens; replaces those of the call before."""
        check(lib.pymtp_session_ban_tokens(self._handle.native, len(tokens), list(tokens)))

    def widen(self, logits: Logits) -> Logits:
        """Rows of limited logits as rows of the whole vocabulary, (rows, n_vocab), -inf for tokens left out."""
        if logits.shape[1] == self._n_vocab:
            return logits
        import numpy as np

        everything = np.full((len(logits), self._n_vocab), -np.inf, np.float32)
        everything[:, self._tokens if self._tokens is not None else slice(logits.shape[1])] = logits
        return everything

    def _whole(
        self, matrices: Sequence[npt.NDArray[np.uint8]], n_rows: int, type_id: int | None = None
    ) -> list[npt.NDArray[np.uint8]]:
        """The heads' matrices, checked and each in one piece."""
        import numpy as np

        expected = [(n_rows, self._row_bytes(head, type_id)) for head in range(self._n_heads)]
        shapes = [matrix.shape for matrix in matrices]
        if shapes != expected or any(matrix.dtype != np.uint8 for matrix in matrices):
            raise InvalidParameter("matrices", f"uint8 of shapes {expected}", value=shapes)
        return [np.ascontiguousarray(matrix) for matrix in matrices]

    def _row_bytes(self, head: int, type_id: int | None) -> int:
        """Bytes of a row of the head's output matrix, as it is or as it would be of another type."""
        kind, n_bytes = ffi.new("int32_t *"), ffi.new("int64_t *")
        check(lib.pymtp_session_output_type(self._handle.native, head, kind, n_bytes))
        if type_id is None:
            return int(n_bytes[0])
        own, other = TENSOR_TYPES[kind[0]], TENSOR_TYPES[type_id]
        n_elements = int(n_bytes[0]) // own.block_bytes * own.block_elements
        return n_elements // other.block_elements * other.block_bytes


def _pointers(matrices: Sequence[npt.NDArray[np.uint8]]) -> Any:
    """Pointers for the native side, valid as long as the matrices live."""
    return ffi.new("void *[]", [ffi.cast("void *", matrix.ctypes.data) for matrix in matrices])
