"""Passes of a session: what each sequence does in the next one, and what is done where the cache has no room for it.

Owns the clock of passes. Knows sequences and their shares; must not know jobs, or which of them run.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import sub
from typing import NamedTuple

from pymtp.drafting.interface import Drafter
from pymtp.engine.session import Counters, Session
from pymtp.errors import BackendError, ContextFull, PymtpError
from pymtp.serving.round import run_round
from pymtp.serving.sequence import Share, ShareResult, TokenSequence
from pymtp.serving.slots import Slots


class PassResult(NamedTuple):
    shares: Sequence[Share]
    rounds: Sequence[ShareResult]
    errors: Sequence[ContextFull]
    """One per share that did not fit in the cache."""
    seconds: float
    spent: Counters


class Passes:
    """Plans passes of at most `session.n_ubatch` rows, and runs them."""

    def __init__(self, session: Session, drafter: Drafter, slots: Slots, clock: Callable[[], float]) -> None:
        self.ended_at = 0.0
        """When the last pass ended, by `clock`, in seconds."""
        self._session, self._drafter, self._slots, self._clock = session, drafter, slots, clock

    def plan(self, sequences: Mapping[int, TokenSequence]) -> list[Share]:
        """What the next pass does with the sequences, which come by slot, the oldest first. Changes nothing.

        It is a round of every sequence that generates, and with the rows that are left the next tokens of prompts:
        those that have the fewest left first, with half of the rows for the oldest.
        """
        n_left = self._session.n_ubatch
        shares = []
        for slot, one in sequences.items():
            if n_left > 0 and not one.in_prompt:
                shares.append(one.share(slot, n_left))
                n_left -= shares[-1].n_rows + shares[-1].n_draft
        prompts = {slot: one for slot, one in sequences.items() if one.in_prompt}
        n_rows = _rows_of_prompts([one.n_to_decode for one in prompts.values()], max(n_left, 0))
        for slot, one in prompts.items():
            if n_left > 0 and (share := one.share(slot, n_left)).image:
                return [share]  # whatever fails then, nothing else has to be taken back
        shares += [one.share(slot, n) for (slot, one), n in zip(prompts.items(), n_rows, strict=True) if n > 0]
        # a cache with a part for each sequence computes those together whose numbers follow on each other
        return sorted(shares, key=lambda share: share.slot)

    def run(self, shares: Sequence[Share], meanwhile: Callable[[], object]) -> PassResult:
        """Run a pass. `meanwhile` is called with it: see Session.decode."""
        errors: list[ContextFull] = []
        before, start = self._session.counters, self._clock()
        rounds = self._run(shares, meanwhile, errors)
        self.ended_at = self._clock()
        spent = Counters(*map(sub, self._session.counters, before))
        return PassResult(shares, rounds, errors, self.ended_at - start, spent)

    def _run(
        self, shares: Sequence[Share], meanwhile: Callable[[], object], errors: list[ContextFull]
    ) -> list[ShareResult]:
        try:
            return run_round(self._session, self._drafter, shares, meanwhile)
        except ContextFull as error:
            for share in shares:
                self._session.truncate(share.position, sequence=share.slot)
            if self._slots.drop_oldest():
                return self._run(shares, meanwhile, errors)
            if len(shares) > 1:  # each on its own: the room may be enough for some
                return [each for share in shares for each in self._run([share], meanwhile, errors)]
            errors.append(error)
            return []

    def shift(self, slot: int, sequence: TokenSequence) -> None:
        """Let the oldest tokens of a sequence go, if it wants to continue with a full context, and if it can."""
        if sequence.params.n_keep is None or sequence.images:
            return
        position, n = sequence.what_goes()
        try:
            self._session.discard(position, n, sequence=slot)
        except BackendError:
            raise
        except PymtpError:  # there are memories that cannot move positions
            return
        sequence.shift(position, n)


def _rows_of_prompts(lengths: Sequence[int], n_rows: int) -> list[int]:
    """How many of the rows each prompt gets. `lengths`: tokens that are left of them, the oldest prompt first."""
    shared = [0] * len(lengths)
    reserved = min(lengths[0], (n_rows + 1) // 2) if lengths else 0  # for the oldest
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        reserved = reserved if i else 0
        shared[i] = min(lengths[i], n_rows - reserved)
        n_rows -= shared[i]
    return shared
