"""Tasks that are woken from another thread: together, each of them, and never one that is not due."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from pymtp.serving.generation import Wakeups, wakeups_of


class CountingLoop:
    """A loop that calls back when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, function: Callable[[], object]) -> None:
        self.asked.append(function)


class ClosedLoop:
    def call_soon_threadsafe(self, function: Callable[[], object]) -> None:
        raise RuntimeError("Event loop is closed")


def test_those_that_are_due_together_cost_one_wakeup() -> None:
    loop, events = CountingLoop(), [asyncio.Event() for _ in range(3)]
    wakeups = Wakeups(loop)  # type: ignore[arg-type]
    wakeups.wake(events[0])
    wakeups.wake(events[1])
    assert len(loop.asked) == 1
    loop.asked.pop()()
    assert [event.is_set() for event in events] == [True, True, False]
    wakeups.wake(events[2])
    loop.asked.pop()()
    assert events[2].is_set()


def test_a_loop_that_was_closed_is_left_alone() -> None:
    loop = ClosedLoop()
    wakeups = Wakeups(loop)  # type: ignore[arg-type]
    wakeups.wake(asyncio.Event())
    wakeups.wake(asyncio.Event())


def test_no_task_sleeps_on_while_threads_wake_others() -> None:
    async def main() -> None:
        wakeups = wakeups_of(asyncio.get_running_loop())
        assert wakeups is wakeups_of(asyncio.get_running_loop())
        events = [[asyncio.Event() for _ in range(500)] for _ in range(4)]

        def wake_all(mine: list[asyncio.Event]) -> None:
            for event in mine:
                wakeups.wake(event)

        threads = [threading.Thread(target=wake_all, args=(mine,)) for mine in events]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(asyncio.gather(*(event.wait() for mine in events for event in mine)), 10)
        for thread in threads:
            thread.join()

    asyncio.run(main())
