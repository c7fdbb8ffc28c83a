"""The engine's steps: jobs get slots, a pass is planned and run, its result is applied and reported.

Owns the jobs, and which of them have a slot; a job is a request. Rows, retries and counts are the passes'. Must not
know text, or how tokens are sampled and drafted.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from pymtp.drafting.interface import Drafter
from pymtp.drafting.lookup import EarlierTexts
from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.session import Session
from pymtp.errors import ContextFull, InvalidParameter, PymtpError, StateError
from pymtp.serving.adapters import Adapters, Scales
from pymtp.serving.passes import Passes, PassResult
from pymtp.serving.request import Request
from pymtp.serving.sequence import Share, ShareResult, TokenSequence
from pymtp.serving.slots import Slots

REPORT_INTERVAL_S, REPORT_INTERVAL_MAX_S = 0.01, 0.03
"""Less than a screen takes to show something. To wake another thread, and to send a piece of text to a client, take
some 100 us of a CPU that computes passes: of a small model's passes that is a tenth. Rounds that take longer are
reported one by one. (nano-glm, 2 cores; bench/serve.py)"""
REPORT_SHARE_S = 0.002
"""The part of the interval that each sequence adds: 500 reports a second in all."""
N_HEADROOM = 64
"""Tokens of each sequence for which there has to be room, after its own, when another begins again: it would lose its
slot at once otherwise."""
N_CANDIDATES_MAX = 1 << 22
"""More than any vocabulary has."""
N_EXACT = 64
"""Candidates up to which their exact number is prepared; above it multiples, as each number has graphs of its own."""


class Running(NamedTuple):
    """A job in a slot."""

    job: Request
    sequence: TokenSequence
    n_candidates: int
    """Logits of a row that its sampler looks at; 0: all."""


class Scheduler:
    """Generates many sequences in a session, as many at a time as it has slots, first come, first served.

    A step is one pass: see Passes.plan. A long prompt comes in pieces, and holds up neither those that generate nor a
    short prompt that comes later. Unless a sequence begins or ends, reports come with the next pass: whoever takes them
    works while that is computed. Jobs are submitted and removed between steps, never in a report.

    All that runs applies the same LoRA adapters: a job that asks for others waits until the rest have ended, and those
    that come after it wait for it.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        *,
        policy: DraftPolicy | None = None,
        earlier: EarlierTexts | None = None,
        adapters: Adapters | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.running: dict[int, Running] = {}
        """The jobs that have a slot, by its number, in the order of admission."""
        self.slots = Slots(session)
        self.adapters = adapters or Adapters(session)
        """The LoRA adapters of the model."""
        self._session, self._earlier = session, earlier
        self._waiting: deque[Request] = deque()
        self._suspended: list[Running] = []  # that have had a slot; the oldest first
        self._passes = Passes(session, drafter, self.slots, policy, clock)
        self.stats = self._passes.stats
        """Counts and times of all sequences. A pass's time is shared out between them by their rows."""
        self._uncounted: PassResult | None = None
        self._unsent: list[tuple[Request, ShareResult | None]] = []  # results that jobs have not heard of
        self._sent_at = 0.0  # the end of the last pass that all heard of

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not (self.running or self._waiting or self._suspended)

    @property
    def n_cells_used(self) -> int:
        """Positions of the cache that are taken, by sequences that run and for those that may come."""
        return sum(running.sequence.n_decoded for running in self.running.values()) + self.slots.n_kept

    def submit(self, job: Request) -> None:
        """Have a job wait. One for a slot that does not exist fails, alone."""
        try:
            self._is_free(job)
        except InvalidParameter as error:
            job.fail(error)
        else:
            self._waiting.append(job)

    def remove(self, job: Request) -> None:
        """End a job early and free its slot; nothing happens if it has ended."""
        self.report()
        if job in self._waiting:
            self._waiting.remove(job)
        self._suspended = [each for each in self._suspended if each.job is not job]
        for slot in [slot for slot, running in self.running.items() if running.job is job]:
            self._release(slot)

    def fail(self, error: BaseException) -> None:
        """End all jobs with an error: a pass has failed, and nothing is known of the sequences in it."""
        slots = list(self.running)
        jobs = [*(each.job for each in (*self.running.values(), *self._suspended)), *self._waiting]
        for each in (self.running, self._suspended, self._waiting, self._unsent):
            each.clear()
        self._uncounted = None
        for job in jobs:
            job.fail(error)
        for slot in slots:
            with suppress(PymtpError):  # what has failed may fail again
                self.slots.release(slot)
        with suppress(PymtpError):
            self.slots.empty()

    def step(self) -> None:
        """Run one pass.

        A sequence for which the cache has no room ends with its `error` set; the others continue. Any other error is
        raised; `fail` is all that can follow.
        """
        self._admit()
        shares = self.plan()
        if not shares:
            return
        result = self._passes.run(shares, meanwhile=self.report)
        self._apply(result)
        if any(share.of_prompt or share.sequence.finish_reason or share.sequence.error for share in shares):
            self.report()

    def plan(self) -> Sequence[Share]:
        """What the next pass does. Changes nothing."""
        return self._passes.plan({slot: one.sequence for slot, one in self.running.items()})

    def report(self) -> None:
        """Count the last pass, and report it to the jobs that took part."""
        result, self._uncounted = self._uncounted, None
        if result:
            self._passes.count(result)
        unsent, self._unsent = self._unsent, []
        interval_s = min(max(REPORT_INTERVAL_S, len(self.running) * REPORT_SHARE_S), REPORT_INTERVAL_MAX_S)
        is_due = self._passes.ended_at - self._sent_at >= interval_s
        if is_due:
            self._sent_at = self._passes.ended_at
        for job, each in unsent:
            job.report(each, may_wait=not (is_due or each is None or each.share.of_prompt))

    def restore_slot(self, slot: int, tokens: Sequence[int], data: bytes, scope: str) -> None:
        """See Slots.restore. What it holds is for texts with the adapters of the model."""
        scales = self.adapters.default
        if not self._adapt(scales):
            raise StateError("texts with other adapters are generated; wait for them, or close them")
        self.slots.restore(slot, tokens, data, self.adapters.scope(scope, scales) or "")

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Restore a saved session. Raises StateError if that fails, or while sequences run in it."""
        if self.running:
            raise StateError("a state cannot be restored while texts are generated; wait for them, or close them")
        self._session.restore_file(path)
        self.slots.forget()

    def _admit(self) -> None:
        """Give free slots to the jobs that have waited longest: first to those whose slot was taken from them."""
        n_before = len(self.running)
        while (self._waiting or self._suspended) and self.slots.has_free and (found := self._next()):
            job, sequence, _ = found
            scope = self.adapters.scope(job.cache_scope, self.adapters.current)
            keys = sequence.keys
            sequence.slot = slot = self.slots.choose(keys, scope=scope, slot=job.slot)
            # before anything that can fail: whoever ends all jobs has to find it
            self.running[slot] = found
            sequence.n_decoded = sequence.n_cached = self.slots.take(slot, keys, scope=scope)
        if len(self.running) > n_before:
            self._reduce_logits()

    def _next(self) -> Running | None:
        """The next sequence that can begin, or begin again; it waits no more."""
        if self._suspended:
            job, sequence, _ = self._suspended[0]
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
            return Running(job, sequence, sequence.sampler.n_candidates)
        return None

    def _adapt(self, scales: Scales) -> bool:
        """Have passes apply adapters with these scales, unless others run; whether they do."""
        if scales == self.adapters.current:
            return True
        if self.running:
            return False
        while self.slots.drop_oldest():  # all that they keep was computed with the adapters before
            pass
        self.adapters.apply(scales)
        return True

    def _is_free(self, job: Request) -> bool:
        return job.slot is None or self.slots.is_free(job.slot)

    def _has_room(self, n_tokens: int) -> bool:
        """Whether the cache has room for `n_tokens`, and for some more of all sequences, without what is kept."""
        needed = sum(len(running.sequence.history) for running in self.running.values()) + n_tokens
        return not self.running or needed + N_HEADROOM * (len(self.running) + 1) <= self._session.n_cells

    def _apply(self, result: PassResult) -> None:
        """Let the sequences take over the result of a pass; those that end leave their slots."""
        n_before = len(self.running)
        for each in result.rounds:
            sequence = each.share.sequence
            sequence.advance(each)
            if sequence.finish_reason == "context":
                self._passes.shift(each.share.slot, sequence)
            self._end_share(each.share.slot, each)
        for share in result.shares:
            if share.sequence.error:
                self._end_share(share.slot, None)
        if result.errors and len(self.running) == n_before:
            self._make_room(result.errors[-1])
        self._uncounted = result

    def _end_share(self, slot: int, result: ShareResult | None) -> None:
        job, sequence, _ = self.running[slot]
        self._unsent.append((job, result))
        if sequence.finish_reason or sequence.error:
            self._release(slot)

    def _make_room(self, error: ContextFull) -> None:
        """Take the slot of the newest sequence from it, as the cache had no room for a share; a lone sequence ends.

        One that lost its slot begins again as soon as the cache has room for it.
        """
        slot = next(reversed(self.running))
        if len(self.running) == 1:
            sequence = self.running[slot].sequence
            sequence.error, sequence.finish_reason = error, "context"
            self._end_share(slot, None)
            return
        self.report()
        suspended = self.running.pop(slot)
        suspended.sequence.begin_again()
        self._suspended.insert(0, suspended)
        self.slots.release(slot)
        self._reduce_logits()

    def _release(self, slot: int) -> None:
        """Free the slot of a sequence that has ended."""
        job, sequence, _ = self.running.pop(slot)
        if self._earlier and sequence.owner is not None:
            self._earlier.add(sequence.owner, sequence.history)
        scope = self.adapters.scope(job.cache_scope, sequence.lora)
        keeps = scope is not None and not sequence.error
        self.slots.release(slot, sequence.keys[: sequence.n_decoded] if keeps else None, scope or "")
        self._reduce_logits()

    def _reduce_logits(self) -> None:
        """Have passes prepare as many candidates as the samplers of the running sequences look at."""
        n = max((running.n_candidates for running in self.running.values()), default=0)
        n = n if n <= N_EXACT else min(-(-n // N_EXACT) * N_EXACT, N_CANDIDATES_MAX)
        if n not in (0, self._session.n_reduced):
            self._session.reduce_logits(n)
