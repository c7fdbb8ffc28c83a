"""What is learned from drafts: how often those of some confidence are right, and what each length would have brought.

Knows probabilities and costs; never tokens, files or the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymtp.drafting.length.costs import RoundCosts, is_amount


class Outcomes(NamedTuple):
    """What a round brings with 0, 1, ... drafts, (n_max + 1,) each."""

    n_verified: Sequence[int]
    n_tokens: Sequence[float]
    ms: Sequence[float]


class Reckoning:
    """Means of what each length would have brought, in which what came earlier counts less."""

    def __init__(self, n_max: int, fade: float) -> None:
        self._fade = fade
        # sums, by length
        self.verified = [0.0] * (n_max + 1)
        self.tokens = [0.0] * (n_max + 1)
        self.ms = [0.0] * (n_max + 1)
        self.weight = 0.0

    def add(self, outcomes: Outcomes) -> None:
        """Take in a round."""
        fade = self._fade
        self.weight = fade * self.weight + 1
        self.verified = [fade * sum_ + n for sum_, n in zip(self.verified, outcomes.n_verified, strict=True)]
        self.tokens = [fade * sum_ + n for sum_, n in zip(self.tokens, outcomes.n_tokens, strict=True)]
        self.ms = [fade * sum_ + ms for sum_, ms in zip(self.ms, outcomes.ms, strict=True)]

    def rate(self, n: int) -> float:
        """Tokens a millisecond with drafts of length n; 0 if nothing is known."""
        return self.tokens[n] / self.ms[n] if self.ms[n] else 0.0

    def best(self, margin: float) -> int:
        """The length that is fastest; none, unless that is faster by this factor than none."""
        best = max(range(1, len(self.ms)), key=self.rate, default=0)
        return best if self.rate(best) > margin * self.rate(0) else 0

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"weight": self.weight, "verified": self.verified, "tokens": self.tokens, "ms": self.ms}

    def recall(self, found: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` has said. Raises KeyError, TypeError or ValueError if it cannot have."""
        sums = [list(map(float, found[name])) for name in ("verified", "tokens", "ms")]
        weight = float(found["weight"])
        if any(len(values) != len(self.ms) for values in sums) or not all(map(is_amount, [weight, *sum(sums, [])])):
            raise ValueError
        self.weight, (self.verified, self.tokens, self.ms) = weight, sums

    def copy(self, weight_max: float) -> Reckoning:
        """The same means with at most this weight, to go on from where a text begins."""
        other = Reckoning(len(self.ms) - 1, FADE)
        if self.weight:
            share = min(weight_max / self.weight, 1.0)
            other.weight = share * self.weight
            other.verified, other.tokens, other.ms = (
                [share * value for value in sums] for sums in (self.verified, self.tokens, self.ms)
            )
        return other


class Calibration:
    """How probably a draft of some confidence is right: a logistic regression that forgets fast.

    Texts differ: where one repeats itself, heads are right more often than they believe.
    """

    def __init__(self, slope: float = 1.0, offset: float = 0.0, n_followed: int = 0) -> None:
        self._slope, self._offset, self._n_followed = slope, offset, n_followed

    def __call__(self, confidence: float) -> float:
        p = _bounded(confidence)
        return 1 / (1 + math.exp(-self._offset) * math.pow((1 - p) / p, self._slope))

    def observe(self, confidences: Sequence[float], believed: Sequence[float], are_right: Sequence[bool]) -> None:
        """Drafts of which it had `believed` so much turned out right or wrong: the first `len(are_right)` of them."""
        for confidence, probability, is_right in zip(confidences, believed, are_right, strict=False):
            error = is_right - probability
            self._offset += 0.4 * error
            self._slope += 0.1 * error * _logit(confidence)
        self._slope = min(max(self._slope, 0.2), 2.0)

    def follow(self, other: Calibration) -> None:
        """Come a little closer to another; the more often it has, the less."""
        self._n_followed += 1
        rate = max(1 / (N_BY_ITSELF + self._n_followed), RATE_OF_ALL)
        self._slope += rate * (other._slope - self._slope)
        self._offset += rate * (other._offset - self._offset)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"slope": self._slope, "offset": self._offset, "n_followed": self._n_followed}

    @classmethod
    def recall(cls, found: Mapping[str, Any]) -> Calibration:
        """Go on from what `as_dict` has said. Raises KeyError, TypeError or ValueError if it cannot have."""
        return cls(_finite(found["slope"]), _finite(found["offset"]), _count(found["n_followed"]))

    def copy(self) -> Calibration:
        """One that goes on from here."""
        return Calibration(self._slope, self._offset)


