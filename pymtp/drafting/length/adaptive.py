"""How many tokens a round drafts and how many of them it verifies, adapted to the text and the machine.

Owns the decisions for one sequence; `experience` holds the statistics behind them. Knows probabilities and costs, and
of tokens only whether they repeat earlier ones; never the clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import truediv
from typing import Literal

from pymtp.drafting.length.costs import N_SETTLING, N_WARM_UP, CostTable
from pymtp.drafting.length.experience import PROBE_GAP_MIN, Experience, Outcomes, ProbePlan, SequenceStats
from pymtp.drafting.length.policy import LengthRow, confident
from pymtp.drafting.length.repetition import Repetition


class AdaptiveLength:
    """The length that yields the most tokens per second: 0 if drafting does not pay.

    After each round that drafted, it estimates what every length would have yielded there, from the drafts'
    confidences, from how often drafts of such confidence were right, and from the costs. The next length is the one
    that did best in recent rounds. A sequence starts from the statistics of earlier ones. Drafts are right far more
    often where the sequence repeats itself, so such passages have statistics of their own.

    While drafting is off, a probe drafts one token now and then, and a few rounds that draft follow it if drafting
    looks worthwhile. While drafting is on, a few plain rounds, and a few with the longest drafts, are measured now and
    then.
    """

    uses_confidence = True

    def __init__(
        self, n_max: int, experience: Experience, *, prompt: Sequence[int] = (), n_min: int = 0, p_min: float = 0.0
    ) -> None:
        self._n_max, self._n_min, self._p_min = n_max, n_min, p_min
        self._experience, self._costs = experience, experience.costs
        self._repetition = Repetition(prompt)
        self._pending: list[tuple[Sequence[int], Sequence[float], Sequence[bool]]] = []  # rounds not learned from yet
        self._by_kind = {repeats: SequenceStats(kind, n_max) for repeats, kind in experience.kinds.items()}
        self._stats = self._by_kind[False]
        self._n = self._n_at_first = min(N_AT_FIRST, n_max)
        self._prices: list[float] = []  # opportunity cost of each draft's row, in tokens
        self._start_from_means(MARGIN)
        # rounds to come that measure the costs of plain rounds and of rounds that draft, and the length of the latter
        self._n_plain: int | None = None  # not known before the first round
        self._n_measuring, self._n_measured = 0, self._n_at_first
        self._is_measuring = False  # whether this round measures drafting
        self._probing: ProbePlan | None = None  # the plan of the probe whose outcome is not learned yet
        self._measuring_gap = math.inf  # rounds

    @property
    def keeps_up(self) -> bool:
        """See DraftLength."""
        return self._n > 0 or self._must_measure

    def steps(self) -> int:
        """See DraftLength."""
        return {
            "plain": 0,
            "measure": self._n_measured,
            "draft": self._n,
            "remeasure": 0,
            "off": 0,
            "probe": min(1, self._n_max),
        }[self._next_round()]

    def begin_round(self) -> None:
        """See DraftLength."""
        purpose = self._next_round()
        if self._n_plain is None:
            self._n_plain = self._n_plain_at_first
            self._update_prices()
            for kind in self._experience.kinds.values():
                kind.probe_plan.n_until -= PROBE_GAP_MIN  # a new sequence counts as that many rounds
        if purpose == "plain":
            self._n_plain -= 1
            return
        self._is_measuring = purpose == "measure"
        if purpose == "measure":
            self._n_measuring = max(self._n_measuring - 1, 0)
        elif purpose in ("draft", "remeasure"):
            self._experience.n_since_measured += 1
            if purpose == "remeasure":
                self._n_plain, self._n_measuring, self._n_measured = N_PLAIN_AGAIN - 1, N_MEASURING, self._n_max
                self._experience.n_since_measured = 0
        else:
            plan = self._stats.probe_plan
            plan.n_until -= 1
            if purpose == "probe":
                plan.n_until = PROBE_GAP_MIN  # until its outcome is learned
                self._experience.n_probes += 1
                self._probing = plan

    def _next_round(self) -> Literal["plain", "measure", "draft", "remeasure", "off", "probe"]:
        """What the next round is for."""
        n_plain = self._n_plain_at_first if self._n_plain is None else self._n_plain
        if n_plain > 0:
            return "plain"
        if self._must_measure:
            return "measure"
        if self._n > 0:
            is_due = self._experience.n_since_measured + 1 >= self._measuring_gap and self._can_measure
            return "remeasure" if is_due else "draft"
        n_until = self._stats.probe_plan.n_until - (PROBE_GAP_MIN if self._n_plain is None else 0)
        return "probe" if n_until <= 1 else "off"

    @property
    def _n_plain_at_first(self) -> int:
        return 0 if self._costs.knows_plain else N_PLAIN_AT_FIRST

    def n_verified(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """See DraftLength."""
        n_min = 0 if drawn else self._n_min
        n = confident(confidences, n_min, self._p_min)
        if not self._is_measuring:
            worth, _ = self._worth_by_length(self._calibrated(confidences[:n]))
            # confidences after a drawn draft depend on which token it became: they must not decide its row
            n = next((i - 1 for i in range(1, n + 1) if worth[i] < i), n) if drawn else worth[n]
        return n if n >= n_min else 0

    def observe(self, tokens: Sequence[int], confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """See DraftLength."""
        self._pending.append((tokens, confidences, are_right))
        if len(self._pending) == LEARN_EVERY or (confidences and self._n == 0):
            self._learn()

    def _learn(self) -> None:
        drafted = [(confidences, are_right) for _, confidences, are_right in self._pending if confidences]
        if drafted:
            self._learn_from_drafts(drafted)
        self._repetition.observe([token for tokens, _, _ in self._pending for token in tokens])
        self._pending.clear()
        before, self._stats = self._stats, self._by_kind[self._repetition.share > REPETITIVE_SHARE]
        if self._stats is not before:
            self._start_from_means(1.0 if self._n > 0 else MARGIN)
        if drafted or self._stats is not before:
            self._update_prices()

    def _start_from_means(self, margin: float) -> None:
        """Take the best length for the present kind of text, if there are statistics of it."""
        if self._stats.means.weight:
            self._n = self._stats.means.best(margin)

    def _learn_from_drafts(self, drafted: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> None:
        """Learn from rounds that drafted: the confidences of their drafts, and which were right."""
        costs = self._costs.table(self._n_max)
        outcomes = [self._outcomes(costs, confidences, are_right) for confidences, are_right in drafted]
        if self._costs.knows_drafts:
            for each in outcomes:
                self._stats.add(each)
            self._update_length(costs, outcomes[-1])

    def _outcomes(self, costs: CostTable, confidences: Sequence[float], are_right: Sequence[bool]) -> Outcomes:
        """Estimate what each length would have yielded in this round, and update the calibration."""
        probs = self._calibrated(confidences)
        # drafts beyond the last one would have been as likely as the last
        n_verified, n_kept = self._worth_by_length([*probs, *[probs[-1]] * (self._n_max - len(probs))])
        self._stats.observe(confidences, probs, are_right)
        ms = [costs.verify[rows] + draft for rows, draft in zip(n_verified, costs.draft, strict=True)]
        ms[0] = costs.plain
        return Outcomes(n_verified, [1 + n for n in n_kept], ms)

    def _update_length(self, costs: CostTable, latest: Outcomes) -> None:
        """Take the length that did best in recent rounds, and plan probes and measurements."""
        means = self._stats.means
        was_on = self._n > 0
        self._n = means.best(1.0 if was_on else MARGIN)
        if self._n > 0:
            best, longest, none = (means.rate(n) for n in (self._n, self._n_max, 0))
            lost = N_PLAIN_AGAIN * (1 - none / best) + N_MEASURING * (1 - longest / best)  # rounds
            self._measuring_gap = max(lost / EXPLORATION_SHARE, PROBE_GAP_MIN)
        elif was_on or self._probing:
            affordable = self._costs.probe_ms / (EXPLORATION_SHARE * costs.plain)
            gain = costs.plain * max(map(truediv, latest.n_tokens, latest.ms))
            if self._probing and (gain > MARGIN or (self._can_measure and _is_due(self._experience.n_probes))):
                self._n_measuring, self._n_measured = N_MEASURING, self._n_at_first
                affordable *= MEASURING_COST
            (self._probing or self._stats.probe_plan).plan(affordable, paid=was_on)
        self._probing = None

    def table(self) -> list[LengthRow]:
        """The table that lengths are decided from."""
        means = self._stats.means
        return [
            LengthRow(
                n,
                self._costs.draft_ms(n),
                self._costs.verify_ms(1 + n) if n else self._costs.plain_ms - self._costs.rest_ms(0),
                means.verified[n] / (means.weight or 1.0),
                means.tokens[n] / (means.weight or 1.0),
                1000 * means.rate(n),
            )
            for n in range(self._n_max + 1)
        ]

    @property
    def _must_measure(self) -> bool:
        return self._n_measuring > 0 or not self._costs.knows_drafts

    @property
    def _can_measure(self) -> bool:
        return self._costs.is_measured and not self._costs.is_shared

    def _calibrated(self, confidences: Sequence[float]) -> list[float]:
        """The probability that each draft is right, given that those before it are."""
        return [self._stats.calibration(confidence) for confidence in confidences]

    def _update_prices(self) -> None:
        """Do this ahead of the rounds that use the prices: there, a device would wait for it."""
        costs = self._costs.table(self._n_max)
        speed = max(1 / costs.plain, self._stats.means.rate(self._n))
        self._prices = [speed * (more - less) for less, more in pairwise(costs.verify)]

    def _worth_by_length(self, probs: Sequence[float]) -> tuple[list[int], list[float]]:
        """Of the first 0, 1, ... drafts: how many are worth verifying, and how many of these are accepted on average.

        `probs` are those of `_calibrated`.
        """
        all_right, n_right, gain = 1.0, 0.0, 0.0
        best, best_right, best_gain = 0, 0.0, 0.0
        n_verified, n_kept = [0], [0.0]
        for n, (prob, price) in enumerate(zip(probs, self._prices, strict=False), 1):
            all_right *= prob
            n_right += all_right
            gain += all_right - price
            if gain > best_gain:
                best, best_right, best_gain = n, n_right, gain
            n_verified.append(best)
            n_kept.append(best_right)
        return n_verified, n_kept


N_PLAIN_AT_FIRST = N_SETTLING + N_WARM_UP + 2
"""Plain rounds that a sequence starts with while their cost is not known."""
N_PLAIN_AGAIN = N_SETTLING + 3
"""Plain rounds that measure their cost again while drafting is on; N_MEASURING rounds with long drafts follow."""
N_AT_FIRST = 2
"""Draft length before there are statistics, and of rounds that measure what drafting costs."""
MEASURING_GAP, N_MEASURING = 32, 1 + N_SETTLING + 3
"""N_MEASURING rounds that draft follow every MEASURING_GAPth probe, more often at first, and each probe that looked as
if drafting would pay: the costs of drafting stay known while it is off, and measurements from before a device had
warmed up do not keep it off."""
MEASURING_COST = 3
"""What a probe and the rounds that measure drafting after it cost, in probes."""
MARGIN = 1.05
"""How much faster than plain decoding drafting has to look to be turned on: the best of several noisy estimates is too
high."""
LEARN_EVERY = 4
"""Rounds that are learned from at once: between passes of a model, Python is slow at code that it has not just run."""
REPETITIVE_SHARE = 0.75
"""The share of tokens that repeat earlier ones above which the text counts as repetitive."""
EXPLORATION_SHARE = 0.002
"""The long-run share of time spent on probes while drafting is off, and on measurements while it is on."""


def _is_due(n_probes: int) -> bool:
    """Whether costs are measured after a probe in any case: the 1st, 2nd, 4th, ..., then every MEASURING_GAPth."""
    return n_probes % min(1 << (n_probes.bit_length() - 1), MEASURING_GAP) == 0
