"""What passes cost on this machine, compared with each other: medians of what was measured, and estimates for the rest.

Owns the arithmetic; reads no clock. Times are in milliseconds of the machine's pace at the beginning; callers rely on
their ratios.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from statistics import median, mode

N_RECENT = 7
"""Measurements of a kind of pass that its median is taken over: a burst of load on the machine has to last for four of
them to move it."""
NEW_SHARE = 0.1
"""What a step of the heads is assumed to cost of a pass, and a further row of what one costs in it, until some were
measured: little, so that drafting is tried. And what a pass of a kind that was never measured is taken to cost more."""

Kind = tuple[int, int, int]
"""Steps of the heads before a pass (0: none), its rows, and its sequences."""


class PassCosts:
    """The times of passes by their kind, as they were when `refresh` was last called.

    A machine that others use changes its pace. So a pass is compared with those of the most frequent kind around it.
    """

    def __init__(self) -> None:
        self.pace = 1.0
        """What a pass takes now, as a multiple of its cost."""
        self._recent: dict[Kind, deque[float]] = {}
        self._latest: deque[tuple[Kind, float]] = deque(maxlen=4 * N_RECENT)  # passes, in milliseconds
        self._frequent: Kind | None = None  # the kind of most of these
        self._before = (-1, -1)  # steps and sequences of the latest pass
        self._known: dict[Kind, float] = {}  # medians
        self._fit: list[float] = []  # see _fit
        self._tables: dict[tuple[int, int], list[float]] = {}

    def observe(self, steps: int, rows: int, n_sequences: int, ms: float) -> None:
        """Add a pass. The first of its kind in a row does not count: what it needs is not in the caches yet."""
        before, self._before = self._before, (steps, n_sequences)
        if before != self._before:
            return
        kind = steps, rows, n_sequences
        self._latest.append((kind, ms))
        if kind == self._frequent:  # its cost stays: what has changed is the pace
            self.pace = median([ms for each, ms in self._latest if each == kind]) / self._known[kind]
            return
        self._recent.setdefault(kind, deque(maxlen=N_RECENT)).append(ms / self.pace)
        if kind not in self._known:
            self.refresh()

    def refresh(self) -> None:
        """Take what was observed into account."""
        self._known = {kind: median(recent) for kind, recent in self._recent.items()}
        self._frequent = mode(kind for kind, _ in self._latest)
        self._fit = _fit(self._known)
        self._tables.clear()

    @property
    def plain_ms(self) -> float | None:
        """What a plain pass of one sequence takes now; None before such a pass was measured."""
        known = self._known.get((0, 1, 1))
        return known and known * self.pace

    @property
    def are_known(self) -> bool:
        """Whether any pass was measured."""
        return bool(self._known)

    def table(self, steps: int, n_sequences: int, n_max: int) -> list[float]:
        """Passes that verify 0 to at least `n_max` drafts of all sequences together, once some were observed."""
        found = self._tables.get((steps, n_sequences))
        if found is None or len(found) <= n_max:
            found = self._tables[steps, n_sequences] = self._estimate(steps, n_sequences, n_max)
        return found

    def _estimate(self, steps: int, n: int, n_max: int) -> list[float]:
        """A linear fit to all medians, moved to the measured pass that is most similar: sequences, steps, then rows."""
        least, known = min(self._known.values()), sorted(self._known.items())
        similar, _ = min(known, key=lambda each: (abs(each[0][2] - n), abs(each[0][0] - steps)))
        off = {kind[1]: ms - self._at(kind) for kind, ms in known if kind[::2] == similar[::2]}
        first, row = self._at((steps, n, n)), self._fit[1]
        line = [first + row * k + off[min(off, key=lambda rows: abs(rows - n - k))] for k in range(n_max + 1)]
        # of others a graph has to be built
        line = [ms if (steps, n + k, n) in self._known else ms * (1 + NEW_SHARE) for k, ms in enumerate(line)]
        return list(accumulate((max(ms, least) for ms in reversed(line)), min))[::-1]

    def _at(self, kind: Kind) -> float:
        return float(sum(map(mul, self._fit, _terms(*kind))))


def _fit(known: Mapping[Kind, float]) -> list[float]:
    """Milliseconds of a pass, of each row, of each step, and of each sequence in a step, by least squares.

    A little weight is on the shares that are assumed at first, so that few measurements are enough.
    """
    of_row = NEW_SHARE * min(ms / rows for (_, rows, _), ms in known.items())
    of_step = NEW_SHARE * min(known.values())
    points = [*map(_terms, *zip(*known, strict=True)), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    # the normal equations; NumPy would take longer to import than a short answer takes
    columns = [*zip(*points, strict=True), (*known.values(), of_row, of_step, 0)]
    rows = [[float(sum(map(mul, one, other))) for other in columns] for one in columns[:-1]]
    for i in range(len(rows)):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        rows = [
            row if j == i else [a - row[i] * b for a, b in zip(row, rows[i], strict=True)] for j, row in enumerate(rows)
        ]
    return [max(row[-1], 0.0) for row in rows]


def _terms(steps: int, rows: int, n_sequences: int) -> Sequence[float]:
    return (1, rows, steps, steps * n_sequences)
