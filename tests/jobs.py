"""Jobs of a scheduler whose sequences are there already."""

from __future__ import annotations

from collections.abc import Callable

from pymtp.serving.sequence import ShareResult, TokenSequence

Report = Callable[[TokenSequence, ShareResult | None], object]


class Ready:
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
        self.sequence, self.cache_scope, self.slot, self.lora = sequence, cache_scope, slot, lora
        self.emitted: list[int] = []
        self.may_wait: list[bool] = []
        """What each report said of itself."""
        self.error: BaseException | None = None
        self._report = report

    def start(self) -> TokenSequence:
        return self.sequence

    def report(self, sequence: TokenSequence, result: ShareResult | None, *, may_wait: bool) -> None:
        assert sequence is self.sequence
        self.may_wait.append(may_wait)
        self.emitted += result.tokens if result else []
        if self._report:
            self._report(sequence, result)

    def fail(self, error: BaseException) -> None:
        self.error = error
