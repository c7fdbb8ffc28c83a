"""One answer while it is made: its pieces as they come, and how it ended.

Owns what has been taken of a generation. Knows tokens and text; nothing of the APIs that show them.
"""

import asyncio
import time
from collections.abc import Sequence

from pymtp.sampling.logprobs import TokenLogprobs
from pymtp.serving.generation import Generation

from .errors import ApiError
from .fields import GenerationFields


class LiveAnswer:
    """One of the texts that a request gets."""

    def __init__(
        self, generation: Generation, index: int, prompt: Sequence[int], asked: GenerationFields, deadline_s: float
    ) -> None:
        self.generation = generation
        self.index = index
        self.prompt = prompt
        """Token ids."""
        self.tokens: Sequence[int] = generation.tokens
        """The tokens so far, with the one that ended the text."""
        self.asked = asked
        """How it is to be given, among what else was asked for."""
        self.includes_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        """Whether a stream ends with the tokens of the request."""
        self.asked_at = time.monotonic()
        self.new_tokens: Sequence[int] = ()
        """Tokens of the latest piece."""
        self.is_over_time = False
        """Whether it was ended because it took too long."""
        self._deadline_s = min(filter(None, (deadline_s, (asked.deadline_ms or 0) / 1000)), default=0)
        self._expiry: asyncio.TimerHandle | None = None
        if self._deadline_s:
            self._expiry = asyncio.get_running_loop().call_later(self._deadline_s, self._end)
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
                raise ApiError(504, f"no token came within the deadline of {self._deadline_s * 1000:.0f} ms")
            return None
        self.new_tokens = generation.tokens[self._n_tokens :]
        self._n_tokens = len(generation.tokens)
        if self.new_tokens:
            self._check_time()
        return text

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Log probabilities of its tokens, without those of the stop string that ended it."""
        generation = self.generation
        return generation.logprobs[: generation.n_in_text] if generation.stop_text else generation.logprobs

    def new_logprobs(self) -> Sequence[TokenLogprobs]:
        """Log probabilities of the tokens whose text has come since the last call."""
        n_shown, self._n_logprobs = self._n_logprobs, self.generation.n_in_text
        return self.generation.logprobs[n_shown : self._n_logprobs]

    async def complete(self) -> None:
        """Wait for the end. Raises what ended the generation early."""
        if self.asked.t_max_predict_ms is None and not self._deadline_s:
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
        if not self.asked.return_progress or n_done in (0, n_shown):
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
        limit_ms, begin = self.asked.t_max_predict_ms, self.generation.first_at  # negative: none
        if limit_ms is not None and begin and 0 <= limit_ms < (time.monotonic() - begin) * 1000 and "\n" in self.text:
            self._end()

    def _end(self) -> None:
        if not self.generation.is_over:
            self.is_over_time = True
            self.generation.close()
