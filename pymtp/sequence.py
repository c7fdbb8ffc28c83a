"""One text in the making, and what it does in a round.

Owns the state of a sequence: its tokens, how far they are decoded, and why it ended. Knows token ids;
never text, and nothing of the other sequences in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pymtp.acceptance import BLOCK_REJECTION, MATCH, Acceptance, Trial
from pymtp.cost_record import CostRecord
from pymtp.distribution import Distribution
from pymtp.draft_length import N_DRAFT_MAX, DraftLength, FixedLength
from pymtp.draft_pick import DraftPick, FixedPick
from pymtp.errors import ContextFull
from pymtp.logprobs import TokenLogprobs, token_logprobs
from pymtp.sampler import Row, Sampler
from pymtp.session import Chunk
from pymtp.statistics import Stats

FinishReason = Literal["eog", "length", "context", "stop"]


@dataclass(eq=False)
class TokenSequence:
    """A prompt and what is generated behind it.

    It ends with a token in `stop`, after `max_tokens` (-1: no limit), where `n_ctx` positions are full, or where
    `cut` says so.
    """

    history: list[int]
    """The prompt at first. Once tokens were generated, all but the last are decoded."""
    sampler: Sampler
    stop: frozenset[int]
    n_ctx: int
    max_tokens: int = -1
    draft_max: int = 0
    """The most that its rounds draft; 0 spares the heads the prompt, too."""
    length: DraftLength = field(default_factory=lambda: FixedLength(N_DRAFT_MAX))
    """Decides how many it drafts in a round, at most draft_max; 0 pauses drafting."""
    pick: DraftPick = field(default_factory=lambda: FixedPick(draws=False))
    """How its drafts are picked."""
    accept: Acceptance = MATCH
    """Judges drafts that are most likely tokens."""
    accept_drawn: Acceptance = BLOCK_REJECTION
    """Judges drafts that were drawn."""
    cut: Callable[[Sequence[int]], int | None] = lambda tokens: None
    """Told the tokens of each round; returns behind how many of them the text ends, or None if it goes on."""
    is_reproducible: bool = False
    """Whether its text depends on its drafts, and has to come out the same each time."""
    cost_record: CostRecord | None = None
    """What its length has to be decided from, if that must not be measured while it is made."""
    n_logprobs: int | None = None
    """Tokens whose probabilities are reported in each place, besides that of the emitted one; None: nothing is."""
    stats: Stats = field(default_factory=Stats)
    finish_reason: FinishReason | None = None
    error: ContextFull | None = None
    """Set if the cache had no room for it before the end of its own context."""

    def __post_init__(self) -> None:
        self.n_prompt = len(self.history)
        self.n_decoded = self.n_cached = 0
        self.n_left = self.n_ctx if self.max_tokens < 0 else self.max_tokens
        self.told: tuple[Sequence[int], Sequence[float], Sequence[bool]] = (), (), ()
        """Of the latest round: tokens, the drafts' confidences, and which of these were right."""

    @property
    def in_prompt(self) -> bool:
        """Whether tokens of the prompt are still to be decoded."""
        return self.n_decoded < self.n_prompt

    def turn(self, slot: int, n_rows_max: int) -> Turn:
        """The next turn of a sequence that sits in `slot`: at most `n_rows_max` tokens of the prompt, or a round."""
        if self.in_prompt:
            return Turn(self, slot, min(self.n_prompt - self.n_decoded, n_rows_max), 0, of_prompt=True)
        # drafts need a position in the context, and the round emits one token besides them
        n_draft = min(self.length.steps(), self.draft_max, self.n_ctx - len(self.history), self.n_left - 1)
        return Turn(self, slot, 1, n_draft, draws=self.pick.draws)

    def learn(self) -> None:
        """Let `length` see what the latest round has told: when there is time for it, before the next but one."""
        told, self.told = self.told, ((), (), ())
        self.length.observe(*told)

    def advance(self, played: Round) -> None:
        """Take what a turn brought."""
        self.n_decoded = played.n_decoded
        self.history += played.tokens
        self.n_left -= len(played.tokens)
        if self.in_prompt:
            return
        if played.is_cut:
            self.finish_reason = "stop"
        elif played.tokens and played.tokens[-1] in self.stop:
            self.finish_reason = "eog"
        elif self.n_left == 0:
            self.finish_reason = "length"
        elif len(self.history) > self.n_ctx:  # the last token needs no position of its own
            self.finish_reason = "context"


