"""How many tokens a round drafts, and how many of these it verifies.

Owns what was learned about a text: how often drafts of some confidence are right. Knows probabilities and costs;
never tokens or the clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pymtp.round_costs import CostTable, RoundCosts

N_DRAFT_MAX = 32
"""The longest draft, as in vLLM."""
AUTO_DRAFT_MAX = 4
"""The longest draft where the length adapts to the text."""


class DraftLength(Protocol):
    """Decides for one sequence.

    A draft's confidence is the probability of the most likely token in its place. It is known before the draft is
    drawn, so that these decisions leave the distribution of the text alone.
    """

    def steps(self) -> int:
        """Tokens that the next round drafts at most."""

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

    def observe(self, confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """What became of a round's drafts: those that the text shows to be right, and the first that is not.

        A draft that was not verified can be among them: if it follows the kept ones, the next token tells.
        """


class FixedLength:
    """Always as many, but for drafts behind one of a confidence below `p_min`."""

    def __init__(self, n: int, *, n_min: int = 0, p_min: float = 0.0) -> None:
        self._n, self._n_min, self._p_min = n, n_min, p_min

    def steps(self) -> int:
        """See DraftLength."""
        return self._n

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
        return _confident(confidences, 0 if drawn else self._n_min, self._p_min)

    def observe(self, confidences: Sequence[float], are_right: Sequence[bool]) -> None:
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


class AdaptiveLength:
    """As many as make the text come fastest: none, if drafts do not pay.

    Behind each draft it reckons what every length would have brought in the same place, from the drafts' confidences,
    from how right drafts have been, and from the costs; the length that was best of late is the next one. While that is
    none, a single draft now and then, which is not even verified, tells whether the text has changed.
    """

    uses_confidence = True

    def __init__(self, n_max: int, costs: RoundCosts, *, n_min: int = 0, p_min: float = 0.0) -> None:
        self._n_max, self._costs = n_max, costs
        self._n_min, self._p_min = n_min, p_min
        self._n = min(N_AT_FIRST if costs.n_paying is None else costs.n_paying, n_max)
        self._is_right = Calibration()
        # by length, fading: milliseconds, tokens, and drafts that were worth a row
        self._spent = [0.0] * (n_max + 1)
        self._tokens = [0.0] * (n_max + 1)
        self._verified = [0.0] * (n_max + 1)
        self._weight = 0.0
        self._n_rounds = 0

    @property
    def keeps_up(self) -> bool:
        """See DraftLength."""
        return self._n > 0

    def steps(self) -> int:
        """See DraftLength."""
        self._n_rounds += 1
        if self._n_rounds in _PLAIN_ROUNDS and self._costs.n_measured(1) < 2:
            return 0  # what a plain round costs has to be known
        if self._n == 0:
            self._costs.n_until_trial -= 1
            if self._costs.n_until_trial <= 0:
                self._costs.n_trials += 1
                return min(1, self._n_max)
        return self._n

    def n_verified(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """See DraftLength."""
        n_min = 0 if drawn else self._n_min
        n = _confident(confidences, n_min, self._p_min)
        if self._n == 0:  # a trial: whether it is right shows without a row; what that costs is looked at now and then
            return n if self._costs.n_trials % 4 == 0 and n >= n_min else 0
        n = self._worth([self._is_right(confidence) for confidence in confidences[:n]], drawn=drawn)
        return n if n >= n_min else 0

    def observe(self, confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """See DraftLength."""
        if not confidences:
            return
        for confidence, is_right in zip(confidences, are_right, strict=False):
            self._is_right.observe(confidence, is_right=is_right)
        gain = self._reckon([self._is_right(confidence) for confidence in confidences])
        self._n = self._costs.n_paying = self._best()
        if self._n == 0:
            rounds = self._costs.trial_ms / (TRIAL_SHARE * self._costs.round_ms(1, 0))
            self._costs.n_until_trial = 1 if gain > 1 else min(math.ceil(rounds), TRIAL_GAP_MAX)

    def table(self) -> list[LengthRow]:
        """What it decides from."""
        weight = self._weight or 1.0
        return [
            LengthRow(
                n,
                self._costs.draft_ms(n),
                self._costs.verify_ms(1 + n),
                self._verified[n] / weight,
                self._tokens[n] / weight,
                1000 * self._tokens[n] / self._spent[n] if self._spent[n] else 0.0,
            )
            for n in range(self._n_max + 1)
        ]

    def _reckon(self, right: Sequence[float]) -> float:
        """Add what each length would have brought in this place; return the best, in terms of plain decoding."""
        costs = self._costs.table(self._n_max)
        speed = self._speed(costs)
        right = [*right, *[right[-1]] * (self._n_max - len(right))]

        all_right, n_right, gain = 1.0, 0.0, 0.0
        n_verified, n_kept, best_gain, best = 0, 0.0, 0.0, 0.0
        self._weight = FADE * self._weight + 1
        for n in range(self._n_max + 1):
            if n > 0:
                all_right *= right[n - 1]
                n_right += all_right
                gain += all_right - speed * (costs.verify[n] - costs.verify[n - 1])
            if gain > best_gain:  # as _worth decides
                n_verified, n_kept, best_gain = n, n_right, gain
            spent = costs.verify[n_verified] + costs.draft[n]
            self._tokens[n] = FADE * self._tokens[n] + 1 + n_kept
            self._spent[n] = FADE * self._spent[n] + spent
            self._verified[n] = FADE * self._verified[n] + n_verified
            best = max(best, (1 + n_kept) / spent)
        return best * costs.plain

    def _best(self) -> int:
        rates = [tokens / spent for tokens, spent in zip(self._tokens, self._spent, strict=True)]
        best = max(range(len(rates)), key=rates.__getitem__)
        return best if rates[best] > (MARGIN if self._n == 0 else MARGIN_TO_STAY) * rates[0] else 0

    def _speed(self, costs: CostTable) -> float:
        """Tokens a millisecond that can be had anyway."""
        plain = 1 / costs.plain
        return max(plain, self._tokens[self._n] / self._spent[self._n]) if self._spent[self._n] else plain

    def _worth(self, right: Sequence[float], *, drawn: bool) -> int:
        """How many drafts bring more than their rows cost."""
        costs = self._costs.table(self._n_max)
        speed = self._speed(costs)
        all_right, best, gain, best_gain = 1.0, 0, 0.0, 0.0
        for n, one in enumerate(right, 1):
            all_right *= one
            gain += all_right - speed * (costs.verify[n] - costs.verify[n - 1])
            if gain > best_gain:
                best, best_gain = n, gain
            elif drawn:  # later drafts know what this one became
                break
        return best


class Calibration:
    """How probably a draft of some confidence is right: a logistic regression that forgets fast.

    Texts differ: where one repeats itself, heads are right more often than they believe.
    """

    def __init__(self) -> None:
        self._slope, self._offset = 1.0, 0.0

    def __call__(self, confidence: float) -> float:
        return 1 / (1 + math.exp(-self._slope * _logit(confidence) - self._offset))

    def observe(self, confidence: float, *, is_right: bool) -> None:
        """A draft turned out right or wrong."""
        error = is_right - self(confidence)
        self._offset += 0.4 * error
        self._slope = min(max(self._slope + 0.1 * error * _logit(confidence), 0.2), 2.0)


N_AT_FIRST = 2
"""Drafts of the first rounds."""
FADE = 0.93
"""What a round counts less with each one that follows it."""
MARGIN, MARGIN_TO_STAY = 1.05, 1.02
"""How much faster drafting has to look than plain decoding, to begin and to go on: the best of several is overrated."""
TRIAL_SHARE = 0.01
"""Of plain decoding's time, what trials may cost."""
TRIAL_GAP_MAX = 96
"""Rounds between two trials, at most, be it of one text or of several."""

_PLAIN_ROUNDS = (3, 5, 7, 9, 11)  # of a sequence: without drafts, to measure them


def _logit(probability: float) -> float:
    probability = min(max(probability, 0.01), 0.99)
    return math.log(probability / (1 - probability))


def _confident(confidences: Sequence[float], n_min: int, p_min: float) -> int:
    """Drafts up to the first whose confidence is below `p_min`; none if these are fewer than `n_min`."""
    n = next((i for i, confidence in enumerate(confidences) if confidence < p_min), len(confidences))
    return n if n >= n_min else 0
