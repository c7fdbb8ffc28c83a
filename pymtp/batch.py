"""Requests in, text out: many generations of one model at a time.

Owns what turns tokens into text and back for each request. Which of them run when is the scheduler's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pymtp.cost_record import CostRecord
from pymtp.draft_length import AdaptiveLength, LengthRow
from pymtp.draft_vocab import AutoDraftVocab
from pymtp.drafting import Drafter, MtpDrafter, NoDrafter
from pymtp.errors import ContextFull, InvalidParameter
from pymtp.experience import Experience
from pymtp.logprobs import TokenLogprobs
from pymtp.request import GenerationParams, make_sequence
from pymtp.scheduler import Scheduler
from pymtp.sequence import FinishReason, Round, TokenSequence
from pymtp.session import Session
from pymtp.statistics import Stats
from pymtp.text import Origins, TextStream
from pymtp.vocabulary import Vocabulary

OnPrompt = Callable[[int, int], object]
"""Told after each part of a prompt: how many of its tokens are in the cache, and how many it has."""


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

    def __init__(
        self,
        session: Session,
        vocabulary: Vocabulary,
        *,
        keep: bool = False,
        drafter: type[Drafter] | None = None,
        experience: Experience | None = None,
        cost_record: CostRecord | None = None,
        draft_vocab: AutoDraftVocab | None = None,
        defaults: GenerationParams | None = None,
    ) -> None:
        drafter = drafter or (MtpDrafter if session.n_heads else NoDrafter)
        self._traits = drafter.traits
        self._session = session
        self._vocabulary = vocabulary
        self._experience = experience or Experience()
        self._cost_record = cost_record
        self._defaults = defaults or GenerationParams()
        self._scheduler = Scheduler(
            session,
            drafter(session),
            report=self._report,
            costs=self._experience.costs,
            draft_vocab=draft_vocab,
            keep=keep,
        )
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
        params: GenerationParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        **options: Any,
    ) -> Generation:
        """Ask for the continuation of `prompt` (text, or token ids).

        `options` are fields of GenerationParams, and stand before those of `params`. `on_prompt` is told how far the
        prompt is, up to all of it, before there is text; what it raises ends the batch.

        Raises ContextFull if the prompt does not fit, InvalidParameter for a value out of range.
        """
        params = replace(params or self._defaults, **options)
        if params.draft_max is None:
            params = replace(params, draft_max=self._defaults.draft_max)
        session = self._session
        sequence = make_sequence(
            self._tokens(prompt),
            params,
            self._vocabulary,
            n_ctx=session.n_ctx,
            n_draft_max=session.n_draft_max,
            drafter=self._traits,
            experience=self._experience,
            cost_record=self._cost_record,
        )
        if sequence.sampler.n_candidates > session.n_reduced:
            session.reduce_logits(sequence.sampler.n_candidates)
        self._live[sequence] = generation = Generation(self, sequence, params.stop, on_prompt)
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
        """Run one pass."""
        try:
            self._scheduler.step()
        except BaseException:  # also Ctrl-C: a pass that nobody took note of leaves nothing to go on from
            self.close()
            raise

    def _report(self, sequence: TokenSequence, played: Round | None) -> None:
        """Keep the piece of text that a pass has given."""
        generation = self._live[sequence]
        piece = generation._extend(played)
        if piece or sequence.finish_reason:
            self._pieces.append((generation, piece))
        if sequence.finish_reason:
            del self._live[sequence]

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

    def __init__(
        self, batch: Batch, sequence: TokenSequence, stop: Sequence[str] = (), on_prompt: OnPrompt | None = None
    ) -> None:
        self._batch = batch
        self._sequence = sequence
        self._on_prompt = on_prompt  # until the prompt is done
        self._stream = TextStream(stop)
        self._piece = ""  # of the round that is being played, or was
        self._n_characters: list[int] = []  # of each of its tokens
        self._origins = Origins()
        self._can_stop = bool(stop)
        if stop:  # else text can wait until the next pass is under way
            sequence.cut = self._take
        self.stats = sequence.stats
        """Counts and times, up to date between pieces."""
        self.tokens: list[int] = []
        """Token ids made so far; the one that ended the text, if any, is the last."""
        self.logprobs: list[TokenLogprobs] = []
        """Of the tokens, if they were asked for."""
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
    def acceptance(self) -> str:
        """How drafts are verified; of methods that change the text it says so."""
        sequence = self._sequence
        if sequence.pick.compares:
            return " or ".join(dict.fromkeys((sequence.accept.name, sequence.accept_drawn.name)))
        return sequence.accept_drawn.name if sequence.pick.draws else sequence.accept.name

    @property
    def length_table(self) -> list[LengthRow]:
        """What the draft length is decided from at present; empty if it is fixed."""
        length = self._sequence.length
        return length.table() if isinstance(length, AdaptiveLength) and self._sequence.draft_max else []

    @property
    def error(self) -> ContextFull | None:
        """Set if the cache had no room for this one before its own context was full; iterating it raises it."""
        return self._sequence.error

    def parts(self, begin: int = 0, end: int | None = None) -> list[tuple[str, bool]]:
        """Cut `text[begin:end]` where it changes between accepted drafts (True) and what the target sampled (False).

        A character that several tokens make up belongs to the last of them.
        """
        return self._origins.parts(self.text[begin:end], begin)

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

    def _take(self, tokens: Sequence[int]) -> int | None:
        """Put the text of a round's tokens together; return behind how many of them a stop string ends it, if any."""
        for i, token in enumerate(tokens):
            n_before = self._stream.n_characters
            self._piece += self._stream.push(self._batch._vocabulary.piece(token))
            self._n_characters.append(self._stream.n_characters - n_before)
            if self._stream.has_stopped:
                return i + 1
        return None

    def _tell_prompt(self) -> None:
        if self._on_prompt:
            self._on_prompt(self._sequence.n_decoded, self._sequence.n_prompt)
            if not self._sequence.in_prompt:
                self._on_prompt = None

    def _extend(self, played: Round | None) -> str:
        """Note what a pass has brought; return the text that is certain with it."""
        if played:
            if not self._can_stop:
                self._take(played.tokens)
            self._tell_prompt()
            self.tokens += played.tokens
            self.logprobs += played.logprobs
            for i, n_characters in enumerate(self._n_characters):
                self._origins.add(n_characters, drafted=i < played.n_accepted)
            self._n_characters = []
        piece, self._piece = self._piece, ""
        if self.finish_reason:
            piece += self._stream.flush()
        self.text += piece
        return piece
