"""A scheduler on a session, and jobs of it whose sequences are there already."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from pymtp.drafting.interface import Drafter
from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.session import Session
from pymtp.serving.admission import Admission
from pymtp.serving.passes import Passes
from pymtp.serving.request import Request
from pymtp.serving.scheduler import Scheduler
from pymtp.serving.sequence import ShareResult, TokenSequence

Report = Callable[[TokenSequence, ShareResult | None], object]


def scheduler_of(
    session: Session, drafter: Drafter, policy: DraftPolicy | None = None, clock: Callable[[], float] = perf_counter
) -> Scheduler:
    admission = Admission(session, None, None)
    return Scheduler(admission, Passes(session, drafter, admission.slots, policy, clock))


class Ready(Request):
    """A job; `emitted` are the tokens that were reported."""

    def __init__(
        self,
        sequence: TokenSequence,
        report: Report | None = None,
        *,
        cache_scope: str | None = None,
        slot: int | None = None,
        lora: dict[int, float] | None = None,
    ) -> None:
        self._ready, self.cache_scope, self.slot, self.lora = sequence, cache_scope, slot, lora
        self.emitted: list[int] = []
        self.may_wait: list[bool] = []
        """What each report said of itself."""
        self.error: BaseException | None = None
        self._report = report

    def start(self) -> TokenSequence:
        return self._ready

    def report(self, result: ShareResult | None, *, may_wait: bool) -> None:
        self.may_wait.append(may_wait)
        self.emitted += result.tokens if result else []
        if self._report:
            self._report(self._ready, result)

    def fail(self, error: BaseException) -> None:
        self.error = error
