"""The native session: who holds it, and whether it is still there."""

from __future__ import annotations

import weakref
from typing import Any

from pymtp.binding.library import lib
from pymtp.errors import Closed


class SessionHandle:
    """Owns a `pymtp_session *` and frees it once."""

    __slots__ = ("__weakref__", "_free", "_pointer")

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer
        self._free = weakref.finalize(self, lib.pymtp_session_free, pointer)

    @property
    def native(self) -> Any:
        """The pointer. Raises Closed after `close`."""
        if self._pointer is None:
            raise Closed("the session is closed")
        return self._pointer

    def close(self) -> None:
        """Free the session; closing twice is harmless."""
        self._pointer = None
        self._free()
