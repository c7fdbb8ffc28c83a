"""Answers a file of requests in OpenAI's batch format, many at once.

Owns the two files: each answer is appended when it is complete, so that a run that was killed continues where it was.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pymtp.errors import BackendError, Closed, InvalidParameter, RemoteError
from pymtp.model import Model
from pymtp.text.files import BYTES_MAX, read_record

from .answer import LiveAnswer
from .bodies import as_structure
from .chat import prepare, submit_chat
from .completions import ChatCompletionReply, CompletionReply
from .errors import as_api_error, invalid
from .fields import ChatBody, CompletionBody
from .logs import log, new_id
from .prompts import prompts_of
from .respond import Reply
from .served_model import ServedModel
from .settings import ServerSettings

OnProgress = Callable[[int, int], object]
"""Called with the answers that are complete, those of earlier runs included, and all of them."""


class Asked(msgspec.Struct):
    """A line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_requests(path: Path) -> list[Asked]:
    """The requests of a file. Raises InvalidParameter for a line that is not one, or an id that is there twice."""
    found: dict[str, Asked] = {}
    with path.open("rb") as file:
        for i, line in enumerate(iter(lambda: file.readline(BYTES_MAX + 1), b""), 1):
            if len(line) > BYTES_MAX:
                raise InvalidParameter("input", f"lines of at most {BYTES_MAX >> 20} MiB: {path}:{i} is longer")
            if line.strip():
                asked = _asked(line, f"{path}:{i}")
                if asked.custom_id in found:
                    raise InvalidParameter("input", f"of different ids: {path}:{i} has {asked.custom_id!r} again")
                found[asked.custom_id] = asked
    return list(found.values())


def run_batch(
    load: Callable[[], Model],
    settings: ServerSettings,
    requests: Iterable[Asked],
    output: Path,
    on_progress: OnProgress = lambda done, total: None,
) -> int:
    """Answer the requests that `output` has no answer to; return how many failed. Raises what `load` raises."""
    return asyncio.run(_Batch(load, settings, list(requests), on_progress).run(output))


class _Batch:
    def __init__(
        self, load: Callable[[], Model], settings: ServerSettings, requests: list[Asked], on_progress: OnProgress
    ) -> None:
        self._served = ServedModel(load, settings)
        self._requests, self._on_progress = requests, on_progress
        self._n_failed = self._n_done = 0

    async def run(self, output: Path) -> int:
        done = _answered(output)
        left = [asked for asked in self._requests if asked.custom_id not in done]
        self._n_done = len(self._requests) - len(left)
        self._on_progress(self._n_done, len(self._requests))
        if not left:
            return 0
        self._served.start()
        await self._served.wait()
        try:
            with output.open("ab") as file:
                turns = iter(left)
                # a second one for each slot: nobody waits for a request to be read
                workers = [asyncio.create_task(self._work(turns, file)) for _ in range(2 * self._served.n_slots)]
                try:
                    await asyncio.gather(*workers)
                finally:  # where one fails, the file has to stay as it is
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
        finally:
            await self._served.stop()
        return self._n_failed

    async def _work(self, turns: Iterable[Asked], file: BinaryIO) -> None:
        for asked in turns:
            status, body = await self._response(asked)
            response = {"status_code": status, "request_id": new_id("req"), "body": body}
            answer = {"id": new_id("batch_req"), "custom_id": asked.custom_id, "response": response, "error": None}
            file.write(msgspec.json.encode(answer) + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._n_done += 1
            self._on_progress(self._n_done, len(self._requests))
            if self._served.phase == "failed":
                await self._served.wait()  # raises why

    async def _response(self, asked: Asked) -> tuple[int, Any]:
        """Status and body. Raises what ServedModel.wait raises.

        A request that was there both times that the engine failed may be the cause: it is not asked a third time.
        """
        n_failures = 0
        while True:
            while self._served.phase != "ready":  # it is loaded again
                await self._served.wait()
            try:
                answers, reply = self._submit(asked)
                await self._served.complete(answers)
                return 200, reply.whole(answers)
            except Exception as error:
                is_engine = isinstance(error, (BackendError, Closed)) and self._served.phase != "ready"
                n_failures += not isinstance(error, RemoteError)  # other machines may go and come back
                if not is_engine or n_failures == 2:
                    self._n_failed += 1
                    failure = as_api_error(error)
                    return failure.status, failure.as_json(asked.url)
                log("asked again", level="warning", custom_id=asked.custom_id, error=str(error))

    def _submit(self, asked: Asked) -> tuple[list[LiveAnswer], Reply]:
        served = self._served
        if asked.body.get("stream"):
            raise invalid("stream: a batch has no streams")
        if asked.url == "/v1/chat/completions":
            body = as_structure(asked.body, ChatBody)
            return submit_chat(served, body, *prepare(served, body)), ChatCompletionReply(served)
        if asked.url == "/v1/completions":
            text = as_structure(asked.body, CompletionBody)
            prompts = prompts_of(text.prompt, served)
            return served.submit(prompts, text, n_probs=text.logprobs), CompletionReply(served)
        raise invalid(f"{asked.url} is not supported in a batch: use /v1/chat/completions or /v1/completions")


def _asked(line: bytes, where: str) -> Asked:
    try:
        return msgspec.json.decode(line, type=Asked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParameter("input", f"lines with custom_id, url and body; {where} is not one ({error})") from None


def _answered(output: Path) -> set[str]:
    """The ids that have an answer. A line that was cut, when a run was killed, is dropped from the file."""
    if not os.path.exists(output):
        return set()
    data = read_record(output)
    complete = data[: data.rfind(b"\n") + 1]
    if complete != data:
        os.truncate(output, len(complete))
    try:
        return {msgspec.json.decode(line)["custom_id"] for line in complete.splitlines()}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError):
        raise InvalidParameter("output", f"a file of answers, or none: {output} has other lines") from None
