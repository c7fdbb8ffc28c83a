"""A scheduler on a session, and jobs of it whose sequences are there already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymtp.drafting.interface import Drafter
from pymtp.engine.session import Session
from pymtp.serving.admission import Admission
from pymtp.serving.passes import Passes
from pymtp.serving.request import Request
from pymtp.serving.scheduler import Scheduler
from pymtp.serving.sequence import ShareResult, TokenSequence

Report = Callable[[TokenSequence, ShareResult | None], object]


def scheduler_of(session: Session, drafter: Drafter, **of_passes: Any) -> Scheduler:
    """A scheduler whose passes have these `policy` and `clock`."""
    admission = Admission(session, None, None)
    return Scheduler(admission, Passes(session, drafter, admission.slots, **of_passes))


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
