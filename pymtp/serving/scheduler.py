"""Which sequences take part in the next pass, and what becomes of the pass.

Owns the sequences that run and the jobs that wait. Knows token ids and the clock; never text, or how tokens are sampled
and drafted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import sub
from typing import NamedTuple, Protocol

from pymtp.drafting.draft_vocab import AutoDraftVocab
from pymtp.drafting.interface import Drafter
from pymtp.drafting.lookup import EarlierTexts
from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.counters import Timing
from pymtp.engine.session import Session
from pymtp.errors import ContextFull, PymtpError, StateError
from pymtp.serving.adapters import Adapters, Scales
from pymtp.serving.round import run_round
from pymtp.serving.sequence import TokenSequence, Turn, TurnResult
from pymtp.serving.slots import Slots
from pymtp.serving.statistics import Stats
from pymtp.serving.tuning import DraftTuning


class Job(Protocol):
    """What waits for a slot, and becomes a sequence there."""

    @property
    def cache_scope(self) -> str | None:
        """Whose tokens of its prompt it reuses, if the cache holds them, and for whom it leaves its own there; None:
        it does neither."""

    @property
    def slot(self) -> int | None:
        """The slot that it has to run in; None: any."""

    @property
    def lora(self) -> Mapping[int, float] | None:
        """The LoRA adapters that it asks for, by their numbers, and their scales; None: those of the model."""

    def start(self) -> TokenSequence:
        """The sequence, now that there is a slot for it."""

    def report(self, sequence: TokenSequence, result: TurnResult | None, *, may_wait: bool) -> None:
        """A pass in which the sequence took part; None: the cache had no room for it, which ends it.

        `may_wait`: there will soon be another one, which whoever listens can hear of at the same time.
        """

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
    rounds: Sequence[TurnResult]
    errors: Sequence[ContextFull]
    """One for each turn for which the cache had no room."""
    seconds: float
    spent: Timing


class Scheduler:
    """Generates many sequences in a session, as many at a time as it has slots, first come, first served.

    A step is one pass of at most `session.n_ubatch` rows: a round of every sequence that generates, and with the rows
    that are left the next tokens of prompts: those that have the fewest left first, with half of the rows for the
    oldest. So a long prompt comes in pieces, and holds up neither those that generate nor a short prompt that comes
    later.

    A step plans the pass, runs it, applies its result, and reports that to the jobs. Unless a sequence begins or ends,
    reports come with the next pass: whoever takes them works while that is computed. Jobs are submitted and removed
    between steps, never in a report.

    All that runs applies the same LoRA adapters: a job that asks for others waits until the rest have ended, and those
    that come after it wait for it.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        *,
        policy: DraftPolicy | None = None,
        draft_vocab: AutoDraftVocab | None = None,
        earlier: EarlierTexts | None = None,
        adapters: Adapters | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stats = Stats()
        """Of all sequences. A pass's time is shared out between prompts and generation by their rows."""
        self._session = session
        self._drafter = drafter
        self._earlier = earlier
        self.adapters = adapters or Adapters(session)
        """Of the model."""
        self._tuning = DraftTuning(session, policy, draft_vocab)
        self._clock = clock
        self._slots = Slots(session)
        self._running: dict[int, Running] = {}  # by slot, in the order of admission
        self._waiting: deque[Job] = deque()
        self._suspended: list[tuple[Job, TokenSequence]] = []  # that have had a slot; the oldest first
        self._unreported: list[tuple[Job, TokenSequence, TurnResult | None]] = []
        self._uncounted: Result | None = None
        self._passed_at = self._reported_at = 0.0  # the end of the last pass, and of the last that all heard of

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not self._running and not self._waiting and not self._suspended

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.append(job)

    def remove(self, job: Job) -> None:
        """End a job early and free its slot; nothing happens if it has ended."""
        self.report()
        if job in self._waiting:
            self._waiting.remove(job)
        self._suspended = [each for each in self._suspended if each[0] is not job]
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
        suspended = (job for job, _ in self._suspended)
        jobs = [*(running.job for running in self._running.values()), *suspended, *self._waiting]
        self._running.clear()
        self._suspended.clear()
        self._waiting.clear()
        self._unreported.clear()
        self._uncounted = None
        for job in jobs:
            job.fail(error)

    def empty_cache(self) -> None:
        """Drop what ended sequences have left for later ones."""
        self._slots.empty()

    def keep_prefixes(self, n_bytes: int) -> None:
        """Keep in host memory what slots held before others needed them, up to `n_bytes`."""
        self._slots.cache.limit(n_bytes)

    def save_slot(self, slot: int) -> tuple[list[int], bytes]:
        """See Slots.save."""
        return self._slots.save(slot)

    def restore_slot(self, slot: int, tokens: Sequence[int], data: bytes, scope: str) -> None:
        """See Slots.restore. What it holds is for texts with the adapters of the model."""
        scales = self.adapters.default
        if not self._adapt(scales):
            raise StateError("texts with other adapters are generated; wait for them, or close them")
        self._slots.restore(slot, tokens, data, self.adapters.scope(scope, scales) or "")

    def erase_slot(self, slot: int) -> int:
        """See Slots.erase."""
        return self._slots.erase(slot)

    @property
    def n_cells_used(self) -> int:
        """Positions of the cache that are taken, by sequences that run and for those that may come."""
        return sum(running.sequence.n_decoded for running in self._running.values()) + self._slots.n_kept

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
        result = self.run(turns, meanwhile=self.report)
        self.apply(result)
        if any(turn.of_prompt or turn.sequence.finish_reason or turn.sequence.error for turn in turns):
            self.report()

    def admit(self) -> None:
        """Give free slots to the jobs that have waited longest: first to those whose slot was taken from them."""
        n_before = len(self._running)
        while self._slots.has_free and (found := self._next()):
            job, sequence = found
            scope = self.adapters.scope(job.cache_scope, self.adapters.current)
            keys = sequence.keys
            slot = self._slots.choose(keys, scope=scope, slot=job.slot)
            sequence.slot = slot
            # before anything that can fail: `fail` has to find it
            self._running[slot] = Running(job, sequence, sequence.sampler.n_candidates)
            sequence.n_cached = self._slots.take(slot, keys, scope=scope)
            sequence.n_decoded = sequence.n_cached
            self._tuning.observe_prompt(sequence.history)
        if len(self._running) != n_before:
            self._reduce_logits()

    def _next(self) -> tuple[Job, TokenSequence] | None:
        """The next sequence that can begin, or begin again; it waits no more."""
        if self._suspended:
            job, sequence = self._suspended[0]
            has_room = self._has_room(len(sequence.history)) and self._is_free(job)
            return self._suspended.pop(0) if has_room and self._adapt(sequence.lora) else None
        for job in [job for job in self._waiting if self._is_free(job)]:
            scales = self.adapters.scales(job.lora)
            if not self._adapt(scales):
                return None
            self._waiting.remove(job)
            try:
                sequence = job.start()
            except Exception as error:  # of this job alone
                job.fail(error)
                continue
            sequence.lora = scales
            return job, sequence
        return None

    def _adapt(self, scales: Scales) -> bool:
        """Have passes apply adapters with these scales, unless others run; whether they do."""
        if scales == self.adapters.current:
            return True
        if self._running:
            return False
        while self._slots.drop_oldest():  # all that they keep was computed with the adapters before
            pass
        self.adapters.apply(scales)
        return True

    def _is_free(self, job: Job) -> bool:
        return job.slot is None or self._slots.is_free(job.slot)

    def _has_room(self, n_tokens: int) -> bool:
        """Whether the cache has room for `n_tokens`, and for some more of all sequences, without what is kept."""
        needed = sum(len(running.sequence.history) for running in self._running.values()) + n_tokens
        return not self._running or needed + N_HEADROOM * (len(self._running) + 1) <= self._session.n_cells

    def plan(self) -> list[Turn]:
        """What the next pass does. Changes nothing."""
        n_left = self._session.n_ubatch
        turns = []
        for slot, running in self._running.items():
            if n_left > 0 and not running.sequence.in_prompt:
                turns.append(running.sequence.turn(slot, n_left))
                n_left -= turns[-1].n_rows + turns[-1].n_draft
        prompts = {slot: each.sequence for slot, each in self._running.items() if each.sequence.in_prompt}
        shares = _shares([sequence.n_to_decode for sequence in prompts.values()], max(n_left, 0))
        for slot, one in prompts.items():
            if n_left > 0 and (turn := one.turn(slot, n_left)).image:
                return [turn]  # whatever fails then, nothing else has to be taken back
        turns += [one.turn(slot, n) for (slot, one), n in zip(prompts.items(), shares, strict=True) if n > 0]
        # a cache with a part for each sequence computes those together whose numbers follow on each other
        return sorted(turns, key=lambda turn: turn.slot)

    def run(self, turns: Sequence[Turn], meanwhile: Callable[[], object] = lambda: None) -> Result:
        """Run the pass. `meanwhile` is called with it: see Session.decode."""
        errors: list[ContextFull] = []
        before, start = self._session.timing, self._clock()
        rounds = self._run(turns, meanwhile, errors)
        self._passed_at = self._clock()
        seconds = self._passed_at - start
        return Result(turns, rounds, errors, seconds, Timing(*map(sub, self._session.timing, before)))

    def apply(self, result: Result) -> None:
        """Let the sequences take over the result of a pass; those that end leave their slots."""
        n_before = len(self._running)
        for each in result.rounds:
            slot, sequence = each.turn.slot, each.turn.sequence
            sequence.advance(each)
            self._unreported.append((self._running[slot].job, sequence, each))
            if sequence.finish_reason == "context":
                self._shift(slot, sequence)
            if sequence.finish_reason:
                self._release(slot)
        for turn in result.turns:
            if turn.sequence.error:
                self._unreported.append((self._running[turn.slot].job, turn.sequence, None))
                self._release(turn.slot)
        if result.errors and len(self._running) == n_before:
            self._make_room(result.errors[-1])
        self._uncounted = result

    def _make_room(self, error: ContextFull) -> None:
        """Take the slot of the newest sequence from it, as the cache had no room for a turn; a lone sequence ends."""
        slot = next(reversed(self._running))
        job, sequence, _ = self._running[slot]
        if len(self._running) == 1:
            sequence.error, sequence.finish_reason = error, "context"
            self._unreported.append((job, sequence, None))
            self._release(slot)
            return
        self.report()
        del self._running[slot]
        sequence.begin_again()
        self._suspended.insert(0, (job, sequence))
        self._slots.release(slot)
        self._reduce_logits()

    def _shift(self, slot: int, sequence: TokenSequence) -> None:
        """Let the oldest tokens of a sequence go, if it wants to continue with a full context, and if it can."""
        if sequence.n_keep is None or sequence.images:
            return
        position, n = sequence.what_goes()
        with suppress(PymtpError):  # there are memories that cannot move positions
            self._session.discard(position, n, sequence=slot)
            sequence.shift(position, n)

    def report(self) -> None:
        """Count the last pass, and report it to the jobs that took part."""
        result, self._uncounted = self._uncounted, None
        if result:
            self._count(result)
            self._tuning.observe(result.rounds, result.seconds, result.spent)
        unreported, self._unreported = self._unreported, []
        is_due = self._passed_at - self._reported_at >= _report_interval_s(len(self._running))
        if is_due:
            self._reported_at = self._passed_at
        for job, sequence, each in unreported:
            job.report(sequence, each, may_wait=not (is_due or each is None or each.turn.of_prompt))

    def _run(
        self, turns: Sequence[Turn], meanwhile: Callable[[], object], errors: list[ContextFull]
    ) -> list[TurnResult]:
        try:
            return run_round(self._session, self._drafter, turns, meanwhile)
        except ContextFull as error:
            for turn in turns:
                self._session.truncate(turn.position, sequence=turn.slot)
            if self._slots.drop_oldest():
                return self._run(turns, meanwhile, errors)
            if len(turns) > 1:  # each on its own: the room may be enough for some
                return [each for turn in turns for each in self._run([turn], meanwhile, errors)]
            errors.append(error)
            return []

    def _release(self, slot: int) -> None:
        running = self._running.pop(slot)
        sequence = running.sequence
        if self._earlier and sequence.owner is not None:
            self._earlier.add(sequence.owner, sequence.history)
        scope = self.adapters.scope(running.job.cache_scope, sequence.lora)
        keeps = scope is not None and not sequence.error
        self._slots.release(slot, sequence.keys[: sequence.n_decoded] if keeps else None, scope or "")
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


