"""Requests in, text out: many generations of one model at a time.

Owns what turns tokens into text and back for each request. Which of them run when is the scheduler's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from pymtp.drafting import Drafter, MtpDrafter, NoDrafter
from pymtp.errors import ContextFull, InvalidParameter
from pymtp.sampling import Sampler, SamplingParams
from pymtp.scheduler import Scheduler
from pymtp.sequence import FinishReason, TokenSequence
from pymtp.session import Session
from pymtp.statistics import Stats
from pymtp.text import Utf8Stream
from pymtp.vocabulary import Vocabulary


class Batch:
    """Generates the texts of many requests together: one pass of the model serves all that are running.

    Iterating runs it until nothing is left, and yields (generation, piece of its text) as the pieces come; the
    last piece of a generation may be empty. Requests can be submitted at any time, before and while iterating;
    those that find all of the model's `n_seq_max` places taken wait for the next free one. What a request
    generates does not depend on the others.

    With `keep`, a prompt that begins as an earlier text did costs only what differs: `Generation.n_cached` says how
    much was still there.

    Raises BackendError where the model fails; that ends the batch.
    """

    def __init__(self, session: Session, vocabulary: Vocabulary, *, keep: bool = False) -> None:
        drafter: Drafter = MtpDrafter(session) if session.n_draft_max > 0 else NoDrafter()
        self._session = session
        self._vocabulary = vocabulary
        self._scheduler = Scheduler(session, drafter, keep=keep)
        self.keeps = keep
        """Whether texts stay in the cache when they have ended."""
        self._live: dict[TokenSequence, Generation] = {}
        self._pieces: deque[tuple[Generation, str]] = deque()  # made, and not handed out yet

    @property
    def stats(self) -> Stats:
        """Of all requests together. A pass's time is shared out between prompts and generation by their rows."""
        return self._scheduler.stats

    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int = -1,
        ignore_eos: bool = False,
        draft_max: int | None = None,
    ) -> Generation:
        """Ask for the continuation of `prompt` (text, or token ids).

        At most `max_tokens` tokens; -1 goes on until the model ends its text or the context is full. `ignore_eos`
        bars the tokens that end a text, for drafts and target alike. A round drafts `draft_max` tokens; None, and
        at most, the model's own. Raises ContextFull if the prompt does not fit, InvalidParameter for a value out
        of range.
        """
        if max_tokens < -1:
            raise InvalidParameter("max_tokens", "-1 (no limit) or more", value=max_tokens)
        if draft_max is not None and draft_max < 0:
            raise InvalidParameter("draft_max", "0 (no drafts) or more", value=draft_max)
        eog, limit = self._vocabulary.end_of_generation, self._session.n_draft_max
        sequence = TokenSequence(
            self._tokens(prompt),
            Sampler(sampling or SamplingParams(), sorted(eog) if ignore_eos else []),
            stop=eog,
            n_ctx=self._session.n_ctx,
            max_tokens=max_tokens,
            draft_max=limit if draft_max is None else min(draft_max, limit),
        )
        self._live[sequence] = generation = Generation(self, sequence)
        self._scheduler.submit(sequence)
        return generation

    def __iter__(self) -> Iterator[tuple[Generation, str]]:
        while self._pieces or self._live:
            if self._pieces:
                yield self._pieces.popleft()
            else:
                self._step()

    def close(self) -> None:
        """End all generations early, and keep nothing of them."""
        for generation in list(self._live.values()):
            generation.close()
        self._scheduler.forget()

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        tokens = self._vocabulary.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise InvalidParameter("prompt", "at least one token long")
        if len(tokens) >= self._session.n_ctx:
            raise ContextFull(
                f"the prompt has {len(tokens)} tokens, the context only {self._session.n_ctx}: "
                "shorten it or raise the context size (-c)"
            )
        return tokens

    def _step(self) -> None:
        """Run one pass, and keep the pieces of text that it gives."""
        try:
            for sequence, tokens in self._scheduler.step():
                piece = self._live[sequence]._extend(b"".join(map(self._vocabulary.piece, tokens)), tokens)
                if piece or sequence.finish_reason:
                    self._pieces.append((self._live[sequence], piece))
                if sequence.finish_reason:
                    del self._live[sequence]
        except BaseException:  # also Ctrl-C: a pass that nobody took note of leaves nothing to go on from
            self.close()
            raise

    def _next_piece(self, generation: Generation) -> str | None:
        """The next piece of one generation; None if there will be no more."""
        while True:
            for i, (owner, piece) in enumerate(self._pieces):
                if owner is generation:
                    del self._pieces[i]
                    return piece
            if generation._sequence not in self._live:
                return None
            self._step()

    def _remove(self, generation: Generation) -> None:
        self._scheduler.remove(generation._sequence)
        self._live.pop(generation._sequence, None)
        self._pieces = deque(entry for entry in self._pieces if entry[0] is not generation)


class Generation:
    """One answer: an iterator over its text, in the pieces in which it is made.

    Waiting for a piece runs the whole batch; the pieces of the others are kept for those who ask.
    """

    def __init__(self, batch: Batch, sequence: TokenSequence) -> None:
        self._batch = batch
        self._sequence = sequence
        self._decoder = Utf8Stream()
        self.stats = sequence.stats
        """Counts and times, up to date between pieces."""
        self.tokens: list[int] = []
        """Token ids made so far; the one that ended the text, if any, is the last."""
        self.text = ""
        """What they say."""

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that were decoded before, and not again."""
        return self._sequence.n_cached

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ended, once it has."""
        return self._sequence.finish_reason

    @property
    def error(self) -> ContextFull | None:
        """Set if the cache had no room for this one before its own context was full; iterating it raises it."""
        return self._sequence.error

    def close(self) -> None:
        """End the generation early; its place is free for another."""
        self._batch._remove(self)

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        while (piece := self._batch._next_piece(self)) is not None:
            if piece:
                return piece
        if self.error:
            raise self.error
        raise StopIteration

    def _extend(self, data: bytes, tokens: list[int]) -> str:
        """Take the tokens of a step and their bytes; return the text that is complete with them."""
        self.tokens += tokens
        piece = self._decoder.push(data)
        if self.finish_reason:
            piece += self._decoder.flush()
        self.text += piece
        return piece
