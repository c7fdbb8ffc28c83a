"""What the last pass of a session has left: rows of logits, and the highest of them.

A row may still lie on a device: it is fetched when somebody looks at all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import check
from pymtp.engine.handle import SessionHandle

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
        logits: Logits = fetch_logits(self.session, of_draft=self.of_draft)[self.row]
        return logits


Row: TypeAlias = "LogitsRow | Logits"
"""One row of logits: of a session's last pass, or an array (n_vocab,) float32."""


def fetch_logits(handle: SessionHandle, *, of_draft: bool) -> Logits:
    """Logits of the last pass, (rows, n_vocab or n_draft_vocab) float32; valid until the session's next call."""
    import numpy as np

    shape = ffi.new("int32_t[2]")
    read = lib.pymtp_session_draft_logits if of_draft else lib.pymtp_session_logits
    data: Any = read(handle.native, shape, shape + 1)
    n_bytes = 4 * shape[0] * shape[1]
    buffer = ffi.buffer(data, n_bytes) if n_bytes else b""
    logits: Logits = np.frombuffer(buffer, dtype=np.float32).reshape(shape[0], shape[1])
    return logits


def logits_rows(handle: SessionHandle, *, of_draft: bool) -> list[LogitsRow]:
    """The rows of the last pass, for samplers."""
    n_rows = lib.pymtp_session_n_logits(handle.native, of_draft)
    return [LogitsRow(handle, of_draft, row) for row in range(n_rows)]


def top_logits(handle: SessionHandle, n: int, *, of_draft: bool) -> tuple[Tokens, Logits]:
    """The `n` highest logits of each row of the last pass, highest first: ids and values, (rows, n) each."""
    import numpy as np

    shape = lib.pymtp_session_n_logits(handle.native, of_draft), n
    ids, values = np.empty(shape, np.int32), np.empty(shape, np.float32)
    out = ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("float[]", values)
    check(lib.pymtp_session_candidates(handle.native, of_draft, n, *out))
    return ids, values
