"""What a list of measurements says: its middle, and how far it scatters.

Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import fmean, median, stdev
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Of a list of measurements: the median, and the distance between the quartiles."""

    median: float
    iqr: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of `values`, at least one."""
        low, middle, high = np.percentile(values, (25, 50, 75))
        return cls(float(middle), float(high - low))


class Mean(NamedTuple):
    """Of a list of measurements: the mean and the standard deviation, as llama-bench has them."""

    mean: float
    stddev: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of `values`, at least one; a single one has no deviation."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)


class Ratio(NamedTuple):
    """Of pairs of measurements: the median ratio, and an interval that holds it with 95 % probability."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """Of `ratios`, at least one. See median_interval."""
        return cls(median(ratios), *median_interval(ratios))


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval that holds the median of what `values` were drawn from, with probability `level` at least.

    It lies between two of the values, whatever their distribution (the sign test's interval; Conover, Practical
    Nonparametric Statistics, 3.2). Too few values (fewer than 6 for 0.95) give their whole range.
    """
    ordered = sorted(values)
    n, below, k = len(ordered), 0.0, 0
    while k < (n - 1) // 2 and below + comb(n, k) / 2**n <= (1 - level) / 2:
        below += comb(n, k) / 2**n
        k += 1
    first = max(k - 1, 0)
    return ordered[first], ordered[n - 1 - first]
