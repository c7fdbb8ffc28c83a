"""The engine's thread: it alone touches the session and the scheduler; others send it messages.

Owns the thread and its inbox. Knows requests and errors; nothing of what they generate.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple, TypeVar
from weakref import WeakSet

from pymtp.errors import Closed, PymtpError
from pymtp.serving.request import Request
from pymtp.serving.scheduler import Scheduler

T = TypeVar("T")


class Call(NamedTuple):
    """What the engine's thread is asked to do between two passes."""

    run: Callable[[], object]
    refuse: Callable[[], object] = lambda: None
    """Called instead, if the engine was closed before."""


class EngineLoop:
    """Runs a scheduler in a thread of its own, which begins with the first call.

    All methods may be called from any thread. Calls take effect between passes, in the order in which they came.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._begin()
        _loops.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()  # of what follows
        self._inbox: SimpleQueue[Call] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_busy = False  # whether it does anything but wait for a call
        self._broken: PymtpError | None = None

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self._is_closed:
            raise Closed("the model is closed")

    def submit(self, job: Request) -> None:
        """Queue a job. Raises Closed after `close`."""
        closed = Closed("the model was closed before the text was complete")
        self._send(Call(lambda: self._scheduler.submit(job), lambda: job.fail(closed)))

    def cancel(self, job: Request) -> None:
        """End a job early; its slot is free after the pass that is under way. Harmless if it has ended."""
        # no lock: an object that is collected may be closed in the middle of anything
        if self._thread is not None:
            self._inbox.put(Call(lambda: self._scheduler.remove(job)))

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread, between passes, and return what it returns. Raises what it raises."""
        if self.is_own_thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._send(Call(run, lambda: future.set_exception(Closed("the model is closed"))))
        return future.result()

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the engine's thread."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """End all jobs with a clear error, and the thread after its pass.

        Waits for that; calling it twice is harmless.
        """
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is None:
            return
        self._inbox.put(Call(lambda: None))  # wakes it
        if thread is not threading.current_thread():
            thread.join()

    def _send(self, call: Call) -> None:
        with self._lock:
            self.check_open()
            if self._broken:
                raise self._broken
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pymtp-engine", daemon=True)
                thread.start()
                self._thread = thread
            self._inbox.put(call)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                try:
                    if self._scheduler.is_idle:
                        self._is_busy = False
                        call = self._inbox.get()
                        self._is_busy = True
                        call.run()
                    while not self._is_closed and not self._inbox.empty():
                        self._inbox.get().run()
                    self._scheduler.step()
                except BaseException as error:
                    self._scheduler.fail(error)
        finally:
            with self._lock:
                self._is_closed = True
            while not self._inbox.empty():
                self._inbox.get().refuse()
            self._scheduler.fail(Closed("the model was closed before the text was complete"))

    def _before_fork(self) -> None:
        """Wait for a thread that has reported the end of its last text, and is not idle yet."""
        end = time.monotonic() + FORK_WAIT_S
        while self._is_busy and self._scheduler.is_idle and not self.is_own_thread and time.monotonic() < end:
            time.sleep(1e-4)

    def _after_fork(self) -> None:
        """Begin again in the child, which has no such thread and knows nothing of its locks."""
        was_idle = self._scheduler.is_idle and self._inbox.empty() and not self._is_busy
        inbox, is_closed = self._inbox, self._is_closed
        self._begin()
        self._is_closed = is_closed
        if was_idle:
            return
        self._broken = PymtpError("the process was forked while the model generated: load it again in the child")
        while not inbox.empty():
            inbox.get_nowait().refuse()
        self._scheduler.abandon(self._broken)


_loops: WeakSet[EngineLoop] = WeakSet()


FORK_WAIT_S = 0.1


def _before_fork() -> None:
    for loop in list(_loops):
        loop._before_fork()


def _after_fork() -> None:
    for loop in list(_loops):
        loop._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
