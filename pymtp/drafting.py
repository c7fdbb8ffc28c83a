"""Where drafts come from.

Owns the drafters' state: how far the MTP heads have seen each sequence. Knows token ids; never text,
acceptance or the target's sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.sampler import Distribution
from pymtp.sequence import Proposal, Round, Turn
from pymtp.session import Chunk, Session

N_KEPT = 64
"""Positions behind its end for which a session keeps a sequence's hidden states."""

# rejected drafts may have taken the place of some of them
_N_BACK = N_KEPT // 2


class Drafter(Protocol):
    """Proposes tokens that the target then verifies, for several sequences at once."""

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        """Return for each turn at most `turn.n_draft` tokens that may follow the sequence's history.

        The last token of the history is not decoded yet. A round that raises may be played again.
        """

    def observe(self, rounds: Sequence[Round]) -> None:
        """Take note of what the target made of the proposals; the sequences are not advanced yet."""

    def resume(self, slot: int, n: int, n_decoded: int) -> int:
        """`slot` held `n_decoded` decoded tokens, and its next sequence begins with the first `n` of them.

        Return how many of these the drafter can go on behind, at most `n`; the next sequence decodes the others again.
        """

    def forget(self, slot: int) -> None:
        """The sequence in `slot` is gone."""


class NoDrafter:
    """Plain decoding."""

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        """Return no drafts. See Drafter."""
        return [Proposal()] * len(turns)

    def observe(self, rounds: Sequence[Round]) -> None:
        """Nothing to note."""

    def resume(self, slot: int, n: int, n_decoded: int) -> int:
        """All of them. See Drafter."""
        return n

    def forget(self, slot: int) -> None:
        """Nothing to forget."""


class MtpDrafter:
    """Drafts with the model's own MTP heads, on the target's cache.

    Prompts and verified rows feed the heads in the target's own pass, so that a draft takes one row of a sequence,
    its newest token. Rounds that do not draft leave the heads alone, which is cheaper; the next draft of the
    sequence then begins at the first position that they have not seen.

    Where a draft is the head's most likely token, all steps run in one graph; else the samplers pick, step by step.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._n_fed: dict[int, int] = {}  # by slot: the positions that the heads have seen
        self._barred: tuple[int, ...] | None = None
        # a pass has room for the rows of all sequences, even if all have to catch up
        self._n_rows_max = min(N_KEPT, session.n_ubatch // session.n_seq_max)

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        """Draft for all turns in one pass of the heads. See Drafter."""
        drafting = [turn for turn in turns if self._needs_heads(turn)]
        drafted = dict(zip((turn.slot for turn in drafting), self._draft(drafting), strict=True))
        return [drafted.get(turn.slot, Proposal(feed=self._is_fed_prompt(turn))) for turn in turns]

    def observe(self, rounds: Sequence[Round]) -> None:
        """Note how far the heads were fed. See Drafter."""
        self._n_fed.update((played.turn.slot, played.n_decoded) for played in rounds if played.proposal.feed)

    def resume(self, slot: int, n: int, n_decoded: int) -> int:
        """As far as the heads have seen, if the hidden state before is still there. See Drafter."""
        n = min(n, self._n_fed.pop(slot, 0))
        if n_decoded - n > _N_BACK:
            return 0
        self._n_fed[slot] = n
        return n

    def forget(self, slot: int) -> None:
        """See Drafter."""
        self._n_fed.pop(slot, None)

    def _needs_heads(self, turn: Turn) -> bool:
        if turn.sequence.in_prompt or turn.slot not in self._n_fed:
            return False
        # a pause ends before hidden states get lost
        return turn.n_draft > 0 or turn.end - self._n_fed[turn.slot] >= self._n_rows_max

    @staticmethod
    def _is_fed_prompt(turn: Turn) -> bool:
        return turn.sequence.in_prompt and turn.sequence.draft_max > 0

    def _draft(self, turns: list[Turn]) -> list[Proposal]:
        if not turns:
            return []
        first = [
            Chunk(turn.sequence.history[self._n_fed[turn.slot] :], self._n_fed[turn.slot], turn.slot) for turn in turns
        ]
        n_steps = max(1, *(turn.n_draft for turn in turns))
        bars = {turn.draft_bar for turn in turns}
        bar = bars.pop()
        if bar is None or bars:
            return self._step_by_step(turns, first, n_steps)
        if bar != self._barred:
            self._session.bar(bar)
            self._barred = bar
        if not any(turn.sequence.length.uses_confidence for turn in turns):
            drafts = self._session.draft_greedy(first, n_steps)
            return [turn.propose(_useful(row.tolist(), turn), [], []) for turn, row in zip(turns, drafts, strict=True)]
        drafts, probs = self._session.draft_greedy(first, n_steps, probs=True)
        useful = [_useful(row.tolist(), turn) for turn, row in zip(turns, drafts, strict=True)]
        return [
            turn.propose(tokens, [], confidences[: len(tokens)].tolist())
            for turn, tokens, confidences in zip(turns, useful, probs, strict=True)
        ]

    def _step_by_step(self, turns: list[Turn], chunks: list[Chunk], n_steps: int) -> list[Proposal]:
        drafted: dict[int, list[tuple[int, Distribution]]] = {turn.slot: [] for turn in turns}
        drafting = turns
        try:
            for step in range(n_steps):
                self._session.draft(step, n_steps, chunks)
                for turn, row in zip(drafting, self._session.draft_rows(), strict=True):
                    if turn.n_draft > step and (picked := turn.draft(row)):
                        drafted[turn.slot].append(picked)
                drafting = [turn for turn in drafting if _goes_on(turn, drafted[turn.slot], step)]
                if not drafting:
                    break
                chunks = [Chunk([drafted[turn.slot][-1][0]], turn.end + step, turn.slot) for turn in drafting]
        finally:
            for turn in turns:
                turn.sequence.sampler.forget()
        return [_proposal(turn, drafted[turn.slot]) for turn in turns]


def _goes_on(turn: Turn, drafted: Sequence[tuple[int, Distribution]], step: int) -> bool:
    """Whether a turn that took part in `step` drafts another token."""
    if turn.n_draft <= step + 1 or len(drafted) <= step or drafted[-1][0] in turn.sequence.stop:
        return False
    return len(_proposal(turn, drafted).drafts) == len(drafted)  # else the last one is not worth a row


def _proposal(turn: Turn, drafted: Sequence[tuple[int, Distribution]]) -> Proposal:
    confidences = [float(distribution.probs.max()) for _, distribution in drafted]
    return turn.propose([token for token, _ in drafted], [distribution for _, distribution in drafted], confidences)


def _useful(drafts: list[int], turn: Turn) -> list[int]:
    """As many as the turn asks for, and none behind a token that ends the text."""
    drafts = drafts[: turn.n_draft]
    ends = (i + 1 for i, token in enumerate(drafts) if token in turn.sequence.stop)
    return drafts[: next(ends, len(drafts))]
