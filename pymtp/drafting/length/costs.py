"""What the parts of a round cost: verifying N rows, drafting N steps, and everything else.

Owns the arithmetic; reads no clock. Times are in milliseconds, but callers only rely on their ratios.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

N_RECENT = 9
"""Measurements that a median is taken over: enough for a machine that does other work too."""
N_WARM_UP = 3
"""Measurements dropped at the start, for each number of rows or steps: devices are slow at what they do first."""
N_KNOWN = 4
"""Measurements of drafts that are enough to judge drafting by."""
N_SETTLING = 2
"""Rounds that do not count after the number of steps has changed: what they need is not in the caches yet."""
N_REFRESH = 32
"""Rounds that a table of costs is used for, after that many rounds; before that, each round has a new one."""


class CostTable(NamedTuple):
    """Milliseconds of a round of one sequence."""

    plain: float
    """A round without drafts, among others like it."""
    verify: list[float]
    """Verifying 0 to n_max drafts in a round that drafts, (n_max + 1,)."""
    draft: list[float]
    """Drafting 0 to n_max tokens, and everything else in the round but verifying, (n_max + 1,)."""


class RoundCosts:
    """Medians of the latest measurements, and estimates for what has not been measured yet.

    Plain rounds are kept apart from rounds that draft, and a round counts only if it follows others with as many steps:
    a single plain round among drafting ones takes up to three times as long as plain rounds in a row, on a fast device
    or where the weights do not all fit into a cache. Rare shapes are timed with cold caches, so costs are made
    monotone: fewer rows or steps never cost more than more of them. The speed of a machine varies, so everything else
    is kept in units of the plain passes measured around the same time.

    Until there are measurements, each further row is estimated at `row_share` of the first one, and a draft step at
    `step_share`: low estimates, so that drafting is tried.

    With `is_measured` False there are no measurements but those given to `load_measurements`, and they count as enough.
    """

    def __init__(self, *, row_share: float = 0.15, step_share: float = 0.1, is_measured: bool = True) -> None:
        self.is_measured = is_measured
        self._row_share, self._step_share = row_share, step_share
        self._plain = _Medians()  # ms of the trunk's passes in plain rounds, by rows: one of each sequence
        # in units of the plain pass with the fewest rows; in ms while that is not known
        self._verify = _Medians()  # the trunk's passes in rounds that draft, by rows
        self._draft = _Medians()  # by steps
        self._rest = _Medians()  # by steps
        self._probe = _Medians()  # whole rounds, under the key 0
        self._n_sequences = 1
        self._n_rounds = 0
        self._n_steps, self._n_alike = 0, 0  # steps of the latest round, and how many rounds in a row had as many
        self._table = CostTable(0.0, [], [])
        self._table_until = 0  # rounds

    def observe(
        self, n_rows: int, n_steps: int, *, verify_ms: float, draft_ms: float, rest_ms: float, n_sequences: int = 1
    ) -> None:
        """Add a pass of `n_rows` rows for `n_sequences` sequences, after a draft of `n_steps` steps (0: none)."""
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
            self._add_plain(n_rows, verify_ms)
        else:
            self._verify.add(n_rows, verify_ms / self._unit)
            self._draft.add(n_steps, draft_ms / n_sequences / self._unit)
        self._rest.add(n_steps, rest_ms / n_sequences / self._unit)

    def observe_probe(self, n_tokens: int, probe_ms: float) -> None:
        """Add a probe of one sequence: a round that would have been plain, but drafted one token.

        It counts only if it emitted one token: then its draft was not kept.
        """
        self._n_alike = 0
        if n_tokens == 1:
            self._probe.add(0, probe_ms / self._unit)

    def load_measurements(self, verify_ms: Sequence[float], draft_ms: Sequence[float]) -> None:
        """Replace measurements: `verify_ms` of passes of 1, 2, ... rows, `draft_ms` of drafts of 1, 2, ... steps."""
        one, *more = verify_ms
        self._plain.load({1: one})
        self._verify.load({n: ms / self._unit for n, ms in enumerate(more, 2)})
        self._draft.load({n: ms / self._unit for n, ms in enumerate(draft_ms, 1)})
        self._table_until = 0

    def as_dict(self) -> dict[str, dict[int, float]]:
        """All medians, for a file: plain passes in milliseconds, everything else in units of these."""
        return {name: dict(medians) for name, medians in self._measured().items()}

    def load(self, saved: Mapping[str, Mapping[str, float]]) -> None:
        """Restore what `as_dict` returned; new measurements soon outvote it.

        Raises AttributeError, KeyError, TypeError or ValueError if `as_dict` cannot have returned it.
        """
        for name, medians in self._measured().items():
            values = {int(n): float(ms) for n, ms in saved[name].items()}
            if not all(map(is_amount, [*values, *values.values()])):
                raise ValueError
            medians.load(values)
        if 0 in self._plain.values():
            raise ValueError

    def _measured(self) -> dict[str, _Medians]:
        return {
            "plain_ms": self._plain,
            "verify": self._verify,
            "draft": self._draft,
            "rest": self._rest,
            "trial": self._probe,  # a name that files on disk have
        }

    def forget_drafts(self) -> None:
        """Drop what was measured of drafts: from now on they cost something else."""
        self._draft = _Medians()
        self._table_until = 0

    def table(self, n_max: int) -> CostTable:
        """The costs of rounds with 0 to `n_max` drafts. Read in every round, so it may be a few rounds old."""
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
        """Whether the latest pass was that of several sequences."""
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
        """Verifying `n_rows` rows of one sequence, if all sequences of the latest pass have as many."""
        return self._pass_ms(n_rows * self._n_sequences) / self._n_sequences

    @property
    def _unit(self) -> float:
        known = self._plain[min(self._plain)] if self._plain else 0.0
        return known or 1.0  # a coarse clock can measure 0

    def _add_plain(self, n_rows: int, ms: float) -> None:
        n_known, unit = len(self._plain), self._unit
        self._plain.add(n_rows, ms)
        if len(self._plain) > n_known:  # the unit may have changed
            for medians in (self._verify, self._draft, self._rest, self._probe):
                medians.scale(unit / self._unit)

    def _pass_ms(self, n_rows: int) -> float:
        measured = {**self._plain, **{n: self._unit * passes for n, passes in self._verify.monotone.items()}}
        known = sorted(measured)
        if not known:
            return 1 + self._row_share * (n_rows - 1)
        below = max((n for n in known if n <= n_rows), default=known[0])
        above = min((n for n in known if n >= n_rows), default=known[-1])
        low, high = measured[below], measured[above]
        if below < above:
            return low + (high - low) * (n_rows - below) / (above - below)
        # outside of what was measured; the first of n rows makes up 1 / (1 + share * (n - 1)) of a pass
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
        return self._unit * self._draft.monotone[nearest] * n_steps / nearest

    def rest_ms(self, n_steps: int) -> float:
        """Everything else in a round that drafts `n_steps` tokens: sampling, and the work in Python."""
        nearest = min((n for n in self._rest if n > 0), key=lambda n: abs(n - n_steps), default=0)
        drafting = self._rest.monotone.get(nearest, 0.0)
        plain = self._rest.get(0, drafting)
        return self._unit * (plain + (drafting - plain) * n_steps / max(nearest, 1))

    @property
    def probe_ms(self) -> float:
        """How much longer a probe takes than a plain round: the heads catch up on a few positions and draft a token."""
        plain = self.plain_ms
        extra = self._unit * self._probe[0] - plain if self._probe else 1.5 * self.draft_ms(1)
        return max(extra, 0.1 * plain)


class _Medians(Mapping[int, float]):
    """The median of the latest measurements for each key, a number of rows or steps."""

    def __init__(self) -> None:
        self._n_added: Counter[int] = Counter()
        self._recent: dict[int, deque[float]] = {}
        self._known: dict[int, float] = {}  # medians that are up to date
        self._monotone: dict[int, float] | None = None

    def add(self, key: int, value: float) -> None:
        """Add a measurement."""
        self._n_added[key] += 1
        if self._n_added[key] > N_WARM_UP:
            self._recent.setdefault(key, deque(maxlen=N_RECENT)).append(value)
            self._known.pop(key, None)
            self._monotone = None

    def load(self, values: Mapping[int, float]) -> None:
        """Replace the measurements of each key by N_KNOWN times this value."""
        for key, value in values.items():
            self._recent[key] = deque([value] * N_KNOWN, maxlen=N_RECENT)
            self._known[key] = value
            self._n_added[key] = N_WARM_UP
        self._monotone = None

    def age(self) -> None:
        """Let all measurements so far count as one for each key."""
        self._recent = {key: deque([ms], maxlen=N_RECENT) for key, ms in self.items()}

    def scale(self, factor: float) -> None:
        """Multiply all measurements by `factor`."""
        self._recent = {
            key: deque([factor * value for value in values], maxlen=N_RECENT) for key, values in self._recent.items()
        }
        self._known, self._monotone = {}, None

    @property
    def monotone(self) -> Mapping[int, float]:
        """For each key, the smallest of its own median and those of larger keys."""
        if self._monotone is None:
            least, self._monotone = math.inf, {}
            for key in sorted(self, reverse=True):
                self._monotone[key] = least = min(least, self[key])
        return self._monotone

    @property
    def n_most(self) -> int:
        """Recent measurements of the key that has most of them."""
        return max(map(len, self._recent.values()), default=0)

    def __getitem__(self, key: int) -> float:
        if key not in self._known:
            self._known[key] = median(self._recent[key])
        return self._known[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._recent)

    def __len__(self) -> int:
        return len(self._recent)


def is_amount(value: float) -> bool:
    """Whether a value is finite and not negative."""
    return 0 <= value < math.inf
