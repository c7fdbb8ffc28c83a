"""From answers to a response: streamed as they come, or whole. In the words of whichever API asked.

Owns the order of events, and the end of answers that nobody waits for. Knows no API.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .answer import LiveAnswer
from .bodies import LONG_BYTES
from .errors import as_api_error
from .logs import log
from .served_model import ServedModel, served_by

T = TypeVar("T")

N_ENTRIES_MAX = 2000
"""Probabilities of tokens in a body that is made between other requests; it takes some 10 us for each."""

PING_S_MIN = 1.0
"""Of requests."""

_encode = msgspec.json.Encoder().encode


class Reply(ABC):
    """How an API shows the answers to a request."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served

    @abstractmethod
    def piece(self, answer: LiveAnswer, text: str) -> Iterable[bytes]:
        """The events of a piece: its text and `answer.new_tokens`, one of which may be empty."""

    @abstractmethod
    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        """The events of a prompt of which `n_done` tokens are in the cache."""

    @abstractmethod
    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        """The events of an answer that is complete."""

    def close(self, answers: Sequence[LiveAnswer]) -> Iterable[bytes]:
        """The events after all answers are complete."""
        return ()

    @abstractmethod
    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        """The body, where nothing is streamed."""


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event, under its type's name if it has one."""
    head = f"event: {data['type']}\n".encode() if "type" in data else b""
    return head + b"data: " + _encode(data) + b"\n\n"


def json_response(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode(data), status, headers, media_type="application/json")


async def respond(request: Request, answers: Sequence[LiveAnswer], reply: Reply) -> Response:
    """The response to a request, in the words of `reply`."""
    served, asked = served_by(request), answers[0].asked
    if not asked.stream:
        await unless_gone(request.receive, served.complete(answers))
        return await _apart(answers, lambda: json_response(reply.whole(answers)))
    ping_s = asked.sse_ping_interval
    ping_s = served.settings.ping_s if ping_s is None else max(ping_s, PING_S_MIN * (ping_s > 0))
    return Stream(_events(served, answers, reply, request.url.path), ping_s)


async def _apart(answers: Sequence[LiveAnswer], work: Callable[[], T]) -> T:
    """The result of `work` on complete answers: in another thread if they are long, as all others would wait."""
    made = [answer.generation for answer in answers]
    n_entries = sum(len(each.logprobs) * (each.params.logprobs or 0) for each in made)
    is_long = n_entries > N_ENTRIES_MAX or sum(len(each.text) for each in made) > LONG_BYTES
    return await asyncio.to_thread(work) if is_long else work()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client leaves. Raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class Stream(Response):
    """A response of server-sent events, with a comment after each time of silence.

    It begins with the first of them, so that an error before has a status of its own.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], ping_s: float) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events, self._ping_s = events, ping_s
        self._has_begun, self._sent_at = False, time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ping = asyncio.ensure_future(self._ping(send))
        try:
            await unless_gone(receive, self._send_all(send))
        finally:
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        async for body in self._events:
            await self._send(body, send)
        self._ping_s = 0
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, body: bytes, send: Send) -> None:
        self._sent_at = time.monotonic()
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _ping(self, send: Send) -> None:
        while self._ping_s > 0:
            await asyncio.sleep(self._ping_s)
            if self._ping_s and time.monotonic() - self._sent_at >= self._ping_s:
                await self._send(b":\n\n", send)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(
    served: ServedModel, answers: Sequence[LiveAnswer], reply: Reply, path: str
) -> AsyncGenerator[bytes, None]:
    """The events of all answers, several in one where they come together."""
    has_begun = False
    try:
        async for answer, text in _pieces(answers):
            if text is None:
                events = await _apart([answer], partial(list, reply.end(answer)))
                served.finish(answer)
            else:
                events = [one for n_done in answer.new_progress() for one in reply.progress(answer, n_done)]
                if text or answer.new_tokens:
                    events += reply.piece(answer, text)
            if events:
                has_begun = True
                yield b"".join(events)
        yield b"".join(reply.close(answers))
    except BaseException as error:
        served.give_up(answers, error)
        if not has_begun or not isinstance(error, Exception):
            raise
        failure = as_api_error(error)
        log("answer failed", level="error", error=str(failure))
        yield event(failure.as_json(path))


async def _pieces(answers: Sequence[LiveAnswer]) -> AsyncIterator[tuple[LiveAnswer, str | None]]:
    """The pieces of all answers as they come; None at the end of each."""
    if len(answers) == 1:  # needs no tasks
        while (text := await answers[0].take()) is not None:
            yield answers[0], text
        yield answers[0], None
        return
    waiting = {asyncio.ensure_future(answer.take()): answer for answer in answers}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                answer, text = waiting.pop(task), task.result()
                yield answer, text
                if text is not None:
                    waiting[asyncio.ensure_future(answer.take())] = answer
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
