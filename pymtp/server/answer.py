"""One answer while it is made: its pieces as they come, and how it ended.

Owns what has been taken of a generation. Knows tokens and text; nothing of the APIs that show them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pymtp.sampling.logprobs import TokenLogprobs
from pymtp.serving.generation import Generation

from .errors import ApiError


@dataclass(frozen=True)
class Options:
    """How an answer is given."""

    n: int = 1
    stream: bool = False
    include_usage: bool = False
    n_probs: int = 0
    """Tokens whose probabilities are shown at each position; 0: none are."""
    of_chain: bool = False
    """Whether probabilities are those after the sampler chain."""
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    return_drafts: bool = False
    """Whether chunks of a chat say which parts of the text were accepted drafts."""
    fields: tuple[str, ...] = ()
    """Fields of llama-server's answers that are wanted; none: all."""
    predict_ms_max: float = -1
    """The longest that it generates after its first token, if there is a new line by then; negative: no limit."""
    deadline_s: float = 0
    """The longest from the request to the end of the answer; 0: no limit."""
    ping_s: float = 30
    is_verbose: bool = False


class LiveAnswer:
    """One of the texts that a request gets."""

    def __init__(self, generation: Generation, index: int, prompt: Sequence[int], options: Options) -> None:
        self.generation = generation
        self.index = index
        self.prompt = prompt
        """Token ids."""
        self.tokens: Sequence[int] = generation.tokens
        """The tokens so far, with the one that ended the text."""
        self.options = options
        self.asked_at = time.monotonic()
        self.first_at: float | None = None
        """When its first token came, in seconds of a monotonic clock."""
        self.last_at = self.asked_at
        """When its latest token came."""
        self.new_tokens: Sequence[int] = ()
        """Tokens of the latest piece."""
        self.is_over_time = False
        """Whether it was ended because it took too long."""
        self._expiry: asyncio.TimerHandle | None = None
        if options.deadline_s:
            self._expiry = asyncio.get_running_loop().call_later(options.deadline_s, self._end)
        self._n_tokens = self._n_logprobs = 0
        self._n_shown = -1  # of the prompt

    async def take(self) -> str | None:
        """Wait for the next piece: the result of a round, or of a part of the prompt. None once there are no more.

        Returns its text, which is empty while a character or a stop string is incomplete. Raises what ended the
        generation early, ApiError if the deadline has passed before the first token.
        """
        generation = self.generation
        text = await generation.take()
        if text is None:
            if self.is_over_time and not generation.tokens:
                deadline_ms = self.options.deadline_s * 1000
                raise ApiError(504, f"no token came within the deadline of {deadline_ms:.0f} ms")
            return None
        self.new_tokens = generation.tokens[self._n_tokens :]
        self._n_tokens = len(generation.tokens)
        if self.new_tokens:
            self._check_time()
        return text

    def new_logprobs(self) -> Sequence[TokenLogprobs]:
        """Log probabilities that have come since the last call."""
        n_shown, self._n_logprobs = self._n_logprobs, len(self.generation.logprobs)
        return self.generation.logprobs[n_shown:]

    async def complete(self) -> None:
        """Wait for the end. Raises what ended the generation early."""
        if self.options.predict_ms_max < 0 and not self.options.deadline_s:
            self.generation.hold_pieces()
        while await self.take() is not None:
            pass

    def close(self) -> None:
        """End it early. Harmless if it has ended."""
        if self._expiry:
            self._expiry.cancel()
        self.generation.close()

    def new_progress(self) -> list[int]:
        """How far the prompt has come since the last call, if anybody wants to know: at first what was in the cache."""
        generation, n_shown = self.generation, self._n_shown
        self._n_shown = n_done = generation.n_prompt_done
        if not self.options.return_progress or n_done in (0, n_shown):
            return []
        return [generation.n_cached, n_done] if n_shown < 0 else [n_done]

    @property
    def text(self) -> str:
        return self.generation.text

    @property
    def is_complete(self) -> bool:
        """Whether the model, or a stop string, ended it."""
        return self.generation.finish_reason in ("eog", "stop")

    def _check_time(self) -> None:
        now = self.last_at = time.monotonic()
        if self.first_at is None:
            self.first_at = now
        limit = self.options.predict_ms_max
        if limit >= 0 and (now - self.first_at) * 1000 > limit and "\n" in self.text:
            self._end()

    def _end(self) -> None:
        """End the answer, which has taken too long."""
        if not self.generation.is_over:
            self.is_over_time = True
            self.generation.close()
