"""How much is drafted, and from what: the plan that is expected to yield the most tokens a second for a whole batch.

Knows costs and rates of acceptance, and of lookup how long its matches are; never tokens, texts or the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from pymtp.drafting.costs import NEW_SHARE, PassCosts

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Steps of the heads that are considered: each needs a graph of its own."""
AUTO_DRAFT_MAX = LENGTHS[-1]
"""The longest draft where the length adapts."""
MATCH_RATES = ((3, 0.47), (4, 0.59), (6, 0.69), (9, 0.78), (17, 0.85), (33, 0.96))
"""Lengths of a match, from this one on, and how often the token after it was right in this repository's files
(bench/lookup.py): what is assumed until there are drafts that show it."""
HEAD_RATE = 0.7
"""Likewise for each draft of the heads, if those before it are right: enough to be tried."""
MEMORY, SHARED_MEMORY = 12, 50
"""Drafts that a rate of acceptance is the running mean of: a sequence's own, and what later sequences begin with."""
REVIEW = 16
"""Rounds between two comparisons of all lengths."""
EXPLORED = 0.003
"""The share of time that may be lost to rounds with another length than the one that looks best. A process begins with
the time of REVIEW / 2 plain rounds to lose."""
TRIAL_ROUNDS = 4
"""Rounds of such a trial: the first finds cold caches, the others count."""


class Rates:
    """How often drafts were right, given that those before them in the round were: running means.

    By position for those of the heads, by the length of the match, with the drafts before, for those of lookup.
    """

    def __init__(self, begin: Sequence[float], memory: int) -> None:
        self._rates, self._memory = list(begin), memory

    def begin(self) -> Rates:
        """Those of another sequence, which begin with these."""
        return Rates(self._rates, MEMORY)

    def add(self, kind: int, is_right: bool) -> None:
        """A draft of that kind: its position, or `match_kind`."""
        self._rates[kind] += (is_right - self._rates[kind]) / self._memory

    def heads(self, n: int) -> list[float]:
        """The chances that the first, the first two, ... of the heads' drafts are right."""
        return list(accumulate(self._rates[:n], mul))

    def lookup(self, n_matched: int, n: int) -> list[float]:
        """The chances that the first, the first two, ... drafts after a match of that length are right."""
        rates, kinds = self._rates, MATCH_KINDS
        return list(accumulate((rates[kind] for kind in kinds[n_matched : n_matched + n]), mul))


MATCH_KINDS = [AUTO_DRAFT_MAX + max(sum(n >= least for least, _ in MATCH_RATES) - 1, 0) for n in range(64 + 1 + 64)]
"""The kind of a draft after a match, by its length."""


class Candidate(NamedTuple):
    """What the policy knows of a sequence that can draft."""

    rates: Rates
    room: int
    """The most tokens that it may draft."""
    n_matched: int = 0
    """Tokens of its match; 0: lookup has none."""
    n_found: int = 0
    """Tokens that lookup found after it."""


class Plan(NamedTuple):
    """How many tokens a round drafts."""

    steps: int
    """Of the heads, for all sequences that take their drafts."""
    heads: Sequence[int]
    """Drafts of each sequence from the heads, at most `steps`."""
    lookup: Sequence[int]
    """Likewise from lookup: a sequence has one of the two."""
    tokens: float = 0.0
    """That the round is expected to emit."""

    @property
    def n_drafts(self) -> int:
        """Of all sequences."""
        return sum(self.heads) + sum(self.lookup)