class Turn(NamedTuple):
    """What a sequence does in a round: decode tokens of its prompt, or its newest token and drafts behind it."""

    sequence: TokenSequence
    slot: int
    """The sequence's number in the session."""
    n_rows: int
    """Tokens of the history that are decoded; 1 behind the prompt."""
    n_draft: int
    """The most drafts that are verified with them."""
    draws: bool = False
    """Whether the drafts are drawn; else they are the most likely tokens."""
    of_prompt: bool = False
    """Whether the tokens are the prompt's."""

    @property
    def position(self) -> int:
        """Of the first row."""
        return self.sequence.n_decoded

    @property
    def end(self) -> int:
        """The position behind the rows, where drafts begin."""
        return self.position + self.n_rows

    @property
    def samples(self) -> bool:
        """Whether the target samples: not in a part of the prompt that is not its last."""
        return self.end == len(self.sequence.history) and self.sequence.n_left > 0

    def n_logits(self, proposal: Proposal) -> int:
        """Rows whose logits it needs: that of the newest token and those of the drafts."""
        return 1 + len(proposal.drafts) if self.samples else 0

    def chunk(self, proposal: Proposal) -> Chunk:
        """Its rows in the pass of the target."""
        tokens = [*self.sequence.history[self.position : self.end], *proposal.drafts]
        logits: Literal["all", "last", "none"] = "last" if self.of_prompt else "all"
        logits = logits if self.samples else "none"
        return Chunk(tokens, self.position, self.slot, logits, proposal.n_heads > 0, proposal.n_heads)

    @property
    def draft_bar(self) -> tuple[int, ...] | None:
        """If the session can pick the drafts itself: the tokens that they cannot be. Else None."""
        return None if self.draws or self.sequence.pick.compares else self.sequence.sampler.draft_bar

    def n_worth(self, drafts: Sequence[int], confidences: Sequence[float]) -> int:
        """How many of the drafts are worth to be verified."""
        return self.sequence.length.n_verified(confidences, drawn=self.draws) if confidences else len(drafts)

    def draft(self, row: Row) -> Picked | None:
        """The next draft. The sampler assumes it until `Sampler.forget`.

        None: the heads know no token that can follow.
        """
        sampler = self.sequence.sampler
        distribution = sampler.draft_distribution(row)
        best = distribution.best
        if best is None:
            return None
        token, confidence = best
        if self.draws:
            token = distribution.draw(sampler.random())
        sampler.assume(token)
        return Picked(token, confidence, distribution)

    def judge(self, rows: Sequence[Row], proposal: Proposal) -> Round:
        """What the target makes of the proposal. `rows`: (n_logits,) of the target."""
        if not self.samples:
            return Round(self, proposal, [], 0)
        sequence = self.sequence
        accept = sequence.accept_drawn if self.draws and proposal.drafts else sequence.accept
        compares = sequence.pick.compares and bool(proposal.distributions)
        keep = compares or sequence.n_logprobs is not None
        drawn_from = proposal.distributions if self.draws else ()
        verdict = accept(sequence.sampler, Trial(rows, proposal.drafts, drawn_from, sequence.stop, keep))
        if compares:
            sequence.pick.observe(proposal.distributions, verdict.targets)
        sequence.told = verdict.tokens, proposal.confidences, proposal.are_right(verdict.tokens)
        n_kept = sequence.cut(verdict.tokens)
        tokens = verdict.tokens[:n_kept]
        return Round(
            self,
            proposal,
            tokens,
            min(verdict.n_accepted, len(tokens)),
            is_cut=n_kept is not None,
            logprobs=self._logprobs(rows, verdict.targets, tokens),
        )

    def _logprobs(
        self, rows: Sequence[Row], targets: Sequence[Distribution], tokens: Sequence[int]
    ) -> list[TokenLogprobs]:
        n = self.sequence.n_logprobs
        if n is None:
            return []
        judged = zip(rows, targets, tokens, strict=False)
        return [token_logprobs(row, target, token, n) for row, target, token in judged]


class Picked(NamedTuple):
    """A draft."""

    token: int
    confidence: float
    """The probability of the most likely token in its place."""
    distribution: Distribution
    """What it was picked from."""


class Proposal(NamedTuple):
    """What a drafter has to say about a turn."""

    drafts: Sequence[int] = ()
    distributions: Sequence[Distribution] = ()
    """What they were picked from, (len(drafts),); or empty."""
    confidences: Sequence[float] = ()
    """The probability of the most likely token in the place of each draft, spare ones included; or empty."""
    spare: Sequence[int] = ()
    """Drafts behind the others, which are not verified."""
    n_heads: int = 0
    """Heads that are to see the rows of the turn."""
    catches_up: bool = False
    """Whether the draft took more than one row, which says nothing of what drafts cost."""

    @property
    def n_drafted(self) -> int:
        """Drafts, verified or not."""
        return len(self.drafts) + len(self.spare)

    def are_right(self, tokens: Sequence[int]) -> list[bool]:
        """Of the drafts that the emitted `tokens` tell about, from the first on: whether the text goes on with them."""
        same = [token == draft for token, draft in zip(tokens, [*self.drafts, *self.spare], strict=False)]
        return same[: same.index(False) + 1] if False in same else same


class Round(NamedTuple):
    """What a turn brought: the drafts, and the tokens that it emitted."""

    turn: Turn
    proposal: Proposal
    tokens: list[int]
    """The accepted drafts, then the recovered or bonus token; none inside a prompt."""
    n_accepted: int
    """Drafts that the target kept."""
    is_cut: bool = False
    """Whether the text ends here because it was cut."""
    logprobs: Sequence[TokenLogprobs] = ()
    """Of the tokens, if the sequence asks for them."""

    @property
    def n_rows(self) -> int:
        """Rows of the target's pass that were the sequence's."""
        return self.turn.n_rows + len(self.proposal.drafts)

    @property
    def n_decoded(self) -> int:
        """Positions of the sequence that stay decoded: all of its tokens but the last that was emitted."""
        return self.turn.end + max(len(self.tokens) - 1, 0)
