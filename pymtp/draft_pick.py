"""How the tokens of a draft are picked from the chain's distributions: the most likely ones, or drawn.

Most likely tokens are verified by match, drawn ones by rejection; which of both keeps more of them depends on the
text. Knows probabilities; never tokens' meaning or the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.distribution import Distribution


class DraftPick(Protocol):
    """Decides before each round of a sequence."""

    draws: bool
    """Whether the next round draws its drafts."""
    compares: bool
    """Whether it wants to be told the distributions."""

    def observe(self, drafts: Sequence[Distribution], targets: Sequence[Distribution]) -> None:
        """What was drafted from in a round, and what the target said in the same places."""


class FixedPick:
    """One way for all rounds."""

    compares = False

    def __init__(self, *, draws: bool) -> None:
        self.draws = draws

    def observe(self, drafts: Sequence[Distribution], targets: Sequence[Distribution]) -> None:
        """See DraftPick."""


class AutoPick:
    """The way whose drafts would have been kept more often of late.

    Every verified row tells both: the target's probability of the most likely draft, and what the two distributions
    share. As no round looks at its own rows, the emitted text stays distributed as the target's.
    """

    compares = True

    def __init__(self, *, memory: float = 64, margin: float = 0.02) -> None:
        self.draws = False
        self.match_rate = self.rejection_rate = 0.0
        """Running means over about `memory` rows."""
        self._memory, self._margin = memory, margin
        self._weight = 0.0

    def observe(self, drafts: Sequence[Distribution], targets: Sequence[Distribution]) -> None:
        """See DraftPick."""
        for draft, target in zip(drafts, targets, strict=False):
            self._weight = min(self._weight + 1, self._memory)
            self.match_rate += (target.prob(draft.argmax) - self.match_rate) / self._weight
            self.rejection_rate += (target.shared(draft) - self.rejection_rate) / self._weight
        lead = self.rejection_rate - self.match_rate
        self.draws = lead > (-self._margin if self.draws else self._margin)
