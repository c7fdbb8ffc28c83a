"""What the last pass of a session has left: rows of logits, and the highest of them.

A row may still lie on a device: it is fetched when somebody looks at all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import check
from pymtp.engine.handle import SessionHandle
from pymtp.errors import InvalidParameter

if TYPE_CHECKING:
    from pymtp.binding.arrays import Logits, Tokens


class LogitsRow(NamedTuple):
    """One row of logits that the last pass of a session has left; where it lies is the session's business."""

    session: SessionHandle
    of_draft: bool
    row: int

    @property
    def logits(self) -> Logits:
        """All of it, (n_vocab,), of a limited draft (n_draft_vocab,). What lies on a device is fetched.

        Raises Closed after the session was closed.
        """
        logits: Logits = fetch_logits(self.session, of_draft=self.of_draft, row=self.row)[0]
        return logits


Row: TypeAlias = "LogitsRow | Logits"
"""One row of logits: of a session's last pass, or an array (n_vocab,) float32."""


def fetch_logits(handle: SessionHandle, *, of_draft: bool, row: int | None = None) -> Logits:
    """Logits of the last pass, or one row of them: (rows, n_vocab or n_draft_vocab) float32, a copy."""
    import numpy as np

    n_rows, n_columns = _shape(handle, of_draft=of_draft)
    first = 0 if row is None else row
    logits = np.empty((n_rows if row is None else 1, n_columns), np.float32)
    out = ffi.from_buffer("float[]", logits)
    check(lib.pymtp_session_logits(handle.native, of_draft, first, len(logits), n_columns, out))
    return logits


def logits_rows(handle: SessionHandle, *, of_draft: bool) -> list[LogitsRow]:
    """The rows of the last pass, for samplers."""
    return [LogitsRow(handle, of_draft, row) for row in range(_shape(handle, of_draft=of_draft)[0])]


def _shape(handle: SessionHandle, *, of_draft: bool) -> tuple[int, int]:
    """Rows that the last pass has left, and logits of each."""
    n_columns = ffi.new("int32_t *")
    n_rows = lib.pymtp_session_n_logits(handle.native, of_draft, n_columns)
    return max(n_rows, 0), n_columns[0]


def top_logits(handle: SessionHandle, n: int, *, of_draft: bool) -> tuple[Tokens, Logits]:
    """The `n` highest logits of each row of the last pass, highest first: ids and values, (rows, n) each.

    Raises InvalidParameter unless there are `n` logits in a row.
    """
    import numpy as np

    n_rows, n_columns = _shape(handle, of_draft=of_draft)
    if not 1 <= n <= n_columns:
        raise InvalidParameter("n", f"between 1 and {n_columns}", value=n)
    shape = n_rows, n
    ids, values = np.empty(shape, np.int32), np.empty(shape, np.float32)
    out = ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("float[]", values)
    check(lib.pymtp_session_candidates(handle.native, of_draft, n, *out))
    return ids, values
