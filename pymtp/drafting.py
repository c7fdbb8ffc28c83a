"""Where drafts come from.

Knows token ids and what a session is asked for; never text, acceptance or the target's sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from pymtp.distribution import Distribution
from pymtp.sequence import Picked, Proposal, Round, Turn
from pymtp.session import Chunk, Session

CATCH_UP, CATCH_UP_FOR_TRIAL = 56, 32
"""Positions that heads see before they draft, if they were left behind: the last of those that they have missed."""


@dataclass(frozen=True)
class DrafterTraits:
    """What a drafter needs and what it allows, so that nobody has to know which one it is."""

    name: str
    """What reports call it."""
    needs_rollback: bool = True
    """Whether its drafts can turn out wrong: the session must be able to go back over them."""
    has_own_kv: bool = False
    """Whether it keeps K/V in the session, which the model's heads are loaded for."""
    allows_grammar: bool = True
    """Whether it drafts where a grammar says what the text can be."""
    allows_drawn: bool = False
    """Whether it can draw its drafts (`Turn.draws`), and says what from (`Proposal.distributions`)."""
    allows_many: bool = True
    """Whether it drafts for several sequences at a time."""


class Drafter(Protocol):
    """Proposes tokens that the target then verifies, for several sequences at once."""

    traits: ClassVar[DrafterTraits]

    def __init__(self, session: Session) -> None:
        """Drafts for the sequences of `session`."""

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        """Return for each turn at most `turn.n_draft` tokens that may follow the sequence's history.

        The last token of the history is not decoded yet. A round that raises may be played again.
        """

    def observe(self, rounds: Sequence[Round]) -> None:
        """Take note of what the target made of the proposals; the sequences are not advanced yet."""


class NoDrafter:
    """Plain decoding."""

    traits: ClassVar = DrafterTraits("none", needs_rollback=False)

    def __init__(self, session: Session) -> None:
        """Needs nothing of it."""

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        """Return no drafts. See Drafter."""
        return [Proposal()] * len(turns)

    def observe(self, rounds: Sequence[Round]) -> None:
        """Nothing to note."""


