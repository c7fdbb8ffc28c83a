"""Wakes tasks of an asyncio loop from another thread; those that are due together cost one wakeup.

Owns which events are due. Knows nothing of what the tasks wait for.
"""

from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    import asyncio


class Wakeups:
    """Sets events in the loop that they belong to. `wake` may be called from any thread."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._loop = ref(loop)  # see wakeups_of
        self._due: deque[asyncio.Event] = deque()
        self._is_asked = False  # whether the loop is going to look

    def wake(self, event: "asyncio.Event") -> None:
        """Set `event` soon. Harmless if the loop was closed."""
        self._due.append(event)
        if self._is_asked:
            return
        self._is_asked = True
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._set_all)
        except RuntimeError:  # it was closed
            self._due.clear()

    def _set_all(self) -> None:
        self._is_asked = False  # first: what comes from now on asks again
        while self._due:
            self._due.popleft().set()


_wakeups: "WeakKeyDictionary[asyncio.AbstractEventLoop, Wakeups]" = WeakKeyDictionary()


def wakeups_of(loop: "asyncio.AbstractEventLoop") -> Wakeups:
    """The wake-ups of the loop in which this is called."""
    found = _wakeups.get(loop)
    if found is None:
        found = _wakeups[loop] = Wakeups(loop)
    return found
