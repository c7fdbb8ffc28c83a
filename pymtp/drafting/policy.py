"""How much is drafted, and from what: the plan that is expected to yield the most tokens a second for a whole batch.

Owns what passes cost on this machine, compared with each other, and how often drafts were right. Times are given to it,
in milliseconds. Must not know tokens or texts; of lookup it knows how long matches are.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter, itemgetter, mul
from statistics import median, mode
from typing import NamedTuple

LENGTHS = (1, 3, 7, 15)
"""Steps of the heads that are considered: with the token before them they fill the 2, 4, 8 or 16 rows of a graph."""
AUTO_DRAFT_MAX = LENGTHS[-1]
"""The longest draft where the length adapts."""
MATCH_RATES = ((3, 0.47), (4, 0.59), (6, 0.69), (9, 0.78), (17, 0.85), (33, 0.96))
"""Lengths of a match, from this one on, and how often the token after it was right in this repository's files
(bench/lookup.py): what is assumed until there are drafts that show it."""
HEAD_RATE = 0.7
"""How often a draft of the heads is assumed to be right, if those before it are: enough to be tried."""
MEMORY = 12
"""Drafts that a rate of acceptance is the running mean of; four times as many for that which later texts begin with."""
REVIEW = 8
"""Rounds between two comparisons of all lengths, at first: twice as many after each that changes nothing, up to eight
times as many. A comparison takes a fifth of a millisecond."""
CURIOSITY = 0.0002
"""How much faster a length counts for each round in which it was not used, so that it is tried again some time: one
that is slower by a tenth after 500 rounds."""
N_RECENT = 7
"""Measurements of a kind of pass that its median is taken over: a burst of load on the machine has to last for four of
them to move it."""
FORGET = 128 * REVIEW
"""Passes after which the time of a kind that has not occurred since is forgotten: it may be from a busy moment."""
NEW_SHARE = 0.1
"""What a step of the heads is assumed to cost of a pass, and a further row of what one costs in it, until some were
measured: little, so that drafting is tried."""

Kind = tuple[int, int, int]
"""Steps of the heads before a pass (0: none), its rows, and its sequences."""
Shape = Callable[[int, int, int], Kind]
"""The kind of a pass by these three: those that are computed alike, with rows that nobody reads, are one kind."""


def exact(steps: int, rows: int, n_sequences: int) -> Kind:
    """Each is a kind of its own."""
    return steps, rows, n_sequences


class Rates:
    """How often drafts were right, given that those before them in the round were: running means.

    By position for those of the heads, by the length of the match, with the drafts before, for those of lookup.
    """

    def __init__(self, begin: Sequence[float], memory: int, n_seen: Sequence[int] | None = None) -> None:
        self.learned, self._memory = list(begin), memory
        """What others may begin with."""
        self._n_seen = list(n_seen or [MEMORY // 4] * len(begin))  # what is assumed counts as three drafts

    def begin(self) -> Rates:
        """The rates of another sequence, which begin with these."""
        return Rates(self.learned, MEMORY, self._n_seen)

    def add(self, kinds: Sequence[int], right: Sequence[bool]) -> None:
        """Drafts of these kinds, their positions or some of MATCH_KINDS, as far as it is known which were right."""
        for kind, is_right in zip(kinds, right, strict=False):
            self._n_seen[kind] = min(self._n_seen[kind] + 1, self._memory)
            self.learned[kind] += (is_right - self.learned[kind]) / self._n_seen[kind]

    def chances(self, kinds: Sequence[int]) -> list[float]:
        """The chances that the first, the first two, ... of drafts of these kinds are right."""
        return list(accumulate(map(self.learned.__getitem__, kinds), mul))


MATCH_KINDS = [AUTO_DRAFT_MAX + max(sum(n >= least for least, _ in MATCH_RATES) - 1, 0) for n in range(64 + 1 + 64)]
"""The kind of a draft after a match, by its length."""


class PassCosts:
    """The times of passes by their kind, as they were when `refresh` was last called.

    A machine that others use changes its pace. So a pass is compared with those of the most frequent kind around it.
    """

    def __init__(self, shape: Shape = exact) -> None:
        self._shape = shape
        self._pace, self._is_pace_old = 1.0, False
        self.recent: dict[Kind, deque[float]] = {}
        self.has_new = False  # whether a kind was measured for the first time since this was set to false
        self.n_passes = 0
        self.last: dict[Kind, int] = {}  # which pass was the last of its kind
        self._latest: deque[tuple[Kind, float]] = deque(maxlen=4 * N_RECENT)  # passes, in milliseconds
        self.frequent: Kind | None = None  # the kind of most of these
        self._before = (-1, -1)  # steps and sequences of the latest pass
        self.known: dict[Kind, float] = {}  # medians
        self.n_rows_max = 0  # of a pass that may be tried: see refresh
        self._fit: list[float] = []  # see _fit
        self._tables: dict[tuple[int, int], list[float]] = {}

    @property
    def pace(self) -> float:
        """What a pass takes now, as a multiple of its cost."""
        if self._is_pace_old and self.frequent:  # found when asked for: most rounds do not ask
            measured = median(ms for kind, ms in self._latest if kind == self.frequent)
            self._pace, self._is_pace_old = measured / self.known[self.frequent], False
        return self._pace

    def go_on(self, measured: Mapping[Kind, tuple[float, int]], frequent: Kind) -> None:
        """Take over milliseconds of kinds, each with the passes since it was the kind of one."""
        self.recent = {kind: deque([ms], N_RECENT) for kind, (ms, _) in measured.items()}
        self.last = {kind: -age for kind, (_, age) in measured.items()} | {frequent: 0}
        self.frequent = frequent
        self.refresh()

    def observe(self, steps: int, rows: int, n_sequences: int, ms: float) -> None:
        """Add a pass. The first of its kind in a row does not count: what it needs is not in the caches yet."""
        kind = self._shape(steps, rows, n_sequences)
        before, self._before = self._before, kind[::2]
        if before != self._before:
            return
        if kind not in self.recent and self.known and ms > 2 * self._at(kind) * self.pace:
            self.recent[kind] = deque(maxlen=N_RECENT)  # perhaps a busy moment: the next one counts
            return
        if not self._latest and kind in self.known:  # of an earlier process: how fast the machine is shows now
            self.frequent = kind
        self._latest.append((kind, ms))
        self.last[kind] = self.n_passes = self.n_passes + 1
        if kind == self.frequent:  # its cost stays: what has changed is the pace
            self._is_pace_old = True
            return
        recent = self.recent.setdefault(kind, deque(maxlen=N_RECENT))
        recent.append(ms / self.pace)
        if len(recent) == 1:
            self.refresh()
            self.has_new = True

    def refresh(self) -> None:
        """Take what was observed into account."""
        _ = self.pace  # by what was frequent until now
        for kind in [kind for kind, last in self.last.items() if self.n_passes - last > FORGET]:
            del self.last[kind], self.recent[kind]
        self.known = {kind: median(recent) for kind, recent in self.recent.items() if recent}
        if self._latest:
            self.frequent = mode(kind for kind, _ in self._latest)
        self._fit = _fit(self.known)
        # what more rows cost is a guess
        self.n_rows_max = max(AUTO_DRAFT_MAX + 1, 2 * max(rows for _, rows, _ in self.known))
        self._tables.clear()

    @property
    def plain_ms(self) -> float | None:
        """What a plain pass of one sequence takes now; None before such a pass was measured."""
        known = self.known.get((0, 1, 1))
        return known and known * self.pace

    def table(self, steps: int, n_sequences: int, n_max: int) -> list[float]:
        """Passes that verify 0 to at least `n_max` drafts of all sequences together, once some were observed.

        Others are as the fit says, and no quicker than the quickest that is known.
        """
        found = self._tables.get((steps, n_sequences))
        if found is None or len(found) <= n_max:
            kinds = [self._shape(steps, n_sequences + k, n_sequences) for k in range(n_max + 1)]
            least = min(self.known.values())
            line = [self.known.get(kind) or max(self._at(kind), least) for kind in kinds]
            found = self._tables[steps, n_sequences] = list(accumulate(reversed(line), min))[::-1]
        return found

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
        solved = [value / rows[i][i] for value in rows[i]]
        rows = [[a - row[i] * b for a, b in zip(row, solved, strict=True)] for row in rows]
        rows[i] = solved
    return [max(row[-1], 0.0) for row in rows]


def _terms(steps: int, rows: int, n_sequences: int) -> Sequence[float]:
    return (1, rows, steps, steps * n_sequences)


class Candidate(NamedTuple):
    """What the policy knows of a sequence that can draft."""

    rates: Rates
    room: int
    """The most tokens that it may draft."""
    n_matched: int = 0
    """Tokens of its match; 0: lookup has none."""
    n_found: int = 0
    """Tokens that lookup found after it."""


class DraftPlan(NamedTuple):
    """How many tokens a round drafts."""

    steps: int
    """Steps of the heads, for all sequences that take their drafts."""
    heads: Sequence[int]
    """Drafts of each sequence from the heads, at most `steps`."""
    lookup: Sequence[int]
    """Drafts of each sequence from lookup: it has one of the two."""
    tokens: float = 0.0
    """Tokens that the round is expected to emit; 0 where costs were not looked at."""
    speed: float = 0.0
    """Tokens a millisecond, with that."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted."""
        return not self.steps and not any(self.lookup)


