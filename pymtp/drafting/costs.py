"""What passes cost on this machine: medians of what was measured, and estimates for the rest.

Owns the arithmetic; reads no clock. Times are in milliseconds, but callers rely only on their ratios.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
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
        """A linear fit to all medians, moved to the measured pass that is most similar: sequences, steps, then rows."""
        known = {key: median(values) for key, values in self._recent.items()}
        rows = range(n_sequences, n_sequences + n_max + 1)
        if not known:
            return [1 + NEW_SHARE * (n - n_sequences + steps) for n in rows]
        fit = _fit(known)
        off = {key: ms - _dot(fit, _terms(*key)) for key, ms in known.items()}
        nearest = min(known, key=lambda key: (abs(key[2] - n_sequences), abs(key[0] - steps)))
        such = [key for key in known if (key[0], key[2]) == (nearest[0], nearest[2])]
        table = [
            _dot(fit, _terms(steps, n, n_sequences)) + off[min(such, key=lambda key: abs(key[1] - n))] for n in rows
        ]
        return list(accumulate(reversed([max(ms, min(known.values())) for ms in table]), min))[::-1]


def _fit(known: Mapping[tuple[int, int, int], float]) -> list[float]:
    """Milliseconds of a pass, of each row, of each step, and of each sequence in a step, by least squares.

    A little weight is on the shares that are assumed at first, so that few measurements are enough.
    """
    share = NEW_SHARE * min(known.values())
    points = [*map(_terms, *zip(*known, strict=True)), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    # the normal equations; NumPy would take longer to import than a short answer takes
    columns = list(zip(*points, strict=True))
    rows = [[_dot(one, other) for other in (*columns, [*known.values(), share, share, 0])] for one in columns]
    for i in range(len(rows)):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        rows = [
            row if j == i else [a - row[i] * b for a, b in zip(row, rows[i], strict=True)] for j, row in enumerate(rows)
        ]
    return [max(row[-1], 0.0) for row in rows]


def _terms(steps: int, rows: int, n_sequences: int) -> Sequence[float]:
    return (1, rows, steps, steps * n_sequences)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return float(sum(map(mul, one, other)))
