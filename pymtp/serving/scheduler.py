"""The engine's steps: jobs are admitted, a pass is planned and run, its result is applied and reported.

Owns the order of these, and nothing else: jobs and slots are admission's, rows and retries are the passes', counts are
the reports'. Must not know text, or how tokens are sampled and drafted.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pymtp.drafting.interface import Drafter
from pymtp.drafting.lookup import EarlierTexts
from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.session import Session
from pymtp.errors import ContextFull, PymtpError
from pymtp.serving.adapters import Adapters
from pymtp.serving.admission import Admission
from pymtp.serving.passes import Passes, PassResult
from pymtp.serving.reports import Reports, observe_costs
from pymtp.serving.request import Request
from pymtp.serving.sequence import Share, ShareResult


class Scheduler:
    """Generates many sequences in a session, as many at a time as it has slots, first come, first served.

    A step is one pass: see Passes.plan. A long prompt comes in pieces, and holds up neither those that generate nor a
    short prompt that comes later. Unless a sequence begins or ends, reports come with the next pass: whoever takes them
    works while that is computed. Jobs are submitted and removed between steps, never in a report.
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
        self.admission = Admission(session, earlier=earlier, adapters=adapters)
        self._passes = Passes(session, drafter, self.admission.slots, clock)
        self._reports = Reports()
        self.stats = self._reports.stats
        """Counts and times of all sequences. A pass's time is shared out between them by their rows."""
        self._session, self._policy = session, policy
        self._uncounted: PassResult | None = None

    @property
    def is_idle(self) -> bool:
        return self.admission.is_idle

    def submit(self, job: Request) -> None:
        self.admission.submit(job)

    def remove(self, job: Request) -> None:
        """End a job early and free its slot; nothing happens if it has ended."""
        self.report()
        self.admission.remove(job)

    def fail(self, error: BaseException) -> None:
        """End all jobs with an error: a pass has failed, and nothing is known of the sequences in it."""
        slots = list(self.admission.running)
        self._reports.clear()
        self._uncounted = None
        for job in self.admission.remove_all():
            job.fail(error)
        for slot in slots:
            with suppress(PymtpError):  # what has failed may fail again
                self.admission.slots.release(slot)
        with suppress(PymtpError):
            self.admission.slots.empty()

    def step(self) -> None:
        """Run one pass.

        A sequence for which the cache has no room ends with its `error` set; the others continue. Any other error is
        raised; `fail` is all that can follow.
        """
        self.admission.admit()
        shares = self.plan()
        if not shares:
            return
        result = self._passes.run(shares, meanwhile=self.report)
        self._apply(result)
        if any(share.of_prompt or share.sequence.finish_reason or share.sequence.error for share in shares):
            self.report()

    def plan(self) -> Sequence[Share]:
        """What the next pass does. Changes nothing."""
        running = self.admission.running.items()
        return self._passes.plan({slot: one.sequence for slot, one in running})

    def report(self) -> None:
        """Count the last pass, and report it to the jobs that took part."""
        result, self._uncounted = self._uncounted, None
        if result:
            self._reports.count(result)
            if self._policy:
                observe_costs(self._policy, self._session, result)
        self._reports.send(self._passes.ended_at, len(self.admission.running))

    def _apply(self, result: PassResult) -> None:
        """Let the sequences take over the result of a pass; those that end leave their slots."""
        running = self.admission.running
        n_before = len(running)
        for each in result.rounds:
            sequence = each.share.sequence
            sequence.advance(each)
            if sequence.finish_reason == "context":
                self._passes.shift(each.share.slot, sequence)
            self._end_share(each.share.slot, each)
        for share in result.shares:
            if share.sequence.error:
                self._end_share(share.slot, None)
        if result.errors and len(running) == n_before:
            self._make_room(result.errors[-1])
        self._uncounted = result

    def _end_share(self, slot: int, result: ShareResult | None) -> None:
        job, sequence, _ = self.admission.running[slot]
        self._reports.add(job, result)
        if sequence.finish_reason or sequence.error:
            self.admission.release(slot)

    def _make_room(self, error: ContextFull) -> None:
        """Take the slot of the newest sequence from it, as the cache had no room for a share; a lone sequence ends."""
        running = self.admission.running
        slot = next(reversed(running))
        if len(running) == 1:
            sequence = running[slot].sequence
            sequence.error, sequence.finish_reason = error, "context"
            self._end_share(slot, None)
        else:
            self.report()
            self.admission.suspend(slot)
