"""How many tokens a round drafts and how many of them it verifies: the interface, and a fixed length.

Knows probabilities; never the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

N_DRAFT_MAX = 32
"""The longest draft, as in vLLM."""
AUTO_DRAFT_MAX = 4
"""The longest draft of the adaptive length."""


class DraftLength(Protocol):
    """Decides for one sequence.

    A draft's confidence is the probability of the most likely token at its position. It is known before the draft is
    drawn, so decisions based on it do not change the distribution of the output.
    """

    def steps(self) -> int:
        """The most tokens that the next round drafts. Changes nothing."""

    def begin_round(self) -> None:
        """Called when a round begins, which drafts up to `steps()` tokens."""

    @property
    def uses_confidence(self) -> bool:
        """Whether it needs confidences; if not, they may be left out."""

    @property
    def keeps_up(self) -> bool:
        """Whether the next rounds will draft: the heads then compute this round's positions right away."""

    def n_verified(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """How many of the drafts, from the first on, are worth verifying.

        Whether a drawn draft is verified depends only on what was known before it was drawn.
        """

    def observe(self, tokens: Sequence[int], confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """The tokens that a round emitted, its drafts' confidences, and which drafts were right.

        `are_right` covers the drafts whose outcome is known: those that are right, and the first that is not. The last
        of them may not have been verified: if it follows the accepted ones, the next token shows whether it was right.
        Called for every round, also without drafts, after the next round has drafted.
        """


class FixedLength:
    """Always `n`; drafts from the first one whose confidence is below `p_min` on are not verified."""

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
    """If all drafts are verified."""
    n_verified: float
    """Drafts per round that are worth verifying, on average."""
    n_tokens: float
    """Tokens per round, on average."""
    tok_s: float


def confident(confidences: Sequence[float], n_min: int, p_min: float) -> int:
    """The number of drafts before the first whose confidence is below `p_min`; 0 if there are fewer than `n_min`."""
    n = len(confidences)
    if p_min > 0:
        n = next((i for i, confidence in enumerate(confidences) if confidence < p_min), n)
    return n if n >= n_min else 0
