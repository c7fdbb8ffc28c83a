"""How far measurements lie apart."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """The median of a list of measurements, and its interquartile range."""

    median: float
    iqr: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """From `values`, at least one."""
        low, middle, high = np.percentile(values, (25, 50, 75))
        return cls(float(middle), float(high - low))
