"""Signals that end a command: Ctrl-C while a model generates stops between two pieces of text, with consistent
statistics; a closed terminal, or `kill`, while a file is written leaves none of it.

Owns the handlers of signals while they are active.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Context manager. The first Ctrl-C sets `requested` once `defer` was called.

    Before that, and from the second on, it raises KeyboardInterrupt: a prompt may take minutes to process, and nobody
    should have to wait for it. A SIGINT that the environment ignores (as for a background job) stays ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False
        self._previous = signal.getsignal(signal.SIGINT)

    def defer(self) -> None:
        """Call this when `requested` is checked often from now on."""
        self._deferred = True

    def __enter__(self) -> "Interrupt":
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._deferred:
            raise KeyboardInterrupt
        self.requested = True


def end_at_next() -> None:
    """Have a further Ctrl-C end the process at once: an exception would become a traceback where a model is freed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the command as an exception does, so that what it has begun to write is removed."""
    numbers = [number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]
    changed = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
