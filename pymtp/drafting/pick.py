"""How draft tokens are picked from the chain's distributions, the most likely ones (greedy) or drawn, and how many.

Knows probabilities; never text or the clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pymtp.drafting.interface import PickedToken
from pymtp.drafting.params import N_DRAFT_MAX
from pymtp.engine.session import Row
from pymtp.sampling.chain import Sampler


class DraftLength(NamedTuple):
    """What was asked for a sequence."""

    n: int | None = N_DRAFT_MAX
    """Tokens of a round; None: a policy decides (see policy.DraftPolicy)."""
    n_min: int = 0
    """Fewer drafts than these are not verified, unless they are drawn."""
    p_min: float = 0.0
    """Drafts from the first one on whose confidence is below this are not verified."""


class ChainPicker:
    """Picks the draft tokens of one sequence with its sampler chain, and says how many are worth verifying."""

    def __init__(self, sampler: Sampler, length: DraftLength, *, draws: bool) -> None:
        self._sampler, self._length, self._draws = sampler, length, draws

    @property
    def banned(self) -> tuple[int, ...] | None:
        """Tokens to leave out, if each draft is the top token of what remains; None: ask `pick` for each draft."""
        return None if self._draws else self._sampler.draft_ban

    def pick(self, row: Row) -> PickedToken | None:
        """The next draft, from a row of the heads; later picks have it in their history until `forget`.

        None: no token of the row can follow.
        """
        distribution = self._sampler.draft_distribution(row)
        best = distribution.best
        if best is None:
            return None
        token, confidence = best
        if self._draws:
            token = distribution.draw(self._sampler.random())
        self._sampler.assume(token)
        return PickedToken(token, confidence, distribution)

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
        return n if self._draws or n >= self._length.n_min else 0

    def is_confident(self, confidence: float) -> bool:
        """Whether drafting continues after a draft of this confidence, however few there are so far."""
        return confidence >= self._length.p_min
