"""Ctrl-C while a model generates: stop between two pieces of text, with consistent statistics.

Owns the SIGINT handler while it is active.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupt:
    """Context manager. The first Ctrl-C sets `requested` once `defer` was called.

    Before that, and from the second on, it raises KeyboardInterrupt: a prompt may take minutes to
    process, and nobody should have to wait for it. A SIGINT that the environment ignores (as for a
    background job) stays ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False
        self._previous = signal.getsignal(signal.SIGINT)

    def defer(self) -> None:
        """Call this when `requested` is checked often from now on."""
        self._deferred = True

    def __enter__(self) -> Interrupt:
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._deferred:
            raise KeyboardInterrupt
        self.requested = True