class _Choice:
    """What was decided for a number of sequences."""

    def __init__(self) -> None:
        self.steps = 0  # of the heads
        self.takes_all = True  # whether rounds take all drafts of that many steps until lengths are compared again
        self.n_until = 0  # rounds until all lengths are compared
        self.n_wait = REVIEW // 2  # rounds between two comparisons
        self.used: dict[int, int] = {}  # by steps: the latest round


class DraftPolicy:
    """Chooses plans, and learns from their outcomes. One for all sequences of a model."""

    def __init__(self, n_draft_max: int, *, has_heads: bool, in_step: bool = False, shape: Shape = exact) -> None:
        self._shape = shape = lru_cache(1024)(shape)
        self.costs = PassCosts(shape)
        self._in_step = in_step  # whether a pass costs as if all sequences had as many drafts as the one with the most
        self.rates = Rates([HEAD_RATE] * AUTO_DRAFT_MAX + [rate for _, rate in MATCH_RATES], 4 * MEMORY)
        """Rates of all sequences together."""
        self.lengths = [0, *(n for n in LENGTHS if n <= n_draft_max and has_heads)]
        self.choices: defaultdict[int, _Choice] = defaultdict(_Choice)  # by sequences, as they are computed
        self.n_rounds = 0
        self.is_plain_checked = False  # its first passes can be from a busy moment: a few more come early, once

    def heads_in_use(self, n: int) -> int:
        """How many heads the prompts need to go through in a pass of `n` sequences: less than all if it is sure."""
        choice = self.choices[self._shape(0, n, n)[2]]
        return choice.steps if choice.n_wait >= 4 * REVIEW else AUTO_DRAFT_MAX

    def choose(self, asked: Sequence[Candidate], n: int) -> DraftPlan:
        """The plan for the next round of `n` sequences, of which these can draft."""
        self.n_rounds += 1
        choice = self.choices[self._shape(0, n, n)[2]]
        none = [0] * len(asked)
        is_begun = self.n_rounds > 3 or n > 1 or self.costs.plain_ms  # two of these may not count: see observe
        if not self.costs.n_rows_max or not is_begun:
            return DraftPlan(0, none, none)
        choice.n_until = -1 if self.costs.has_new else choice.n_until - 1
        self.costs.has_new = False
        if choice.takes_all and choice.n_until >= 0 and not any(each.n_found for each in asked):
            choice.used[choice.steps] = self.n_rounds
            # without a look at costs, which takes longer than all else here; one text can change in between
            return DraftPlan(choice.steps, [min(choice.steps, each.room) for each in asked], none)
        if self.n_rounds % (8 * REVIEW) == 0:  # where lookup drafts, nothing else may
            self.costs.refresh()
        plan = self._with_steps(choice.steps, asked, n)
        # where lookup emits two tokens a round, no other length has to be looked at
        if choice.n_until < 0 and not (any(plan.lookup) and plan.tokens >= 2 * n):
            self._review(choice, [each._replace(n_found=0) for each in asked], n)
            plan = self._with_steps(choice.steps, asked, n)
        choice.used[plan.steps] = self.n_rounds
        return plan

    def _with_steps(self, steps: int, asked: Sequence[Candidate], n: int) -> DraftPlan:
        """The better of two: with these steps of the heads, or by lookup alone."""
        lengths = (steps, 0) if steps and any(each.n_found for each in asked) else (steps,)
        return max((self._best(each, asked, n) for each in lengths), key=attrgetter("speed"))

    def _review(self, choice: _Choice, asked: Sequence[Candidate], n: int) -> None:
        """Compare all lengths of the heads' drafts."""
        self.costs.refresh()
        plans = {steps: self._best(steps, asked, n) for steps in self.lengths}
        unused = {steps: self.n_rounds - choice.used.get(steps, 0) for steps in self.lengths}
        steps = max(self.lengths, key=lambda steps: plans[steps].speed * (1 + CURIOSITY * unused[steps]))
        choice.n_until = choice.n_wait = min(2 * choice.n_wait, 8 * REVIEW) if choice.steps == steps else REVIEW
        if steps and not self.is_plain_checked and self.n_rounds > 2 * REVIEW:
            steps, choice.n_until, self.is_plain_checked = 0, REVIEW // 2, True
        choice.steps = steps
        n_drafts = sum(min(steps, each.room) for each in asked)
        choice.takes_all = not steps or (n > 1 and sum(plans[steps].heads) == n_drafts)

    def _best(self, steps: int, asked: Sequence[Candidate], n: int) -> DraftPlan:
        """The drafts that are worth verifying after that many steps of the heads."""
        drafts: list[tuple[int, float, int]] = []  # the place in a sequence's drafts, the chance, and the sequence
        from_heads: list[bool] = []
        for i, each in enumerate(asked):
            heads = each.rates.chances(range(min(steps, each.room)))
            found = each.rates.chances(MATCH_KINDS[each.n_matched : each.n_matched + min(each.n_found, each.room)])
            from_heads.append(sum(heads) >= sum(found))
            drafts += ((k, chance, i) for k, chance in enumerate(heads if from_heads[i] else found))
        if self._in_step:  # a draft of each, then another one: what has fewer costs as many rows
            drafts.sort(key=itemgetter(0))
            ends = [*accumulate(Counter(k for k, _, _ in drafts).values(), initial=0)]
            n_rows = [n * k for k in range(len(ends))]
        else:  # the most likely ones, as many as there are sequences: with few numbers of rows, all are soon measured
            drafts.sort(key=itemgetter(1, 2), reverse=True)
            n_rows = ends = [*range(0, len(drafts), len(asked)), len(drafts)]
        n_rows = [k for k in n_rows if k == 0 or n + k <= self.costs.n_rows_max]
        ms = self.costs.table(steps, n, n_rows[-1])
        tokens = [*accumulate((chance for _, chance, _ in drafts), initial=float(n))]
        speeds = [tokens[end] / ms[rows] for end, rows in zip(ends, n_rows, strict=False)]
        first = 1 if steps and len(n_rows) > 1 else 0  # heads that run for nothing show nothing
        best = speeds.index(max(speeds[first:]), first)
        n_drafts = [[0] * len(asked), [0] * len(asked)]
        for _, _, i in drafts[: ends[best]]:
            n_drafts[from_heads[i]][i] += 1
        return DraftPlan(steps, n_drafts[True], n_drafts[False], tokens[ends[best]], speeds[best])
