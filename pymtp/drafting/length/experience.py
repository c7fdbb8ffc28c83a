"""What is learned from drafts: how often drafts of some confidence are right, and what each length would have yielded.

Knows probabilities and costs; never tokens, files or the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymtp.drafting.length.costs import RoundCosts, is_amount


class Outcomes(NamedTuple):
    """What a round yields and costs with 0, 1, ... drafts, (n_max + 1,) each."""

    n_verified: Sequence[int]
    n_tokens: Sequence[float]
    ms: Sequence[float]


class LengthMeans:
    """Running means of what each length would have yielded; older rounds weigh less."""

    def __init__(self, n_max: int, decay: float) -> None:
        self._decay = decay
        # sums, by length
        self.verified = [0.0] * (n_max + 1)
        self.tokens = [0.0] * (n_max + 1)
        self.ms = [0.0] * (n_max + 1)
        self.weight = 0.0

    def add(self, outcomes: Outcomes) -> None:
        """Add a round."""
        decay = self._decay
        self.weight = decay * self.weight + 1
        self.verified = [decay * sum_ + n for sum_, n in zip(self.verified, outcomes.n_verified, strict=True)]
        self.tokens = [decay * sum_ + n for sum_, n in zip(self.tokens, outcomes.n_tokens, strict=True)]
        self.ms = [decay * sum_ + ms for sum_, ms in zip(self.ms, outcomes.ms, strict=True)]

    def rate(self, n: int) -> float:
        """Tokens per millisecond with drafts of length `n`; 0 if nothing is known."""
        return self.tokens[n] / self.ms[n] if self.ms[n] else 0.0

    def best(self, margin: float) -> int:
        """The fastest length; 0 unless another one is more than `margin` times as fast as plain decoding."""
        best = max(range(1, len(self.ms)), key=self.rate, default=0)
        return best if self.rate(best) > margin * self.rate(0) else 0

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"weight": self.weight, "verified": self.verified, "tokens": self.tokens, "ms": self.ms}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what `as_dict` returned. Raises KeyError, TypeError or ValueError if it cannot have returned that."""
        sums = [list(map(float, saved[name])) for name in ("verified", "tokens", "ms")]
        weight = float(saved["weight"])
        if any(len(values) != len(self.ms) for values in sums) or not all(map(is_amount, [weight, *sum(sums, [])])):
            raise ValueError
        self.weight, (self.verified, self.tokens, self.ms) = weight, sums

    def copy(self, weight_max: float) -> LengthMeans:
        """The same means with at most this weight, for a new sequence to start from."""
        other = LengthMeans(len(self.ms) - 1, DECAY)
        if self.weight:
            share = min(weight_max / self.weight, 1.0)
            other.weight = share * self.weight
            other.verified, other.tokens, other.ms = (
                [share * value for value in sums] for sums in (self.verified, self.tokens, self.ms)
            )
        return other


class Calibration:
    """Maps a draft's confidence to the probability that it is right: an online logistic regression that adapts fast.

    Sequences differ: heads are under-confident where a sequence repeats itself.
    """

    def __init__(self, slope: float = 1.0, offset: float = 0.0, n_followed: int = 0) -> None:
        self._slope, self._offset, self._n_followed = slope, offset, n_followed

    def __call__(self, confidence: float) -> float:
        p = _clamped(confidence)
        return 1 / (1 + math.exp(-self._offset) * math.pow((1 - p) / p, self._slope))

    def observe(self, confidences: Sequence[float], estimates: Sequence[float], are_right: Sequence[bool]) -> None:
        """Learn which drafts were right: the first `len(are_right)` ones, for which it had returned `estimates`."""
        for confidence, estimate, is_right in zip(confidences, estimates, are_right, strict=False):
            error = is_right - estimate
            self._offset += 0.4 * error
            self._slope += 0.1 * error * _logit(confidence)
        self._slope = min(max(self._slope, 0.2), 2.0)

    def follow(self, other: Calibration) -> None:
        """Move a little towards another one; less each time, down to SHARED_RATE_MIN."""
        self._n_followed += 1
        rate = max(1 / (SHARED_PRIOR_WEIGHT + self._n_followed), SHARED_RATE_MIN)
        self._slope += rate * (other._slope - self._slope)
        self._offset += rate * (other._offset - self._offset)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"slope": self._slope, "offset": self._offset, "n_followed": self._n_followed}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Calibration:
        """Restore what `as_dict` returned. Raises KeyError, TypeError or ValueError if it cannot have returned that."""
        return cls(_finite(saved["slope"]), _finite(saved["offset"]), _count(saved["n_followed"]))

    def copy(self) -> Calibration:
        """One that starts from here."""
        return Calibration(self._slope, self._offset)


