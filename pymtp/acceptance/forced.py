"""Accepts drafts whatever the target's logits, at given rates or of a given answer: for benchmarks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from pymtp.acceptance.interface import MATCH, Verdict, Verified, emit_until_other
from pymtp.errors import require
from pymtp.sampling.chain import Sampler


@dataclass(frozen=True)
class Forced:
    """Accept drafts at random at the given rates, whatever the target's logits. For benchmarks.

    The text is not valid output.
    """

    rates: Sequence[float]
    """The share of rounds that accept the draft of a position and all before it, for each position."""
    random: Callable[[], float] = field(default_factory=lambda: Random(0).random)
    name: str = "forced (not valid output)"

    def __post_init__(self) -> None:
        ordered = all(a >= b for a, b in zip([1.0, *self.rates], [*self.rates, 0.0], strict=True))
        require(self.rates and ordered, "rates", "between 0 and 1 and never increase", list(self.rates))

    @classmethod
    def of_length(cls, length: float, n_draft: int, random: Callable[[], float] | None = None) -> "Forced":
        """Rates r, r^2, ... that give rounds of `n_draft` drafts this mean acceptance length."""
        require(1 <= length <= n_draft + 1, "length", f"between 1 and {n_draft + 1}", length)
        low, high = 0.0, 1.0
        for _ in range(60):
            rate = (low + high) / 2
            low, high = (rate, high) if 1 + sum(rate**i for i in range(1, n_draft + 1)) < length else (low, rate)
        rates = [high**i for i in range(1, n_draft + 1)]
        return cls(rates, random) if random else cls(rates)

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        n_accepted, before = 0, 1.0
        for _, rate in zip(verified.drafts, self.rates, strict=False):
            if self.random() * before >= rate:
                break
            n_accepted, before = n_accepted + 1, rate
        tokens = list(verified.drafts[:n_accepted])
        sampler.accept(*tokens)
        if tokens and tokens[-1] in verified.stop:
            return Verdict(tokens, n_accepted, [])
        rest = MATCH(sampler, Verified(verified.rows[n_accepted : n_accepted + 1], ()))
        return Verdict(tokens + rest.tokens, n_accepted, [], rest.is_blocked)


class Scripted:
    """Emit a given answer, and accept the drafts that equal it. One for each generation.

    Passes run and rows are sampled as always, but what is emitted are the tokens of the answer; after its end, what was
    sampled. So a model of any kind repeats and surprises as the author of the answer did.
    """

    name = "scripted (not the model's own text)"

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = iter(answer)

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        return emit_until_other(sampler, verified, lambda row: next(self._answer, sampler.sample(row)))
