"""The engine's steps: jobs get slots, a pass is planned and run, its result is applied and reported.

Owns the reports. Which jobs run is admission's; rows, retries and counts are the passes'. Must not know text, or how
tokens are sampled and drafted.
"""

from collections.abc import Sequence
from contextlib import suppress

from pymtp.errors import ContextFull, PymtpError
from pymtp.serving.admission import Admission
from pymtp.serving.passes import Passes, PassResult
from pymtp.serving.request import Request
from pymtp.serving.sequence import Share, ShareResult

REPORT_INTERVAL_S, REPORT_INTERVAL_MAX_S = 0.01, 0.03
"""Less than a screen takes to show something. To wake another thread, and to send a piece of text to a client, take
some 100 us of a CPU that computes passes: of a small model's passes that is a tenth. Rounds that take longer are
reported one by one. (nano-glm, 2 cores; bench/serve.py)"""
REPORT_SHARE_S = 0.002
"""The part of the interval that each sequence adds: 500 reports a second in all."""


class Scheduler:
    """Generates many sequences in a session, as many at a time as it has slots.

    A step is one pass: see Passes.plan. A long prompt comes in pieces, and holds up neither those that generate nor a
    short prompt that comes later. Unless a sequence begins or ends, reports come with the next pass: whoever takes them
    works while that is computed. Jobs are submitted and removed between steps, never in a report.
    """

    def __init__(self, admission: Admission, passes: Passes) -> None:
        self.admission, self._passes = admission, passes
        self.stats = passes.stats
        """Counts and times of all sequences. A pass's time is shared out between them by their rows."""
        self._uncounted: PassResult | None = None
        self._unsent: list[tuple[Request, ShareResult | None]] = []  # results that jobs have not heard of
        self._sent_at = 0.0  # the end of the last pass that all heard of

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not (self.admission.running or self.admission.waiting or self.admission.suspended)

    def submit(self, job: Request) -> None:
        """Have a job wait. One for a slot that does not exist fails, alone."""
        self.admission.submit(job)

    def remove(self, job: Request) -> None:
        """End a job early and free its slot; nothing happens if it has ended."""
        self.report()
        self.admission.remove(job)

    def fail(self, error: BaseException) -> None:
        """End all jobs with an error: a pass has failed, and nothing is known of the sequences in it."""
        slots = list(self.admission.running)
        unsent, self._unsent, self._uncounted = self._unsent, [], None
        ended = (job for job, _ in unsent)  # some have left their slots already
        for job in dict.fromkeys([*self.admission.remove_all(), *ended]):
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
        if self.admission.waiting or self.admission.suspended:
            self.admission.admit()
        shares = self.plan()
        if not shares:
            return
        result = self._passes.run(shares, len(self.admission.running), meanwhile=self.report)
        self._apply(result)
        if any(share.of_prompt or share.sequence.finish_reason or share.sequence.error for share in shares):
            self.report()

    def plan(self) -> Sequence[Share]:
        """What the next pass does. Changes nothing."""
        return self._passes.plan({slot: one.sequence for slot, one in self.admission.running.items()})

    def report(self) -> None:
        """Count the last pass, and report it to the jobs that took part."""
        result, self._uncounted = self._uncounted, None
        if result:
            self._passes.count(result)
        unsent, self._unsent = self._unsent, []
        interval_s = min(max(REPORT_INTERVAL_S, len(self.admission.running) * REPORT_SHARE_S), REPORT_INTERVAL_MAX_S)
        is_due = self._passes.ended_at - self._sent_at >= interval_s
        if is_due:
            self._sent_at = self._passes.ended_at
        for job, each in unsent:
            job.report(each, may_wait=not (is_due or each is None or each.share.of_prompt))

    def _apply(self, result: PassResult) -> None:
        """Let the sequences take over the result of a pass; those that end leave their slots."""
        running = self.admission.running
        n_before = len(running)
        if self.admission.vocab:
            self.admission.vocab.note(token for each in result.rounds for token in each.tokens)
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
        job, sequence = self.admission.running[slot]
        self._unsent.append((job, result))
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
