"""Which sequences take part in the next pass, and what becomes of the pass.

Owns the sequences that run and the jobs that wait. Knows token ids and the clock; never text, or how tokens are sampled
and drafted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import sub
from typing import NamedTuple, Protocol

from pymtp.drafting.interface import Drafter
from pymtp.drafting.length.costs import RoundCosts
from pymtp.drafting.subset import AutoDraftVocab
from pymtp.engine.counters import Timing
from pymtp.engine.session import Session
from pymtp.errors import ContextFull, PymtpError, StateError
from pymtp.serving.round import run_round
from pymtp.serving.sequence import Round, TokenSequence, Turn
from pymtp.serving.slots import Slots
from pymtp.serving.statistics import Stats
from pymtp.serving.tuning import DraftTuning


class Job(Protocol):
    """What waits for a slot, and becomes a sequence there."""

    @property
    def reuses_cache(self) -> bool:
        """Whether it begins with what the cache holds of its prompt, and leaves its own tokens there."""

    def start(self) -> TokenSequence:
        """The sequence, now that there is a slot for it."""

    def report(self, sequence: TokenSequence, result: Round | None) -> None:
        """A pass in which the sequence took part; None: the cache had no room for it, which ends it."""

    def fail(self, error: BaseException) -> None:
        """It ends with an error, in a slot or before there was one."""


class Running(NamedTuple):
    """A job in a slot."""

    job: Job
    sequence: TokenSequence
    n_candidates: int
    """Of a row's logits, those that its sampler looks at; 0: all."""


class Result(NamedTuple):
    """The result of a pass."""

    turns: Sequence[Turn]
    rounds: Sequence[Round]
    failures: Sequence[tuple[Turn, ContextFull]]
    """Turns for which the cache had no room."""
    seconds: float
    spent: Timing


