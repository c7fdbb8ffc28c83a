"""How many tokens a round drafts, and how many of these it verifies: the interface, and a fixed number.

Knows probabilities; never the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

N_DRAFT_MAX = 32
"""The longest draft, as in vLLM."""
AUTO_DRAFT_MAX = 4
"""The longest draft where the length adapts to the text."""


class DraftLength(Protocol):
    """Decides for one sequence.

    A draft's confidence is the probability of the most likely token at its position. It is known before the draft is
    drawn, so that these decisions leave the distribution of the text alone.
    """

    def steps(self) -> int:
        """Tokens that the next round drafts at most. Changes nothing."""

    def begin_round(self) -> None:
        """A round begins that drafts as `steps` says."""

    @property
    def uses_confidence(self) -> bool:
        """Whether it wants to know confidences; else they may be missing."""

    @property
    def keeps_up(self) -> bool:
        """Whether the next rounds will draft: the heads then see the tokens of this one at once."""

    def n_verified(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """How many of the drafts are worth a row, from the first on.

        Whether a drawn draft is verified depends on what was known before it was drawn only.
        """

    def observe(self, tokens: Sequence[int], confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """What a round emitted, and what became of its drafts: of those that are right, and the first that is not.

        A draft that was not verified can be among them: if it follows the accepted ones, the next token shows whether
        it was right. Called after each round, without drafts if it made none, when the next one has drafted already.
        """


class FixedLength:
    """Always `n`, but for drafts after one of a confidence below `p_min`."""

    def __init__(self, n: int, *, n_min: int = 0, p_min: float = 0.0) -> None:
        self._n, self._n_min, self._p_min = n, n_min, p_min

    def steps(self) -> int:
        """See DraftLength."""
        return self._n

    def begin_round(self) -> None:
        """See DraftLength."""

    @property
    def uses_confidence(self) -> bool:
        """See DraftLength."""
        return self._p_min > 0

    @property
    def keeps_up(self) -> bool:
        """See DraftLength."""
        return True

    def n_verified(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """See DraftLength."""
        return confident(confidences, 0 if drawn else self._n_min, self._p_min)

    def observe(self, tokens: Sequence[int], confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """See DraftLength."""


@dataclass(frozen=True)
class LengthRow:
    """One line of the table that AdaptiveLength decides from."""

    n_steps: int
    draft_ms: float
    verify_ms: float
    """Of all rows, if all drafts are verified."""
    n_verified: float
    """Drafts of a round that are worth a row, on average."""
    n_tokens: float
    """Tokens that a round yields."""
    tok_s: float


def confident(confidences: Sequence[float], n_min: int, p_min: float) -> int:
    """Drafts up to the first whose confidence is below `p_min`; none if these are fewer than `n_min`."""
    n = len(confidences)
    if p_min > 0:
        n = next((i for i, confidence in enumerate(confidences) if confidence < p_min), n)
    return n if n >= n_min else 0
