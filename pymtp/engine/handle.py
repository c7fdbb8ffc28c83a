"""The native session: who holds it, whether it is still there, and what it has done: passes, builds, copies, times."""

import weakref
from typing import Any, NamedTuple

from pymtp.binding.library import lib
from pymtp.errors import Closed


class SessionHandle:
    """Owns a `pymtp_session *` and frees it once."""

    __slots__ = ("__weakref__", "_free", "_pointer")

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer
        self._free = weakref.finalize(self, lib.pymtp_free, pointer)

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


class Counters(NamedTuple):
    """What the engine has done since the session began. A pass is one graph run; times in microseconds."""

    n_trunk_passes: int
    n_head_passes: int
    n_trunk_builds: int
    n_head_builds: int
    n_output_bytes: int
    """Logits, candidates and drafts copied to the host."""
    t_trunk_us: int
    t_head_us: int
    t_sample_us: int
    """What samplers have spent on the session's rows."""

    @property
    def n_builds(self) -> int:
        """Graphs built, for the trunk and for the heads."""
        return self.n_trunk_builds + self.n_head_builds