class TrialPlan:
    """When it is tried again whether drafts pay, while there are none."""

    def __init__(self) -> None:
        self.n_until = 0.0
        """Rounds to the next trial."""
        self._gap = 0.0

    def plan(self, affordable: float, *, paid: bool) -> None:
        """Behind a trial, or drafts that do not pay any more: `affordable` rounds later, if trials go on to fail."""
        self._gap = TRIAL_GAP_MIN if paid else max(min(2 * self._gap, affordable), TRIAL_GAP_MIN)
        self.n_until = self._gap

    def as_dict(self) -> dict[str, float]:
        """For a file."""
        return {"n_until": self.n_until, "gap": self._gap}

    def recall(self, found: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` has said. Raises KeyError, OverflowError, TypeError or ValueError if it cannot."""
        self.n_until, self._gap = _finite(found["n_until"]), _finite(found["gap"])


class Kind:
    """What the texts of a kind share."""

    def __init__(self) -> None:
        self.is_right = Calibration()
        self.trials = TrialPlan()
        self._beginnings: dict[int, Reckoning] = {}

    def beginnings(self, n_max: int) -> Reckoning:
        """Of the first drafts of each text, whatever became of drafting behind them."""
        return self._beginnings.setdefault(n_max, Reckoning(n_max, FADE_OF_ALL))

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "is_right": self.is_right.as_dict(),
            "trials": self.trials.as_dict(),
            "beginnings": {n_max: means.as_dict() for n_max, means in self._beginnings.items() if means.weight},
        }

    def recall(self, found: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` has said.

        Raises AttributeError, KeyError, OverflowError, TypeError or ValueError if it cannot have said that.
        """
        self.is_right = Calibration.recall(found["is_right"])
        self.trials.recall(found["trials"])
        for n_max, means in found["beginnings"].items():
            self.beginnings(int(n_max)).recall(means)


class Learned:
    """What the drafts of one text have told where it is of a kind; it begins with what the texts before have told."""

    def __init__(self, kind: Kind, n_max: int) -> None:
        self.trials = kind.trials
        self.is_right = kind.is_right.copy()
        self.reckoning = kind.beginnings(n_max).copy(PRIOR_WEIGHT)
        self._kind, self._n_max, self._n_reckoned = kind, n_max, 0

    def observe(self, confidences: Sequence[float], believed: Sequence[float], are_right: Sequence[bool]) -> None:
        """What became of a round's drafts. See Calibration."""
        self.is_right.observe(confidences, believed, are_right)
        self._kind.is_right.follow(self.is_right)

    def reckon(self, outcomes: Outcomes) -> None:
        """Take in what each length would have brought in their place."""
        self.reckoning.add(outcomes)
        if self._n_reckoned < N_TOLD:
            self._kind.beginnings(self._n_max).add(outcomes)
        self._n_reckoned += 1


class Experience:
    """What the texts of a model share: the costs, and for those to come what has been learned from drafts."""

    def __init__(self, costs: RoundCosts | None = None) -> None:
        self.costs = costs or RoundCosts()
        self.kinds = {False: Kind(), True: Kind()}
        """By whether the text repeats itself: where it does, drafts are right far more often, and go on to be."""
        self.n_trials = 0
        """Rounds that only tried whether drafts would pay."""
        self.n_since_measured = 0
        """Rounds that draft since there were plain ones, and some with the longest drafts, to measure them."""

    def as_dict(self) -> dict[str, Any]:
        """For a file, so that the next process need not begin anew."""
        return {
            "costs": self.costs.as_dict(),
            "kinds": [kind.as_dict() for kind in self.kinds.values()],
            "n_trials": self.n_trials,
            "n_since_measured": self.n_since_measured,
        }

    @classmethod
    def recall(cls, found: Mapping[str, Any]) -> Experience:
        """Go on from what `as_dict` has said; where it cannot have, begin anew."""
        known = cls()
        try:
            known.costs.recall(found["costs"])
            for kind, learned in zip(known.kinds.values(), found["kinds"], strict=True):
                kind.recall(learned)
            known.n_trials, known.n_since_measured = _count(found["n_trials"]), _count(found["n_since_measured"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return cls()
        return known


TRIAL_GAP_MIN = 24
"""The least rounds between two trials, be it of one text or of several."""
PRIOR_WEIGHT = 15.0
"""Rounds that this counts for in a new text, at most."""
FADE = 0.93
"""What a round counts less with each one that follows it."""
N_TOLD, FADE_OF_ALL = 16, 0.99
"""Rounds that draft of each text and kind that tell the others, and what they count less with each that follows."""
N_BY_ITSELF, RATE_OF_ALL = 8, 0.005
"""How slowly texts learn from each other how right drafts are: faster as long as they are few."""


def _count(value: Any) -> int:
    if not is_amount(value):
        raise ValueError
    return int(value)


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def _logit(probability: float) -> float:
    probability = _bounded(probability)
    return math.log(probability / (1 - probability))


def _bounded(probability: float) -> float:
    """So that none is certain; min and max would take as long as all the rest of a calibration."""
    return 0.01 if probability < 0.01 else 0.99 if probability > 0.99 else probability
