"""What passes cost on this machine: medians of what was measured, and estimates for the rest.

Owns the arithmetic; reads no clock. Times are in milliseconds, but callers rely only on their ratios.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from statistics import median

N_RECENT = 7
"""Measurements of a kind of pass that its median is taken over: a burst of load on the machine has to last for four of
them to move it."""
NEW_SHARE = 0.1
"""What a further row, and a step of the heads, is assumed to cost of a plain pass until some were measured: little, so
that drafting is tried."""


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
            self._n_until = N_RECENT
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
        known = {key: median(values) for key, values in self._recent.items()}
        rows = range(n_sequences, n_sequences + n_max + 1)
        if not known:
            return [1 + NEW_SHARE * (n - n_sequences + steps) for n in rows]
        keys = sorted(known)
        fit = _fit(keys, [known[key] for key in keys])
        nearest = min(keys, key=lambda key: (key[2] != n_sequences, abs(key[2] - n_sequences), abs(key[0] - steps)))
        such = [key for key in keys if (key[0], key[2]) == (nearest[0], nearest[2])]
        at, off = [key[1] for key in such], [known[key] - _fitted(fit, *key) for key in such]
        floor = min(known.values())
        table = [max(_fitted(fit, steps, n, n_sequences) + _between(n, at, off), floor) for n in rows]
        return list(accumulate(reversed(table), min))[::-1]


def _fit(keys: list[tuple[int, int, int]], ms: list[float]) -> list[float]:
    """Milliseconds of a pass, of each row, of each step, and of each sequence in a step, by least squares.

    A little weight is on the shares that are assumed at first, so that few measurements are enough.
    """
    share = NEW_SHARE * min(ms)
    points: list[Sequence[float]] = [_terms(*key) for key in keys]
    points += [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    values = [*ms, share, share, 0]
    # the normal equations; NumPy would take longer to import than a short answer takes
    columns = list(zip(*points, strict=True))
    equations = [[_dot(one, other) for other in (*columns, values)] for one in columns]
    return [max(each, 0.0) for each in _solve(equations)]


def _terms(steps: int, rows: int, n_sequences: int) -> Sequence[float]:
    return (1, rows, steps, steps * n_sequences)


def _fitted(fit: Sequence[float], steps: int, rows: int, n_sequences: int) -> float:
    return _dot(fit, _terms(steps, rows, n_sequences))


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return float(sum(map(mul, one, other)))


def _solve(equations: list[list[float]]) -> list[float]:
    """The solution of positive definite equations, with their right sides in the last column."""
    n = len(equations)
    for i, pivot in enumerate(equations):
        for lower in equations[i + 1 :]:
            factor = lower[i] / pivot[i]
            lower[i:] = [a - factor * b for a, b in zip(lower[i:], pivot[i:], strict=True)]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (equations[i][n] - _dot(equations[i][i + 1 : n], found[i + 1 :])) / equations[i][i]
    return found


def _between(x: int, at: Sequence[int], values: Sequence[float]) -> float:
    """The value at `x` on the line through the nearest points, which are in order; outside of them the nearest one."""
    i = bisect(at, x)
    if i in (0, len(at)):
        return values[min(i, len(at) - 1)]
    share = (x - at[i - 1]) / (at[i] - at[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
