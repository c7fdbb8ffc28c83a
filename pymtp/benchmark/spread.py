"""Statistics of a list of measurements: the median, and an interval that contains it.

Knows numbers only.
"""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import NamedTuple


class Ratio(NamedTuple):
    """The median ratio of pairs of measurements, and an interval that contains it with 95 % probability."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Ratio":
        """From `ratios`, at least one. See median_interval."""
        return cls(median(ratios), *median_interval(ratios))


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval that contains the median of the distribution of `values` with probability `level` or more.

    Its ends are two of the values, and it holds for any distribution (the sign test's interval; Conover, Practical
    Nonparametric Statistics, 3.2). Too few values (fewer than 6 for 0.95) give their whole range.
    """
    ordered = sorted(values)
    n, below, k = len(ordered), 0.0, 0
    while k < (n - 1) // 2 and below + comb(n, k) / 2**n <= (1 - level) / 2:
        below += comb(n, k) / 2**n
        k += 1
    first = max(k - 1, 0)
    return ordered[first], ordered[n - 1 - first]