class MtpDrafter:
    """Drafts with the model's own MTP heads, on the target's cache.

    Prompts and verified rows go through the heads in the target's own pass, so that a draft takes one row of a
    sequence, its newest token. Of several heads only those see them that draft. Rounds that do not draft leave the
    heads alone, which is cheaper; the next draft begins with the last few positions that they have missed, and what
    lies before these stays a gap in what the heads know. An assistant in the place of heads has no need of all this.

    Where a draft is the head's most likely token, all steps run in one graph; else the samplers pick, step by step.
    """

    traits: ClassVar = DrafterTraits("mtp", has_own_kv=True, allows_drawn=True)

    def __init__(self, session: Session) -> None:
        self._session = session
        self._barred: tuple[int, ...] | None = None
        # a pass has room for the rows of all sequences, even if all have to catch up
        self._catch_up_max = session.n_ubatch // session.n_seq_max - 1

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        """Draft for all turns in one pass of the heads. See Drafter."""
        drafting = [turn for turn in turns if turn.n_draft > 0]
        drafted = self._propose(drafting) if drafting else {}
        return [drafted.get(turn.slot) or self._undrafted(turn) for turn in turns]

    def _propose(self, turns: list[Turn]) -> dict[int, Proposal]:
        """By slot."""
        n_steps = max(turn.n_draft for turn in turns)
        first = [self._first_chunk(turn, n_steps) for turn in turns]
        return {
            turn.slot: self._proposal(turn, made, min(n_steps, self._session.n_heads), catches_up=len(chunk.tokens) > 1)
            for turn, made, chunk in zip(turns, self._draft(turns, first, n_steps), first, strict=True)
        }

    def observe(self, rounds: Sequence[Round]) -> None:
        """Nothing to note: the session knows what the heads have seen."""

    def _undrafted(self, turn: Turn) -> Proposal:
        feeds = turn.of_prompt and turn.sequence.draft_max > 0
        return Proposal(n_heads=self._session.n_heads) if feeds else _NOTHING

    def _first_chunk(self, turn: Turn, n_steps: int) -> Chunk:
        n = CATCH_UP if turn.sequence.length.keeps_up else CATCH_UP_FOR_TRIAL
        begin = max(self._session.seen_end(turn.slot, n_steps), turn.position - min(n, self._catch_up_max))
        return Chunk(turn.sequence.history[begin:], begin, turn.slot)

    def _draft(self, turns: list[Turn], first: list[Chunk], n_steps: int) -> list[_Drafted]:
        bars = {turn.draft_bar for turn in turns}
        bar = bars.pop()
        if bar is None or bars:
            return self._step_by_step(turns, first, n_steps)
        if bar != self._barred:
            self._session.bar(bar)
            self._barred = bar
        if any(turn.sequence.length.uses_confidence for turn in turns):
            drafts, probs = self._session.draft_greedy(first, n_steps, probs=True)
            confidences = probs.tolist()
        else:
            drafts, confidences = self._session.draft_greedy(first, n_steps), [[]] * len(turns)
        useful = [_useful(row, turn) for row, turn in zip(drafts.tolist(), turns, strict=True)]
        return [_Drafted(tokens, [], sure[: len(tokens)]) for tokens, sure in zip(useful, confidences, strict=True)]

    def _step_by_step(self, turns: list[Turn], chunks: list[Chunk], n_steps: int) -> list[_Drafted]:
        drafted = {turn.slot: _Drafted([], [], []) for turn in turns}
        drafting = turns
        try:
            for step in range(n_steps):
                self._session.draft(step, n_steps, chunks)
                for turn, row in zip(drafting, self._session.draft_rows(), strict=True):
                    if turn.n_draft > step and (picked := turn.draft(row)):
                        drafted[turn.slot].add(picked)
                drafting = [turn for turn in drafting if _goes_on(turn, drafted[turn.slot], step)]
                if not drafting:
                    break
                chunks = [Chunk([drafted[turn.slot].tokens[-1]], turn.end + step, turn.slot) for turn in drafting]
        finally:
            for turn in turns:
                turn.sequence.sampler.forget()
        return [drafted[turn.slot] for turn in turns]

    @staticmethod
    def _proposal(turn: Turn, drafted: _Drafted, n_heads: int, *, catches_up: bool) -> Proposal:
        n = turn.n_worth(drafted.tokens, drafted.confidences)
        return Proposal(
            drafted.tokens[:n],
            drafted.distributions[:n],
            drafted.confidences,
            drafted.tokens[n:],
            n_heads=n_heads if turn.sequence.length.keeps_up else 0,
            catches_up=catches_up,
        )


_NOTHING = Proposal()


class _Drafted(NamedTuple):
    """Tokens, what they were picked from (or nothing), and the probability of the most likely one in each place."""

    tokens: list[int]
    distributions: list[Distribution]
    confidences: list[float]

    def add(self, picked: Picked) -> None:
        self.tokens.append(picked.token)
        self.distributions.append(picked.distribution)
        self.confidences.append(picked.confidence)


def _goes_on(turn: Turn, drafted: _Drafted, step: int) -> bool:
    """Whether a turn that took part in `step` drafts another token."""
    tokens = drafted.tokens
    if turn.n_draft <= step + 1 or len(tokens) <= step or tokens[-1] in turn.sequence.stop:
        return False
    return turn.n_worth(tokens, drafted.confidences) == len(tokens)  # else the last one is not worth a row


def _useful(drafts: list[int], turn: Turn) -> list[int]:
    """As many as the turn asks for, and none behind a token that ends the text."""
    drafts = drafts[: turn.n_draft]
    stop = turn.sequence.stop
    for i, token in enumerate(drafts):
        if token in stop:
            return drafts[: i + 1]
    return drafts