class ProbePlan:
    """When to probe next, while drafting is off."""

    def __init__(self) -> None:
        self.n_until = 0.0
        """Rounds until the next probe."""
        self._gap = 0.0

    def plan(self, affordable: float, *, paid: bool) -> None:
        """After a probe, or when drafting is turned off (`paid`): set the gap before the next probe.

        While probes fail the gap doubles, up to `affordable` rounds.
        """
        self._gap = PROBE_GAP_MIN if paid else max(min(2 * self._gap, affordable), PROBE_GAP_MIN)
        self.n_until = self._gap

    def as_dict(self) -> dict[str, float]:
        """For a file."""
        return {"n_until": self.n_until, "gap": self._gap}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what `as_dict` returned.

        Raises KeyError, OverflowError, TypeError or ValueError if it cannot have returned that.
        """
        self.n_until, self._gap = _finite(saved["n_until"]), _finite(saved["gap"])


class KindStats:
    """What sequences share about one kind of text: repetitive, or not."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.probe_plan = ProbePlan()
        self._first_rounds: dict[int, LengthMeans] = {}

    def first_rounds(self, n_max: int) -> LengthMeans:
        """Means over the first rounds of each sequence that drafted, whether it kept drafting or not."""
        return self._first_rounds.setdefault(n_max, LengthMeans(n_max, SHARED_DECAY))

    def as_dict(self) -> dict[str, Any]:
        """For a file. The keys are those of files on disk."""
        return {
            "is_right": self.calibration.as_dict(),
            "trials": self.probe_plan.as_dict(),
            "beginnings": {n_max: means.as_dict() for n_max, means in self._first_rounds.items() if means.weight},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what `as_dict` returned.

        Raises AttributeError, KeyError, OverflowError, TypeError or ValueError if it cannot have returned that.
        """
        self.calibration = Calibration.from_dict(saved["is_right"])
        self.probe_plan.load(saved["trials"])
        for n_max, means in saved["beginnings"].items():
            self.first_rounds(int(n_max)).load(means)


class SequenceStats:
    """One sequence's statistics for one kind of text; they start from those of earlier sequences."""

    def __init__(self, kind: KindStats, n_max: int) -> None:
        self.probe_plan = kind.probe_plan
        self.calibration = kind.calibration.copy()
        self.means = kind.first_rounds(n_max).copy(PRIOR_WEIGHT)
        self._kind, self._n_max, self._n_rounds = kind, n_max, 0

    def observe(self, confidences: Sequence[float], estimates: Sequence[float], are_right: Sequence[bool]) -> None:
        """Learn which of a round's drafts were right. See Calibration."""
        self.calibration.observe(confidences, estimates, are_right)
        self._kind.calibration.follow(self.calibration)

    def add(self, outcomes: Outcomes) -> None:
        """Add what each length would have yielded in a round."""
        self.means.add(outcomes)
        if self._n_rounds < N_SHARED_ROUNDS:
            self._kind.first_rounds(self._n_max).add(outcomes)
        self._n_rounds += 1


class Experience:
    """What the sequences of a model share: the costs of rounds, and what was learned from drafts."""

    def __init__(self, costs: RoundCosts | None = None) -> None:
        self.costs = costs or RoundCosts()
        self.kinds = {False: KindStats(), True: KindStats()}
        """By whether the text is repetitive: where it is, drafts are right far more often."""
        self.n_probes = 0
        """Probes so far."""
        self.n_since_measured = 0
        """Rounds that drafted since the costs of plain rounds and of the longest drafts were last measured."""

    def as_dict(self) -> dict[str, Any]:
        """For a file, so that the next process starts from here. The keys are those of files on disk."""
        return {
            "costs": self.costs.as_dict(),
            "kinds": [kind.as_dict() for kind in self.kinds.values()],
            "n_trials": self.n_probes,
            "n_since_measured": self.n_since_measured,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Experience:
        """Restore what `as_dict` returned; if it cannot have returned that, start empty."""
        restored = cls()
        try:
            restored.costs.load(saved["costs"])
            for kind, stats in zip(restored.kinds.values(), saved["kinds"], strict=True):
                kind.load(stats)
            restored.n_probes = _count(saved["n_trials"])
            restored.n_since_measured = _count(saved["n_since_measured"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return cls()
        return restored


PROBE_GAP_MIN = 24
"""Rounds between two probes at least, of one sequence or of several."""
PRIOR_WEIGHT = 15.0
"""The most rounds that earlier sequences count for in a new one."""
DECAY = 0.93
"""Factor by which a round's weight shrinks with each round after it."""
N_SHARED_ROUNDS, SHARED_DECAY = 16, 0.99
"""Drafting rounds of each sequence and kind of text that later sequences start from, and their decay."""
SHARED_PRIOR_WEIGHT, SHARED_RATE_MIN = 8, 0.005
"""The learning rate of a shared calibration is 1 / (SHARED_PRIOR_WEIGHT + updates so far), but not below the second."""


def _count(value: Any) -> int:
    if not is_amount(value):
        raise ValueError
    return int(value)


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def _logit(probability: float) -> float:
    probability = _clamped(probability)
    return math.log(probability / (1 - probability))


def _clamped(probability: float) -> float:
    """Never certain either way. Written without min and max, which take as long as the rest of a calibration."""
    return 0.01 if probability < 0.01 else 0.99 if probability > 0.99 else probability
