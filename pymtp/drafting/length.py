"""How many tokens a sequence drafts in a round: a number, or as many as pay; and which drafts are not verified.

Knows probabilities; never costs or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

N_DRAFT_MAX = 32
"""The longest draft, as in vLLM."""


class DraftLength(NamedTuple):
    """What was asked for a sequence."""

    n: int | None = N_DRAFT_MAX
    """Tokens of a round; None: a policy decides (see policy.DraftPolicy)."""
    n_min: int = 0
    """Fewer drafts than these are not verified, unless they are drawn."""
    p_min: float = 0.0
    """Drafts from the first one on whose confidence is below this are not verified."""

    def n_worth(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """How many drafts of these confidences are verified, from the first on.

        A draft's confidence is the probability of the most likely token at its position. It is known before the draft
        is drawn, so that the distribution of the output does not change.
        """
        n = next((i for i, confidence in enumerate(confidences) if not self.is_confident(confidence)), len(confidences))
        return n if drawn or n >= self.n_min else 0

    def is_confident(self, confidence: float) -> bool:
        """Whether drafting continues after a draft of this confidence, however few there are so far."""
        return confidence >= self.p_min
