"""What the parts of a round take: verifying so many rows, drafting so many steps, and all the rest.

Owns the arithmetic; reads no clock. Milliseconds, but only ratios matter to those who ask.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

N_RECENT = 9
"""Measurements of which the median counts: enough for a machine that does other things too."""
N_WARM_UP = 3
"""Measurements of each kind that do not count: devices take longer for what they do for the first time."""
N_KNOWN = 4
"""Measurements of drafts from which on these can be judged."""
N_SETTLING = 2
"""Rounds behind one that has drafted more or less that do not count: what they need is not in the caches yet."""
N_REFRESH = 32
"""Rounds for which a table of costs is good, once there have been some."""


class CostTable(NamedTuple):
    """Milliseconds of a round of one sequence."""

    plain: float
    """Without drafts, among others like it."""
    verify: list[float]
    """Of a round that drafts: verifying 0 to n_max drafts, (n_max + 1,)."""
    draft: list[float]
    """Drafting 0 to n_max tokens, and all the rest of the round, (n_max + 1,)."""


class RoundCosts:
    """Medians of the latest measurements, and estimates for what was not measured yet.

    Plain rounds are apart from those that draft, and all count behind others of the same length only: a plain one that
    stands alone among others takes up to three times as long as many in a row, where not all weights fit into a cache
    or a device is that fast. What is measured seldom is measured cold as well: fewer rows or steps never cost more than
    more of them. A machine is not always equally fast: all else is kept in terms of the plain passes around it.

    Until there are measurements, a further row costs `row_share` of the first one, and a draft step `step_share`:
    little, so that drafting is tried.

    `is_measured` False: there will be none but those that `know` is told, and what is known is enough.
    """

    def __init__(self, *, row_share: float = 0.15, step_share: float = 0.1, is_measured: bool = True) -> None:
        self.is_measured = is_measured
        self._row_share, self._step_share = row_share, step_share
        self._plain = _Medians()  # ms of the trunk's passes in plain rounds, by rows: one of each sequence
        # in units of the plain pass of the fewest rows; in ms as long as that is not known
        self._verify = _Medians()  # the trunk's passes in rounds that draft, by rows
        self._draft = _Medians()  # by steps
        self._rest = _Medians()  # by steps
        self._trial = _Medians()
        self._n_sequences = 1
        self._n_rounds = 0
        self._n_steps, self._n_alike = 0, 0  # the latest rounds: what they draft, and how many in a row
        self._table = CostTable(0.0, [], [])
        self._table_until = 0  # rounds

    def observe(
        self, n_rows: int, n_steps: int, *, verify_ms: float, draft_ms: float, rest_ms: float, n_sequences: int = 1
    ) -> None:
        """A pass of `n_rows` rows, of so many sequences, for which `n_steps` steps of a draft were run (0: none)."""
        self._n_sequences = n_sequences
        self._n_rounds += 1
        if n_steps != self._n_steps:
            self._n_steps, self._n_alike = n_steps, 0
            if n_steps == 0:
                self._plain.age()
        self._n_alike += 1
        if self._n_alike <= N_SETTLING:
            return
        if n_steps == 0:
            self._note_plain(n_rows, verify_ms)
        else:
            self._verify.note(n_rows, verify_ms / self._unit)
            self._draft.note(n_steps, draft_ms / n_sequences / self._unit)
        self._rest.note(n_steps, rest_ms / n_sequences / self._unit)

    def observe_trial(self, n_tokens: int, trial_ms: float) -> None:
        """A round of one sequence that was to decode plainly took so long, because it also drafted a token.

        Only those count that have brought no token for it.
        """
        self._n_alike = 0
        if n_tokens == 1:
            self._trial.note(0, trial_ms / self._unit)

    def know(self, verify_ms: Sequence[float], draft_ms: Sequence[float]) -> None:
        """Take these for measurements: of passes of 1, 2, ... rows, and of drafts of 1, 2, ... steps."""
        one, *more = verify_ms
        self._plain.take({1: one})
        self._verify.take({n: ms / self._unit for n, ms in enumerate(more, 2)})
        self._draft.take({n: ms / self._unit for n, ms in enumerate(draft_ms, 1)})
        self._table_until = 0

    def as_dict(self) -> dict[str, dict[int, float]]:
        """All medians, for a file: milliseconds of plain passes, and all else in terms of these."""
        return {name: dict(medians) for name, medians in self._measured().items()}

    def recall(self, found: Mapping[str, Mapping[str, float]]) -> None:
        """Begin with what `as_dict` has said, until new measurements outvote it.

        Raises AttributeError, KeyError, TypeError or ValueError if it cannot have said that.
        """
        for name, medians in self._measured().items():
            values = {int(kind): float(ms) for kind, ms in found[name].items()}
            if not all(map(is_amount, [*values, *values.values()])):
                raise ValueError
            medians.take(values)
        if 0 in self._plain.values():
            raise ValueError

    def _measured(self) -> dict[str, _Medians]:
        return {
            "plain_ms": self._plain,
            "verify": self._verify,
            "draft": self._draft,
            "rest": self._rest,
            "trial": self._trial,
        }

    def forget_drafts(self) -> None:
        """Drafts cost something else from now on."""
        self._draft = _Medians()
        self._table_until = 0

    def table(self, n_max: int) -> CostTable:
        """The costs of rounds with 0 to `n_max` drafts. Looked at in every round, so it may be a few rounds old."""
        if self._n_rounds >= self._table_until or len(self._table.verify) != n_max + 1:
            lengths = range(n_max + 1)
            self._table = CostTable(
                self.plain_ms,
                [self.verify_ms(1 + n) for n in lengths],
                [self.draft_ms(n) + self.rest_ms(n) for n in lengths],
            )
            self._table_until = self._n_rounds + (1 if self._n_rounds < N_REFRESH else N_REFRESH)
        return self._table

    @property
    def is_shared(self) -> bool:
        """Whether the latest rounds were those of several sequences."""
        return self._n_sequences > 1

    @property
    def knows_plain(self) -> bool:
        """Whether plain rounds have been measured."""
        return bool(self._plain) or not self.is_measured

    @property
    def knows_drafts(self) -> bool:
        """Whether rounds that draft have been measured."""
        return self._draft.n_most >= N_KNOWN or not self.is_measured

    @property
    def plain_ms(self) -> float:
        """A round without drafts."""
        n = self._n_sequences
        return (self._plain[n] if n in self._plain else self._pass_ms(n)) / n + self.rest_ms(0)

    def verify_ms(self, n_rows: int) -> float:
        """What `n_rows` rows of one sequence cost, if all that ran together of late have as many."""
        return self._pass_ms(n_rows * self._n_sequences) / self._n_sequences

    @property
    def _unit(self) -> float:
        known = self._plain[min(self._plain)] if self._plain else 0.0
        return known or 1.0  # a clock can be too coarse for it

    def _note_plain(self, n_rows: int, ms: float) -> None:
        n_known, unit = len(self._plain), self._unit
        self._plain.note(n_rows, ms)
        if len(self._plain) > n_known:  # and perhaps another unit
            for medians in (self._verify, self._draft, self._rest, self._trial):
                medians.scale(unit / self._unit)

    def _pass_ms(self, n_rows: int) -> float:
        measured = {**self._plain, **{n: self._unit * passes for n, passes in self._verify.bounded.items()}}
        known = sorted(measured)
        if not known:
            return 1 + self._row_share * (n_rows - 1)
        below = max((n for n in known if n <= n_rows), default=known[0])
        above = min((n for n in known if n >= n_rows), default=known[-1])
        low, high = measured[below], measured[above]
        if below < above:
            return low + (high - low) * (n_rows - below) / (above - below)
        # beyond what was measured; of a pass of n rows, the first is 1 / (1 + share * (n - 1))
        row = self._row_share * low / (1 + self._row_share * (below - 1))
        if below != n_rows and len(known) > 1:
            other = known[1] if n_rows < below else known[-2]
            row = max((low - measured[other]) / (below - other), 0.0)
        return max(low + row * (n_rows - below), low * 0.1)

    def draft_ms(self, n_steps: int) -> float:
        """A draft of `n_steps` steps."""
        if n_steps == 0:
            return 0.0
        if not self._draft:
            return self._step_share * n_steps * self.verify_ms(1)
        nearest = min(self._draft, key=lambda n: abs(n - n_steps))
        return self._unit * self._draft.bounded[nearest] * n_steps / nearest

    def rest_ms(self, n_steps: int) -> float:
        """All the rest of a round that drafts so many tokens: sampling, and what Python does."""
        nearest = min((n for n in self._rest if n > 0), key=lambda n: abs(n - n_steps), default=0)
        drafting = self._rest.bounded.get(nearest, 0.0)
        plain = self._rest.get(0, drafting)
        return self._unit * (plain + (drafting - plain) * n_steps / max(nearest, 1))

    @property
    def trial_ms(self) -> float:
        """What a draft adds to a round that decodes plainly, and looks at a few missed positions first."""
        plain = self.plain_ms
        extra = self._unit * self._trial[0] - plain if self._trial else 1.5 * self.draft_ms(1)
        return max(extra, 0.1 * plain)


class _Medians(Mapping[int, float]):
    """The median of the latest measurements of each kind."""

    def __init__(self) -> None:
        self._n_noted: Counter[int] = Counter()
        self._recent: dict[int, deque[float]] = {}
        self._known: dict[int, float] = {}  # medians of what has not changed since
        self._bounded: dict[int, float] | None = None

    def note(self, kind: int, value: float) -> None:
        """Take a measurement."""
        self._n_noted[kind] += 1
        if self._n_noted[kind] > N_WARM_UP:
            self._recent.setdefault(kind, deque(maxlen=N_RECENT)).append(value)
            self._known.pop(kind, None)
            self._bounded = None

    def take(self, values: Mapping[int, float]) -> None:
        """Take each for measurements of its kind, in the place of those before."""
        for kind, value in values.items():
            self._recent[kind] = deque([value] * N_KNOWN, maxlen=N_RECENT)
            self._known[kind] = value
            self._n_noted[kind] = N_WARM_UP
        self._bounded = None

    def age(self) -> None:
        """All that was measured up to now counts as one measurement of each kind."""
        self._recent = {kind: deque([ms], maxlen=N_RECENT) for kind, ms in self.items()}

    def scale(self, factor: float) -> None:
        """Take all measurements for so many times as much."""
        self._recent = {
            kind: deque([factor * value for value in values], maxlen=N_RECENT) for kind, values in self._recent.items()
        }
        self._known, self._bounded = {}, None

    @property
    def bounded(self) -> Mapping[int, float]:
        """Of each kind the least of its own median and those of greater kinds."""
        if self._bounded is None:
            least, self._bounded = math.inf, {}
            for kind in sorted(self, reverse=True):
                self._bounded[kind] = least = min(least, self[kind])
        return self._bounded

    @property
    def n_most(self) -> int:
        """Measurements of the kind that was measured most often."""
        return max(map(len, self._recent.values()), default=0)

    def __getitem__(self, kind: int) -> float:
        if kind not in self._known:
            self._known[kind] = median(self._recent[kind])
        return self._known[kind]

    def __iter__(self) -> Iterator[int]:
        return iter(self._recent)

    def __len__(self) -> int:
        return len(self._recent)


def is_amount(value: float) -> bool:
    """Whether something can be that much: not less than nothing, and finite."""
    return 0 <= value < math.inf