class Scheduler:
    """Generates many sequences in a session, as many at a time as it has slots, first come, first served.

    A step is one pass of at most `session.n_ubatch` rows: a round of every sequence that generates, and with the rows
    that are left the next tokens of prompts. So a long prompt comes in pieces and holds up nobody.

    A step plans the pass, runs it, applies its result, and reports that to the jobs. Unless a sequence begins or ends,
    reports come with the next pass: whoever takes them works while that is computed. Jobs are submitted and removed
    between steps, never in a report.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        *,
        costs: RoundCosts | None = None,
        draft_vocab: AutoDraftVocab | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stats = Stats()
        """Of all sequences. A pass's time is shared out between prompts and generation by their rows."""
        self._session = session
        self._drafter = drafter
        self._tuning = DraftTuning(session, costs or RoundCosts(), draft_vocab)
        self._clock = clock
        self._slots = Slots(session)
        self._running: dict[int, Running] = {}  # by slot, in the order of admission
        self._waiting: deque[Job] = deque()
        self._unreported: list[tuple[Job, TokenSequence, Round | None]] = []
        self._uncounted: Result | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not self._running and not self._waiting

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def remove(self, job: Job) -> None:
        """End a job early and free its slot; nothing happens if it has ended."""
        self.report()
        if job in self._waiting:
            self._waiting.remove(job)
        for slot in [slot for slot, running in self._running.items() if running.job is job]:
            self._release(slot)

    def fail(self, error: BaseException) -> None:
        """End all jobs with an error: a pass has failed, and nothing is known of the sequences in it."""
        slots = list(self._running)
        self.abandon(error)
        for slot in slots:
            with suppress(PymtpError):  # what has failed may fail again
                self._slots.release(slot)
        with suppress(PymtpError):
            self._slots.empty()

    def abandon(self, error: BaseException) -> None:
        """End all jobs with an error, and leave the session alone: nothing is known of it any more."""
        jobs = [*(running.job for running in self._running.values()), *self._waiting]
        self._running.clear()
        self._waiting.clear()
        self._unreported.clear()
        self._uncounted = None
        for job in jobs:
            job.fail(error)

    def empty_cache(self) -> None:
        """Drop what ended sequences have left for later ones."""
        self._slots.empty()

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Restore a saved session. Raises StateError if that fails, or while sequences run in it."""
        if self._running:
            raise StateError("a state cannot be restored while texts are generated; wait for them, or close them")
        self._session.restore_file(path)
        self._slots.forget()

    def step(self) -> None:
        """Run one pass.

        A sequence for which the cache has no room ends with its `error` set; the others continue. Any other error is
        raised; `fail` is all that can follow.
        """
        self.admit()
        turns = self.plan()
        if not turns:
            return
        self._tuning.limit_drafts(running.sequence for running in self._running.values())
        result = self.run(turns, meanwhile=lambda: self._finish_previous(turns))
        self.apply(result)
        if any(turn.of_prompt or turn.sequence.finish_reason for turn in turns):
            self.report()

    def admit(self) -> None:
        """Give free slots to the jobs that have waited longest."""
        n_before = len(self._running)
        while self._slots.has_free and self._waiting:
            job = self._waiting.popleft()
            try:
                sequence = job.start()
            except Exception as error:  # of this job alone
                job.fail(error)
                continue
            slot = sequence.slot = self._slots.choose(sequence.history, reuse=job.reuses_cache)
            # before anything that can fail: `fail` has to find it
            self._running[slot] = Running(job, sequence, sequence.sampler.n_candidates)
            sequence.n_cached = self._slots.take(slot, sequence.history, reuse=job.reuses_cache)
            if sequence.cost_record and sequence.cost_record.ensure(self._session, slot):
                sequence.n_cached = 0
            sequence.n_decoded = sequence.n_cached
            self._tuning.observe_prompt(sequence.history)
        if len(self._running) != n_before:
            self._reduce_logits()

    def plan(self) -> list[Turn]:
        """What the next pass does. Changes nothing."""
        n_left = self._session.n_ubatch
        n_draft = self._common_draft()
        turns = []
        # sorting is stable: first those that generate, then the prompts in the order of admission
        for slot, running in sorted(self._running.items(), key=lambda item: item[1].sequence.in_prompt):
            if n_left > 0:
                turns.append(running.sequence.turn(slot, n_left, n_draft))
                n_left -= turns[-1].n_rows + turns[-1].n_draft
        return turns

    def run(self, turns: Sequence[Turn], meanwhile: Callable[[], object] = lambda: None) -> Result:
        """Run the pass. `meanwhile` is called with it: see Session.decode."""
        for turn in turns:
            turn.sequence.begin(turn)
        failures: list[tuple[Turn, ContextFull]] = []
        before, start = self._session.timing, self._clock()
        rounds = self._run(turns, meanwhile, failures)
        seconds = self._clock() - start
        return Result(turns, rounds, failures, seconds, Timing(*map(sub, self._session.timing, before)))

    def apply(self, result: Result) -> None:
        """Let the sequences take over the result of a pass; those that end leave their slots."""
        by_slot = {each.turn.slot: each for each in result.rounds}
        jobs = {turn.slot: self._running[turn.slot].job for turn in result.turns}
        for each in result.rounds:
            each.turn.sequence.advance(each)
        for turn, error in result.failures:
            turn.sequence.error = error
            turn.sequence.finish_reason = "context"
        for turn in result.turns:
            self._unreported.append((jobs[turn.slot], turn.sequence, by_slot.get(turn.slot)))
            if turn.sequence.finish_reason:
                self._release(turn.slot)
        self._uncounted = result

    def report(self) -> None:
        """Count the last pass, and report it to the jobs that took part."""
        result, self._uncounted = self._uncounted, None
        if result:
            self._count(result)
            self._tuning.observe(result.rounds, result.seconds, result.spent)
        unreported, self._unreported = self._unreported, []
        for job, sequence, each in unreported:
            job.report(sequence, each)

    def _common_draft(self) -> int | None:
        """One draft length for all sequences, where only equal numbers of rows can share a pass; else None."""
        if not self._session.needs_equal_rows:
            return None
        wanted = [each.sequence.n_draft for each in self._running.values() if not each.sequence.in_prompt]
        return round(sum(wanted) / len(wanted)) if wanted else None

    def _finish_previous(self, turns: Sequence[Turn]) -> None:
        """What can wait until the next pass is under way."""
        self.report()
        for turn in turns:
            turn.sequence.learn()

    def _run(
        self, turns: Sequence[Turn], meanwhile: Callable[[], object], failures: list[tuple[Turn, ContextFull]]
    ) -> list[Round]:
        try:
            return run_round(self._session, self._drafter, turns, meanwhile)
        except ContextFull as error:
            for turn in turns:
                self._session.truncate(turn.position, sequence=turn.slot)
            if len(turns) > 1:  # each on its own: the room may be enough for some
                return [each for turn in turns for each in self._run([turn], meanwhile, failures)]
            self._session.truncate(0, sequence=turns[0].slot)  # the others may use its cells at once
            failures.append((turns[0], error))
            return []

    def _release(self, slot: int) -> None:
        running = self._running.pop(slot)
        running.sequence.learn()
        sequence = running.sequence
        keeps = running.job.reuses_cache and not sequence.error
        self._slots.release(slot, sequence.history[: sequence.n_decoded] if keeps else None)
        self._reduce_logits()

    def _reduce_logits(self) -> None:
        """Have passes prepare as many candidates as the samplers of the running sequences look at."""
        n = max((running.n_candidates for running in self._running.values()), default=0)
        n = n if n <= N_EXACT else min(-(-n // N_EXACT) * N_EXACT, N_CANDIDATES_MAX)
        if n not in (0, self._session.n_reduced):
            self._session.reduce_logits(n)

    def _count(self, result: Result) -> None:
        n_rows = sum(each.n_rows for each in result.rounds)
        for each in result.rounds:
            _add(each.turn.sequence.stats, each, result, 1.0)
            _add(self.stats, each, result, each.n_rows / n_rows)


def _add(stats: Stats, each: Round, result: Result, share: float) -> None:
    """Count one sequence's part in a pass, and `share` of the time that the pass took."""
    stats.generated_tokens += len(each.tokens)
    if each.turn.of_prompt:
        stats.prompt_tokens += each.turn.n_rows
        stats.prompt_s += result.seconds * share
        return
    spent, share_us = result.spent, share / 1e6
    stats.generation_s += result.seconds * share
    stats.draft_s += spent.head_us * share_us
    stats.verify_s += spent.trunk_us * share_us
    stats.sample_s += spent.sample_us * share_us
    stats.add_round(len(each.proposal.drafts), each.n_accepted)


N_CANDIDATES_MAX = 1 << 22
"""More than any vocabulary has."""
N_EXACT = 64
"""Candidates up to which their exact number is prepared; above it multiples, as each number has graphs of its own."""
