"""How draft tokens are picked from the chain's distributions, the most likely ones (greedy) or drawn, and how many.

Knows probabilities; never text or the clock.
"""

from collections.abc import Sequence

from pymtp.engine.session import Row
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution


class ChainPicker:
    """Picks the draft tokens of one sequence with its sampler chain, and says how many are worth verifying."""

    def __init__(self, sampler: Sampler, *, draws: bool, n_min: int = 0, p_min: float = 0.0) -> None:
        """`n_min`, `p_min`: see GenerationParams.draft_min and draft_p_min."""
        self._sampler, self._draws, self._n_min, self._p_min = sampler, draws, n_min, p_min

    @property
    def banned(self) -> tuple[int, ...] | None:
        """Tokens to leave out, if each draft is the top token of what remains; None: ask `pick` for each draft."""
        return None if self._draws else self._sampler.draft_ban

    def pick(self, row: Row) -> tuple[int, Distribution, float] | None:
        """The next draft, from a row of the heads; later picks have it in their history until `forget`.

        With what it was picked from, and the probability of the most likely token there. None: no token of the row can
        follow.
        """
        distribution = self._sampler.draft_distribution(row)
        best = distribution.best
        if best is None:
            return None
        token, confidence = best
        if self._draws:
            token = distribution.draw(self._sampler.random())
        self._sampler.assume(token)
        return token, distribution, confidence

    def forget(self) -> None:
        """Drop the picks so far from the sampler's history."""
        self._sampler.forget()

    def n_worth(self, drafts: Sequence[int], confidences: Sequence[float]) -> int:
        """How many of the drafts are worth verifying, from the first on.

        A draft's confidence is the probability of the most likely token at its position. It is known before the draft
        is drawn, so that the distribution of the output does not change.
        """
        if not confidences:
            return len(drafts)
        n = next((i for i, confidence in enumerate(confidences) if not self.is_confident(confidence)), len(confidences))
        return n if self._draws or n >= self._n_min else 0

    def is_confident(self, confidence: float) -> bool:
        """Whether drafting continues after a draft of this confidence, however few there are so far."""
        return confidence >= self._p_min
