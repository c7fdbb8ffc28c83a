"""A generation as its user sees it: an iterator over text, synchronous or asynchronous.

Owns the text. Takes the updates of its request in whatever thread or task iterates; the engine never waits for it.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from threading import Lock
from typing import TYPE_CHECKING

from pymtp.chat.parser import ChatMessage
from pymtp.errors import PymtpError
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.logprobs import TokenLogprobs
from pymtp.serving.loop import EngineLoop
from pymtp.serving.make_sequence import acceptance_of
from pymtp.serving.request import Request, Update
from pymtp.serving.sequence import FinishReason
from pymtp.text.stream import TextStream

if TYPE_CHECKING:
    import asyncio

OnPrompt = Callable[[int, int], object]
"""Called after each part of a prompt: how many of its tokens are in the cache, and how many it has."""


class Generation(Iterator[str], AsyncIterator[str], AbstractContextManager["Generation"]):
    """One answer: iterate over it, with `for` or `async for`, for its text in the pieces in which it is made.

    The model keeps generating in its own thread, whether or not anybody takes the pieces. `close`, leaving a `with`
    block and dropping the object end it early. One thread or task may iterate over it.
    """

    def __init__(
        self, request: Request, loop: EngineLoop, vocabulary: Vocabulary, on_prompt: OnPrompt | None, owner: object
    ) -> None:
        self._request, self._loop = request, loop
        self.params = request.params
        """What was asked for."""
        self._owner = owner  # the model: it lives as long as somebody waits for its text
        self._on_prompt = on_prompt  # until the prompt is done
        self._stream = TextStream(request.params.stops)
        self._piece = vocabulary.piece_with(request.params.preserved_tokens)
        self._closed_once = chat.closed_once(request.params.reasoning_budget) if (chat := request.params.chat) else None
        self._is_read = Lock()
        self._wakes: asyncio.Event | None = None
        self._waits_in: asyncio.AbstractEventLoop | None = None
        self.n_prompt = request.n_prompt
        """Tokens of the prompt."""
        self.n_cached = 0
        """Tokens of the prompt that were in the cache before, and were not decoded again."""
        self.n_prompt_done = 0
        """Tokens of the prompt that are in the cache by now."""
        self.stats = request.stats
        """Counts and times. The engine may be some tokens ahead of the pieces that were taken."""
        self.tokens: list[int] = []
        """Token ids so far; the one that ended the text, if any, is the last."""
        self.logprobs: list[TokenLogprobs] = []
        """Log probabilities of the tokens, if they were asked for."""
        self.text = ""
        """The pieces so far."""
        self.first_at: float | None = None
        """When the model made its first token, in seconds of a monotonic clock."""
        self.last_at = 0.0
        """When it made the latest."""
        self._begins: list[int] = []  # characters before each token
        self.finish_reason: FinishReason | None = None
        """Why the text ended, once it has; None also if it was closed."""
        self.is_over = False
        """Whether there will be no more pieces: it has ended, or was closed."""
        self.error: BaseException | None = None
        """What ended it early: ContextFull if the cache had no room, or a failure of the model."""

    @property
    def acceptance(self) -> str:
        """The acceptance method, in one word for reports."""
        sequence = self._request.sequence
        return (sequence.accept if sequence else acceptance_of(self.params)).name

    @property
    def slot(self) -> int | None:
        """The slot in which it runs or ran; None while it waits."""
        sequence = self._request.sequence
        return sequence.slot if sequence else None

    @property
    def is_truncated(self) -> bool:
        """Whether the context was full before the text was complete; it may have continued without its oldest part."""
        sequence = self._request.sequence
        return self.finish_reason == "context" or (sequence is not None and sequence.is_shifted)

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stream.stopped_by

    @property
    def n_in_text(self) -> int:
        """Tokens up to the last that `text` has a part of: not those of a stop string, or one that may become one."""
        return bisect_left(self._begins, len(self.text))

    @property
    def message(self) -> ChatMessage:
        """What the answer to a chat says so far: reasoning, content, tool calls. Of other texts all is content."""
        chat = self.params.chat
        return chat.read(self.text, self.finish_reason) if chat else ChatMessage(self.text)

    def parts(self, begin: int = 0, end: int | None = None) -> list[tuple[str, bool]]:
        """Cut `text[begin:end]` where it changes between accepted drafts (True) and what the target sampled (False).

        A character that several tokens make up belongs to the last of them.
        """
        return self._stream.parts(self.text[begin:end], begin)

    def close(self) -> None:
        """End the generation early; its slot is free for another. Harmless if it has ended."""
        if not self.is_over:
            self.is_over = True
            self._loop.cancel(self._request)
            self._request.wake()  # whoever waits for more of it

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a generation cannot be copied: it is one sequence of the model")  # a copy would end it

    def __repr__(self) -> str:
        state = self.finish_reason or ("closed" if self.is_over else "running")
        return f"<pymtp.Generation {state}: {len(self.tokens)} tokens, {self.text[:40]!r}>"

    def __next__(self) -> str:
        self._loop.check_thread()
        if self._loop.is_own_thread and not self.is_over:
            raise PymtpError("a text cannot be awaited in the engine's own thread; await it in another")
        if not self._is_read.acquire(blocking=False):
            raise PymtpError("another thread is waiting for this text; have one thread read it")
        try:
            while not self.is_over:
                if piece := self._take():
                    return piece
        except BaseException:  # Ctrl-C while waiting, or a callback
            self.close()
            raise
        finally:
            self._is_read.release()
        raise self.error or StopIteration

    async def __anext__(self) -> str:
        while (piece := await self.take()) is not None:
            if piece:
                return piece
        raise StopAsyncIteration

    async def take(self) -> str | None:
        """Wait for the next update; return its text, maybe empty. None once it is over; raises what ended it early."""
        self._loop.check_thread()
        wakes = self._listen()
        while not self.is_over:
            wakes.clear()
            try:
                if not self._request.updates.empty():
                    return self._take()
                await wakes.wait()
            except BaseException:  # the task was cancelled, or a callback
                self.close()
                raise
        if self.error:
            raise self.error
        return None

    def hold_pieces(self) -> None:
        """Wake nobody between the first token and the last: all of the text comes in one piece."""
        self._request.is_whole = True

    def _listen(self) -> "asyncio.Event":
        """The event that is set, in the task's loop, after each update."""
        import asyncio

        loop = asyncio.get_running_loop()
        if self._wakes is None or self._waits_in is not loop:
            self._wakes = wakes = asyncio.Event()
            self._waits_in = loop

            def wake() -> None:
                with suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(wakes.set)

            self._request.listener = wake
        return self._wakes

    def _take(self) -> str:
        """Wait for updates, and take them over; return the text that is certain after them."""
        return "".join(map(self._taken, self._request.updates.get()))

    def _taken(self, update: Update) -> str:
        if update.error:
            self.error = update.error
        self.n_cached = update.n_cached or self.n_cached
        self.n_prompt_done = max(min(update.n_decoded, self.n_prompt), self.n_prompt_done)
        if update.tokens:
            self.first_at, self.last_at = self.first_at or update.made_at, update.made_at
        self.tokens += update.tokens
        self.logprobs += update.logprobs
        piece = ""
        for i, token in enumerate(update.tokens):
            data = self._piece(token)
            data = self._closed_once.push(data) if self._closed_once else data
            self._begins.append(self._stream.n_decoded)
            piece += self._stream.push(data, drafted=i < update.n_accepted)
        if update.finish_reason or update.error:
            self.finish_reason = update.finish_reason
            self.is_over = True
            if self._closed_once:
                piece += self._stream.push(self._closed_once.flush())
            piece += self._stream.flush()
        self.text += piece
        if self._on_prompt and update.n_decoded:
            self._on_prompt(self.n_prompt_done, self.n_prompt)
            if update.n_decoded >= self.n_prompt:
                self._on_prompt = None
        return piece
