"""Who takes part in the next pass: sequences in slots, and those that wait for one.

Owns the slots of a session, and the clock. Knows token ids; never text or what is sampled and drafted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import sub
from typing import NamedTuple

from pymtp.draft_vocab import AutoDraftVocab
from pymtp.drafting import Drafter
from pymtp.errors import ContextFull, PymtpError
from pymtp.round import play_round
from pymtp.round_costs import RoundCosts
from pymtp.sequence import Round, TokenSequence, Turn
from pymtp.session import Session, Timing
from pymtp.statistics import Stats

Report = Callable[[TokenSequence, Round | None], object]


class _Pass(NamedTuple):
    """What was played."""

    turns: list[Turn]
    rounds: list[Round]
    seconds: float
    spent: Timing


class Scheduler:
    """Generates many sequences in a session, as many at a time as it has slots, first come, first served.

    A step is one pass of at most `session.n_ubatch` rows: a round of every sequence that generates, and with what
    is left of the rows the next tokens of prompts. So a long prompt comes in pieces and holds up nobody.

    With `keep`, what a sequence has decoded stays in its slot when it ends: the next one decodes what differs.

    `report` is told each sequence that took part in a pass, and what the pass brought it; None if the cache had no room
    for it, which ends it. Where a device computes, it is told while the next pass is under way, unless a text begins or
    ends.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        *,
        report: Report = lambda sequence, played: None,
        costs: RoundCosts | None = None,
        draft_vocab: AutoDraftVocab | None = None,
        keep: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stats = Stats()
        """Of all sequences. A pass's time is shared out between prompts and generation by their rows."""
        self._report = report
        self._session = session
        self._drafter = drafter
        self._costs = costs or RoundCosts()
        self._draft_vocab = draft_vocab
        self._clock = clock
        self._keep = keep
        self._kept: dict[int, list[int]] = {}  # by free slot: the tokens that are decoded in it
        self._free = list(reversed(range(session.n_seq_max)))
        self._running: dict[int, TokenSequence] = {}  # by slot, in the order of admission
        self._waiting: deque[TokenSequence] = deque()
        self._played: _Pass | None = None  # what is not reported yet

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return not self._running and not self._waiting

    def submit(self, sequence: TokenSequence) -> None:
        """Queue a sequence."""
        self._waiting.append(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """End a sequence early and free its slot; nothing happens if it has ended."""
        self._tell()
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        for slot in [slot for slot, running in self._running.items() if running is sequence]:
            self._release(slot)

    def forget(self) -> None:
        """Let go of what ended sequences have left in free slots."""
        for slot in list(self._kept):
            del self._kept[slot]
            self._clear(slot)

    def step(self) -> None:
        """Play one pass.

        A sequence for which the cache has no room ends with its `error` set; the others go on. Any other error is
        raised; the sequences cannot go on then.
        """
        self._admit()
        turns = self._turns()
        self._limit_drafts()
        before, start = self._session.timing, self._clock()
        rounds = self._play(turns)
        seconds = self._clock() - start
        spent = Timing(*map(sub, self._session.timing, before))
        for played in rounds:
            played.turn.sequence.advance(played)
            if played.turn.sequence.finish_reason:
                self._release(played.turn.slot)
        self._played = _Pass(turns, rounds, seconds, spent)
        if not self._session.computes_apart or any(turn.of_prompt or turn.sequence.finish_reason for turn in turns):
            self._tell()

    def _look_back(self, turns: Sequence[Turn]) -> None:
        """What can wait until the next pass is under way."""
        self._tell()
        for turn in turns:
            turn.sequence.learn()

    def _tell(self) -> None:
        """Report what is not reported yet."""
        if self._played is None:
            return
        (turns, rounds, seconds, spent), self._played = self._played, None
        self._count(rounds, seconds, spent)
        self._weigh(rounds, seconds, spent)
        by_slot = {played.turn.slot: played for played in rounds}
        for turn in turns:
            self._report(turn.sequence, by_slot.get(turn.slot))

    def _admit(self) -> None:
        while self._free and self._waiting:
            sequence = self._waiting.popleft()
            # the last one to become free, unless another begins as the sequence does
            slot = max(reversed(self._free), key=lambda slot: _n_common(self._kept.get(slot, []), sequence.history))
            self._free.remove(slot)
            if sequence.cost_record and sequence.cost_record.ensure(self._session, slot):
                self._kept.pop(slot, None)
            sequence.n_decoded = sequence.n_cached = self._resume(slot, sequence)
            self._running[slot] = sequence
            if self._draft_vocab:
                self._draft_vocab.note_tokens(sequence.history[-N_LOOKED_AT:])

    def _resume(self, slot: int, sequence: TokenSequence) -> int:
        """Leave in the slot what the sequence begins with; return how many tokens that is."""
        kept = self._kept.pop(slot, [])
        # the last token of a prompt is decoded in any case, for its logits
        n = min(_n_common(kept, sequence.history), len(sequence.history) - 1)
        try:
            self._session.truncate(n, sequence=slot)
        except PymtpError:  # there are memories that cannot go back
            n = 0
            self._session.truncate(0, sequence=slot)
        return n

    def _release(self, slot: int) -> None:
        sequence = self._running.pop(slot)
        sequence.learn()
        if self._keep:
            self._kept[slot] = sequence.history[: sequence.n_decoded]
        else:
            self._clear(slot)
        self._free.append(slot)

    def _clear(self, slot: int) -> None:
        self._session.truncate(0, sequence=slot)

    def _turns(self) -> list[Turn]:
        n_left = self._session.n_ubatch
        turns = []
        # sorting is stable: first those behind their prompt, then the prompts in the order of admission
        for slot, sequence in sorted(self._running.items(), key=lambda item: item[1].in_prompt):
            if n_left > 0:
                turns.append(sequence.turn(slot, n_left))
                n_left -= turns[-1].n_rows + turns[-1].n_draft
        return turns

    def _limit_drafts(self) -> None:
        vocab = self._draft_vocab
        if vocab is None:
            return
        # what is measured must not change a text that has to come out the same each time
        limit = vocab.limits[0] if any(each.is_reproducible for each in self._running.values()) else vocab.review()
        if limit != self._session.n_draft_vocab:
            self._session.limit_drafts(limit)
            self._costs.forget_drafts()
        vocab.limit = limit

    def _play(self, turns: Sequence[Turn]) -> list[Round]:
        try:
            return play_round(self._session, self._drafter, turns, meanwhile=lambda: self._look_back(turns))
        except ContextFull as error:
            for turn in turns:
                self._session.truncate(turn.position, sequence=turn.slot)
            if len(turns) > 1:  # each on its own: the room may do for some
                return [played for turn in turns for played in self._play([turn])]
            self._fail(turns[0], error)
            return []

    def _fail(self, turn: Turn, error: ContextFull) -> None:
        turn.sequence.error = error
        turn.sequence.finish_reason = "context"
        self._release(turn.slot)

    def _weigh(self, rounds: Sequence[Round], seconds: float, spent: Timing) -> None:
        """Note what a pass has cost; one that takes prompts or builds a graph first tells nothing of rounds."""
        if not rounds or spent.n_builds or any(played.turn.of_prompt for played in rounds):
            return
        if any(played.proposal.catches_up for played in rounds):
            if len(rounds) == 1 and rounds[0].proposal.n_drafted == 1:
                self._costs.observe_trial(len(rounds[0].tokens), seconds * 1000)
            return
        n, n_steps = len(rounds), max(played.proposal.n_drafted for played in rounds)
        verify_ms, draft_ms = spent.trunk_us / 1000, spent.head_us / 1000
        self._costs.observe(
            sum(played.n_rows for played in rounds),
            n_steps,
            verify_ms=verify_ms,
            draft_ms=draft_ms,
            rest_ms=max(seconds * 1000 - verify_ms - draft_ms, 0.0),
            n_sequences=n,
        )
        if self._draft_vocab and n_steps:
            self._draft_vocab.note_tokens(token for played in rounds for token in played.tokens)
            n_accepted = sum(played.n_accepted for played in rounds) / n
            other_ms = (seconds * 1000 - draft_ms) / n
            self._draft_vocab.note_round(n_steps, n_accepted, draft_ms=draft_ms / n, other_ms=other_ms)

    def _count(self, rounds: Sequence[Round], seconds: float, spent: Timing) -> None:
        n_rows = sum(played.n_rows for played in rounds)
        for played in rounds:
            sequence = played.turn.sequence
            for stats, share in ((sequence.stats, 1.0), (self.stats, played.n_rows / n_rows)):
                stats.generated_tokens += len(played.tokens)
                if played.turn.of_prompt:
                    stats.prompt_tokens += played.turn.n_rows
                    stats.prompt_s += seconds * share
                else:
                    stats.generation_s += seconds * share
                    stats.draft_s += spent.head_us / 1e6 * share
                    stats.verify_s += spent.trunk_us / 1e6 * share
                    stats.sample_s += spent.sample_us / 1e6 * share
                    stats.add_round(len(played.proposal.drafts), played.n_accepted)


N_LOOKED_AT = 256
"""Tokens of a prompt that tell which ones are frequent."""


def _n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for i, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return i
    return min(len(one), len(other))
