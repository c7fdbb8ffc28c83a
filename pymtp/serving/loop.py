"""The engine's thread: it alone touches the session and the scheduler; others send it messages.

Owns the thread and its inbox. Knows requests and errors; nothing of what they generate.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from pymtp.errors import Closed, PymtpError
from pymtp.serving.request import Request
from pymtp.serving.scheduler import Scheduler

T = TypeVar("T")


class EngineLoop:
    """Runs a scheduler in a thread of its own, which begins with the first call.

    All methods may be called from any thread. Calls take effect between passes, in the order in which they came.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()  # of what follows
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def check_thread(self) -> None:
        """Raise PymtpError where the thread had begun before this process was forked, which does not have it."""
        if self._thread and not self._thread.is_alive() and not self._is_closed:
            raise PymtpError("the process was forked after the model had generated: load it again in the child")

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self._is_closed:
            raise Closed("the model is closed")

    def submit(self, job: Request) -> None:
        """Queue a job. Raises Closed after `close`."""
        self._send(lambda: self._scheduler.submit(job))

    def cancel(self, job: Request) -> None:
        """End a job early; its slot is free after the pass that is under way. Harmless if it has ended."""
        # no lock: an object that is collected may be closed in the middle of anything
        if self._thread is not None:
            self._inbox.put(lambda: self._scheduler.remove(job))

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread, between passes, and return what it returns. Raises what it raises."""
        if self.is_own_thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                self.check_open()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._send(run)
        return future.result()

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the engine's thread."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """End all jobs with a clear error, and the thread after its pass.

        Waits for that; calling it twice is harmless.
        """
        if self._thread and not self._thread.is_alive():
            return
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is None:
            return
        self._inbox.put(lambda: None)  # wakes it
        if thread is not threading.current_thread():
            thread.join()

    def _send(self, call: Callable[[], object]) -> None:
        self.check_thread()
        with self._lock:
            self.check_open()
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
                        self._inbox.get()()
                    while not self._is_closed and not self._inbox.empty():
                        self._inbox.get()()
                    self._scheduler.step()
                except BaseException as error:
                    self._scheduler.fail(error)
        finally:
            with self._lock:
                self._is_closed = True
            while not self._inbox.empty():
                with suppress(Exception):  # what has failed may fail again, and whoever waits has to hear of it
                    self._inbox.get()()
            self._scheduler.fail(Closed("the model was closed before the text was complete"))