def _add(stats: Stats, each: TurnResult, result: Result, share: float) -> None:
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


def _shares(lengths: Sequence[int], n_rows: int) -> list[int]:
    """How many of the rows each prompt gets. `lengths`: tokens that are left of them, the oldest prompt first."""
    shares = [0] * len(lengths)
    reserved = min(lengths[0], (n_rows + 1) // 2) if lengths else 0  # for the oldest
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        reserved = reserved if i else 0
        shares[i] = min(lengths[i], n_rows - reserved)
        n_rows -= shares[i]
    return shares


def _report_interval_s(n_running: int) -> float:
    """The least time between two reports of tokens amid texts."""
    return min(max(REPORT_INTERVAL_S, n_running * REPORT_SHARE_S), REPORT_INTERVAL_MAX_S)


REPORT_INTERVAL_S, REPORT_INTERVAL_MAX_S = 0.01, 0.03
"""Less than a screen takes to show something. To wake another thread, and to send a piece of text to a client, take
some 100 us of a CPU that computes passes: of a small model's passes that is a tenth. Rounds that take longer are
reported one by one. (nano-glm, 2 cores; bench/serve.py)"""
REPORT_SHARE_S = 0.002
"""Of the interval, for each sequence: 500 reports a second in all."""
N_HEADROOM = 64
"""Tokens of each sequence for which there has to be room besides its own when another begins again: it would lose its
slot at once otherwise."""
N_CANDIDATES_MAX = 1 << 22
"""More than any vocabulary has."""
N_EXACT = 64
"""Candidates up to which their exact number is prepared; above it multiples, as each number has graphs of its own."""
