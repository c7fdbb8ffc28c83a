"""Jobs of a scheduler whose sequences are there already."""

from __future__ import annotations

from collections.abc import Callable

from pymtp.serving.request import Request
from pymtp.serving.sequence import ShareResult, TokenSequence

Report = Callable[[TokenSequence, ShareResult | None], object]


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
