"""From a prompt to tokens: the round, and the loop around it.

Owns one sequence of a session while it generates. Knows token ids; text is made from them elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pymtp.acceptance import match
from pymtp.drafting import Drafter
from pymtp.sampling import Sampler
from pymtp.session import Session
from pymtp.statistics import Stats

FinishReason = Literal["eog", "length", "context"]


@dataclass(frozen=True)
class Round:
    """What one round did: the tokens that it drafted and those that it emitted."""

    drafts: list[int]
    tokens: list[int]
    """The accepted drafts, then the recovered or bonus token."""

    @property
    def n_accepted(self) -> int:
        """Drafts that the target kept."""
        return sum(token == draft for token, draft in zip(self.tokens, self.drafts, strict=False))


def play_round(
    session: Session, drafter: Drafter, sampler: Sampler, history: Sequence[int], n_draft: int, stop: Container[int]
) -> Round:
    """Draft, verify in one pass of the target, accept, and roll back what was not accepted.

    `history` is the whole sequence; all but its last token are decoded. Afterwards that token and
    the accepted drafts are decoded as well, and the round's last token takes its place.
    """
    position = len(history) - 1
    drafts = drafter.propose(history, n_draft)
    session.decode([history[-1], *drafts], position, logits="all")
    tokens = match(sampler, session.logits, drafts, stop)
    session.truncate(position + len(tokens))
    return Round(drafts, tokens)


@dataclass(frozen=True)
class TokenLoop:
    """Generates tokens in an empty session until a stop token, `max_tokens` (-1: no limit) or the context's end."""

    session: Session
    drafter: Drafter
    sampler: Sampler
    stop: frozenset[int]
    n_draft: int
    max_tokens: int
    clock: Callable[[], float] = time.perf_counter

    def run(self, prompt: Sequence[int], stats: Stats) -> Generator[list[int], None, FinishReason]:
        """Yield the tokens of each step, keeping `stats` up to date; return why the text ended."""
        history = list(prompt)
        n_left = self.max_tokens if self.max_tokens >= 0 else self.session.n_ctx
        reason: FinishReason | None = None if n_left else "length"

        start = self.clock()
        for chunk in self._prefill(prompt):
            stats.prompt_tokens += chunk
            stats.prompt_s = self.clock() - start
        self.drafter.begin(len(prompt))

        start = self.clock()
        while reason is None:
            tokens = self._step(history, n_left, stats)
            history += tokens
            n_left -= len(tokens)
            stats.generated_tokens += len(tokens)
            stats.generation_s = self.clock() - start
            reason = self._finished(history, n_left)
            yield tokens
        return reason

    def _prefill(self, prompt: Sequence[int]) -> Iterator[int]:
        # one ubatch at a time: between them the caller sees progress, and Ctrl-C gets through
        for position in range(0, len(prompt), self.session.n_ubatch):
            chunk = prompt[position : position + self.session.n_ubatch]
            is_last = position + len(chunk) == len(prompt)
            self.session.decode(chunk, position, logits="last" if is_last else "none", prompt=True)
            if is_last:
                _ = self.session.logits  # wait for the device: the time belongs to the prompt
            yield len(chunk)

    def _step(self, history: list[int], n_left: int, stats: Stats) -> list[int]:
        if stats.generated_tokens == 0:
            return [self.sampler.sample(self.session.logits[0])]
        # drafts need a position in the context, and the round emits one token besides them
        n_draft = min(self.n_draft, self.session.n_ctx - len(history), n_left - 1)
        played = play_round(self.session, self.drafter, self.sampler, history, n_draft, self.stop)
        stats.add_round(len(played.drafts), played.n_accepted)
        return played.tokens

    def _finished(self, history: list[int], n_left: int) -> FinishReason | None:
        if history[-1] in self.stop:
            return "eog"
        if n_left == 0:
            return "length"
        return "context" if len(history) > self.session.n_ctx else None
