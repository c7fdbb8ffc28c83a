"""Which tokens a session's heads may propose: a part of the vocabulary, and banned tokens.

What is emitted is never limited by this: the target judges every draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymtp.binding.library import check, ffi, lib
from pymtp.engine.handle import SessionHandle
from pymtp.errors import InvalidParameter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pymtp.binding.arrays import Logits


class DraftLimits:
    """The part of a session that limits what its heads propose."""

    _handle: SessionHandle
    n_heads: int
    n_vocab: int
    n_draft_vocab: int
    _draft_tokens: npt.NDArray[np.int64] | None = None  # None: the first n_draft_vocab

    def limit_drafts(self, n: int | None) -> None:
        """Draft only the first `n` tokens of the vocabulary (rounded up to 32); None: all of it.

        The heads then multiply that much less. What is emitted is not limited.
        """
        n_first = self.n_vocab if n is None else n
        check(lib.pymtp_session_limit_drafts(self._handle.native, n_first, ffi.NULL, -1, -1, ffi.NULL, ffi.NULL))
        self._draft_tokens, self.n_draft_vocab = None, n_first

    def limit_drafts_to(
        self,
        tokens: Sequence[int],
        matrices: Sequence[npt.NDArray[np.uint8]],
        type_id: int | None = None,
        *,
        kind: str | None = None,
    ) -> None:
        """Draft only `tokens`; a range stands for the first ones.

        `matrices`: for each head the rows of its output matrix, (len(tokens), bytes of a row), see
        gguf.weights.output_rows. They are of the matrix's own type, or of another ggml_type. `kind`: the type (q4_0,
        ...) that they are converted to, which makes drafts cheaper; raises PymtpError for one that they cannot be.
        """
        import numpy as np

        are_rows = all(each.dtype == np.uint8 and each.ndim == 2 and len(each) == len(tokens) for each in matrices)
        if not are_rows or len(matrices) != self.n_heads:
            allowed = f"uint8 of {len(tokens)} rows for each of {self.n_heads} heads"
            raise InvalidParameter("matrices", allowed, value=[each.shape for each in matrices])
        rows, listed = list(map(np.ascontiguousarray, matrices)), None if isinstance(tokens, range) else list(tokens)
        types = -1 if type_id is None else type_id, getattr(lib, f"GGML_TYPE_{kind.upper()}") if kind else -1
        ids, row_bytes = ffi.NULL if listed is None else listed, [each.shape[1] for each in rows]
        pointers = [ffi.cast("void *", each.ctypes.data) for each in rows]
        check(lib.pymtp_session_limit_drafts(self._handle.native, len(tokens), ids, *types, pointers, row_bytes))
        self._draft_tokens, self.n_draft_vocab = None if listed is None else np.asarray(listed), len(tokens)

    def ban_tokens(self, tokens: Sequence[int]) -> None:
        """`draft_tokens` never proposes these tokens; replaces those of the call before."""
        check(lib.pymtp_session_ban_tokens(self._handle.native, len(tokens), list(tokens)))

    def _widen(self, logits: Logits) -> Logits:
        """Rows of limited logits as rows of the whole vocabulary, (rows, n_vocab), -inf for tokens left out."""
        if logits.shape[1] == self.n_vocab:
            return logits
        import numpy as np

        everything = np.full((len(logits), self.n_vocab), -np.inf, np.float32)
        everything[:, self._draft_tokens if self._draft_tokens is not None else slice(logits.shape[1])] = logits
        return everything
