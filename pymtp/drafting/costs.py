"""What passes cost on this machine: medians of what was measured, and estimates for the rest.

Owns the arithmetic; reads no clock. Times are in milliseconds, but callers rely only on their ratios.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

N_RECENT = 7
"""Measurements of a kind of pass that its median is taken over: a burst of load on the machine has to last for four of
them to move it."""
ROW_SHARE, STEP_SHARE = 0.1, 0.1
"""What a further row, and a step of the heads, is assumed to cost of a plain pass until some were measured: little, so
that drafting is tried."""
N_REFRESH = 8
"""Measurements after which estimates are made again."""


class PassCosts:
    """The times of passes by the steps of the heads before them (0: none), their rows, and their sequences."""

    def __init__(self) -> None:
        self._recent: dict[tuple[int, int, int], deque[float]] = {}
        self._before = (-1, -1)  # steps and sequences of the latest pass
        self._tables: dict[tuple[int, int], list[float]] = {}
        self._n_until = 0

    def observe(self, steps: int, rows: int, n_sequences: int, ms: float) -> None:
        """Add a pass. The first of its kind in a row does not count: what it needs is not in the caches yet."""
        before, self._before = self._before, (steps, n_sequences)
        if before != self._before:
            return
        known = self._recent.get((steps, rows, n_sequences))
        if known is None:
            known = self._recent[steps, rows, n_sequences] = deque(maxlen=N_RECENT)
            self._n_until = 0
        known.append(ms)
        self._n_until -= 1
        if self._n_until < 0 or len(known) < N_RECENT // 2:
            self._n_until = N_REFRESH
            self._tables.clear()

    def knows(self, steps: int, n_sequences: int) -> bool:
        """Whether such passes were measured."""
        return any(s == steps and n == n_sequences for s, _, n in self._recent)

    def table(self, steps: int, n_sequences: int, n_max: int) -> list[float]:
        """Passes that verify 0 to at least `n_max` drafts of all sequences together. More rows never cost less."""
        found = self._tables.get((steps, n_sequences))
        if found is None or len(found) <= n_max:
            found = self._tables[steps, n_sequences] = self._estimate(steps, n_sequences, n_max)
        return found

    def _estimate(self, steps: int, n_sequences: int, n_max: int) -> list[float]:
        """A linear fit to all medians, moved so that it passes through those of such passes, or the most similar."""
        import numpy as np

        known = {key: median(values) for key, values in self._recent.items()}
        rows = np.arange(n_sequences, n_sequences + n_max + 1, dtype=float)
        if not known:
            return (1 + ROW_SHARE * (rows - n_sequences) + STEP_SHARE * steps).tolist()  # type: ignore[no-any-return]
        keys = sorted(known)
        fit = _fit(keys, [known[key] for key in keys])

        def fitted(rows: np.ndarray, steps: int, n: int) -> np.ndarray:
            return fit[0] + fit[1] * rows + fit[2] * steps + fit[3] * steps * n  # type: ignore[no-any-return]

        nearest = min(keys, key=lambda key: (key[2] != n_sequences, abs(key[2] - n_sequences), abs(key[0] - steps)))
        such = [key for key in keys if (key[0], key[2]) == (nearest[0], nearest[2])]
        off = [known[key] - float(fitted(np.array(key[1]), key[0], key[2])) for key in such]
        table = fitted(rows, steps, n_sequences) + np.interp(rows, [key[1] for key in such], off)
        least = np.maximum(table, min(known.values()) / 4)
        return np.minimum.accumulate(least[::-1])[::-1].tolist()  # type: ignore[no-any-return]


def _fit(keys: list[tuple[int, int, int]], ms: list[float]) -> np.ndarray:
    """Milliseconds of a pass, of each row, of each step, and of each sequence in a step, by least squares.

    A little weight is on the shares that are assumed at first, so that few measurements are enough.
    """
    import numpy as np

    unit = min(ms)
    points = np.array([[1, rows, steps, steps * n] for steps, rows, n in keys], float)
    prior = 0.3 * np.diag([0.0, 1, 1, 1])
    target = 0.3 * unit * np.array([0, ROW_SHARE, STEP_SHARE, 0])
    found = np.linalg.lstsq(np.vstack([points, prior]), np.concatenate([ms, target]), rcond=None)[0]
    return np.maximum(found, 0)  # type: ignore[no-any-return]