class DraftPolicy:
    """Chooses plans, and learns from their outcomes. One for all sequences of a model."""

    def __init__(self, n_draft_max: int, *, has_heads: bool, in_step: bool = False) -> None:
        self.costs = PassCosts()
        self._in_step = in_step  # whether all sequences must draft equally many tokens, to share a pass
        self.rates = Rates([HEAD_RATE] * AUTO_DRAFT_MAX + [rate for _, rate in MATCH_RATES], SHARED_MEMORY)
        """Of all sequences."""
        self._lengths = [n for n in LENGTHS if n <= n_draft_max] if has_heads else []
        self.steps = 0
        """Of the heads, where nothing but they and plain decoding is considered."""
        self._n_until = 0  # rounds until all lengths are compared
        self._n_before = 0  # sequences in the latest round
        self._n_trial, self._tried = 0, 0  # rounds of a trial that are to come, and its steps
        self._n_rounds = 0
        self._used: dict[tuple[int, int], int] = {}  # by steps and sequences: the latest round
        self._to_lose = 0.0  # ms

    def choose(self, asked: Sequence[Candidate]) -> Plan:
        """The plan for the next round of these sequences."""
        n = len(asked)
        self._n_rounds += 1
        if not self.costs.knows(0, n):
            return _plan(0, n)
        if n != self._n_before:
            self._n_before, self._n_until, self._n_trial = n, 0, 0
        self._n_trial -= 1
        self._n_until -= 1
        alone = [each._replace(n_matched=0) for each in asked] if any(each.n_matched for each in asked) else asked
        if self._n_trial < 0:
            plan = self._plan(asked, alone)
            # where lookup emits two tokens a round, nothing else is worth a trial
            if self._n_until >= 0 or not self._lengths or (any(plan.lookup) and plan.tokens >= 2 * n):
                self._used[plan.steps, n] = self._n_rounds
                return plan
            self._review(alone)
            if self._n_trial < 0:
                return self._plan(asked, alone)
        self._used[self._tried, n] = self._n_rounds
        return self._best(self._tried, alone, verifies_all=True)[0]

    def _plan(self, asked: Sequence[Candidate], alone: Sequence[Candidate]) -> Plan:
        """The better of two: with the heads, as it was decided, or by lookup alone. `alone`: without their matches."""
        if asked is alone:
            return self._best(self.steps, asked)[0] if self.steps else _plan(0, len(asked))
        plan, speed = self._best(self.steps, asked)
        if self.steps:
            other, other_speed = self._best(0, asked)
            plan = other if other_speed > speed else plan
        return plan

    def _review(self, asked: Sequence[Candidate]) -> None:
        """Compare all lengths of the heads' drafts, and begin a trial of one if it can be afforded."""
        n, lengths = len(asked), (0, *self._lengths)
        self._n_until = REVIEW
        speeds = {steps: self._best(steps, asked)[1] for steps in lengths}
        self.steps = max(lengths, key=lambda steps: speeds[steps])
        now = speeds[self.steps]
        n_old = {steps: self._n_rounds - self._used.get((steps, n), -REVIEW) for steps in lengths}
        lost = {}  # ms, by a trial
        for steps in lengths:
            plan, speed = self._best(steps, asked, verifies_all=True)
            lost[steps] = TRIAL_ROUNDS * max(plan.tokens / speed - plan.tokens / now, NEW_SHARE / now)
        steps = max(lengths, key=lambda steps: n_old[steps] / lost[steps])
        if lost[steps] <= self._to_lose and n_old[steps] > REVIEW:
            self._to_lose -= lost[steps]
            self._n_trial, self._n_until, self._tried = TRIAL_ROUNDS - 1, 0, steps

    def _best(self, steps: int, asked: Sequence[Candidate], *, verifies_all: bool = False) -> tuple[Plan, float]:
        """With that many steps of the heads: the drafts worth verifying, and tokens a millisecond."""
        n = len(asked)
        by_sequence: list[list[float]] = []
        from_heads: list[bool] = []
        for each in asked:
            heads = each.rates.heads(min(steps, each.room))
            found = each.rates.lookup(each.n_matched, min(each.n_found, each.room)) if each.n_matched else []
            from_heads.append(sum(heads) >= sum(found))
            by_sequence.append(heads if from_heads[-1] else found)
        chances = [(chance, i) for i, chances in enumerate(by_sequence) for chance in chances]
        if n > 1:
            chances.sort(reverse=True)
        stride = 1
        if self._in_step and n > 1:
            stride, n_least = n, min(map(len, by_sequence))
            chances = [(by_sequence[i][k], i) for k in range(n_least) for i in range(n)]
        ms = self.costs.table(steps, n, len(chances))
        tokens, best, n_best, most = float(n), n / ms[0], 0, float(n)
        for k, (chance, _) in enumerate(chances, 1):
            tokens += chance
            if k % stride == 0 and (verifies_all or tokens > best * ms[k]):
                best, n_best, most = tokens / ms[k], k, tokens
        n_drafts = [[0] * n, [0] * n]
        for _, i in chances[:n_best]:
            n_drafts[from_heads[i]][i] += 1
        return Plan(steps, n_drafts[True], n_drafts[False], most), best

    def n_more(self, plan: Plan, rates: Rates, n_heads: int, n_matched: int, n_found: int) -> int:
        """How many drafts of a match that continues the heads' drafts are worth their rows."""
        n = len(plan.heads)
        if self._in_step and n > 1:
            return 0
        ms = self.costs.table(plan.steps, n, plan.n_drafts + n_found)[plan.n_drafts :]
        before = rates.heads(n_heads)[-1]
        tokens, best, n_best = plan.tokens, plan.tokens / ms[0], 0
        for k, chance in enumerate(rates.lookup(n_matched, n_found), 1):
            tokens += before * chance
            if tokens > best * ms[k]:
                best, n_best = tokens / ms[k], k
        return n_best

    def observe_pass(self, steps: int, rows: int, n_sequences: int, ms: float) -> None:
        """What a pass cost."""
        self.costs.observe(steps, rows, n_sequences, ms)
        share = EXPLORED if self._to_lose else REVIEW / 2
        self._to_lose = min(self._to_lose + share * ms, 2 * REVIEW * ms)


def _plan(steps: int, n: int) -> Plan:
    """Without drafts yet."""
    return Plan(steps, [0] * n, [0] * n)
