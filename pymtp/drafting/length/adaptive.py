"""How many tokens a round drafts, and how many of these it verifies.

Owns the decisions for one text; what they rest upon is `experience`. Knows probabilities and costs, and of tokens
whether they have come before; never the clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import truediv
from typing import Literal

from pymtp.drafting.length.costs import N_SETTLING, N_WARM_UP, CostTable
from pymtp.drafting.length.experience import TRIAL_GAP_MIN, Experience, Learned, Outcomes, TrialPlan
from pymtp.drafting.length.policy import LengthRow, confident
from pymtp.drafting.length.repetition import Repetition


class AdaptiveLength:
    """As many as make the text come fastest: none, if drafts do not pay.

    Behind each draft it reckons what every length would have brought in the same place, from the drafts' confidences,
    from how right drafts have been, and from the costs; the length that was best of late is the next one. A text begins
    with what the texts before it have told. Where it repeats itself drafts are right far more often: what such places
    tell is kept apart, and taken up again with the next one.

    While the best length is none, a single draft now and then tells whether the text may have changed, and a few rounds
    that draft whether it has; while it is not, a few plain rounds tell what these cost, and a few with the longest
    drafts.
    """

    uses_confidence = True

    def __init__(
        self, n_max: int, experience: Experience, *, prompt: Sequence[int] = (), n_min: int = 0, p_min: float = 0.0
    ) -> None:
        self._n_max, self._n_min, self._p_min = n_max, n_min, p_min
        self._experience, self._costs = experience, experience.costs
        self._repetition = Repetition(prompt)
        self._told: list[tuple[Sequence[int], Sequence[float], Sequence[bool]]] = []  # and not learned from yet
        self._by_kind = {repeats: Learned(kind, n_max) for repeats, kind in experience.kinds.items()}
        self._learned = self._by_kind[False]
        self._n = self._n_at_first = min(N_AT_FIRST, n_max)
        self._prices: list[float] = []  # of the rows of the 1st, 2nd, ... draft: tokens that could be had instead
        self._begin(MARGIN)
        # rounds to come that measure what rounds without and with drafts cost, and how many drafts
        self._n_plain: int | None = None  # not known before the text begins
        self._n_measuring, self._n_measured = 0, self._n_at_first
        self._is_measuring = False  # whether this round does so, with drafts
        self._tries: TrialPlan | None = None  # of the trial that is under way
        self._measuring_gap = math.inf  # rounds

    @property
    def keeps_up(self) -> bool:
        """See DraftLength."""
        return self._n > 0 or self._measures

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
        kind = self._next_round()
        if self._n_plain is None:
            self._n_plain = self._n_plain_at_first
            self._price()
            for each in self._experience.kinds.values():
                each.trials.n_until -= TRIAL_GAP_MIN  # a new text is as good a reason for a probe as so many rounds
        if kind == "plain":
            self._n_plain -= 1
            return
        self._is_measuring = kind == "measure"
        if kind == "measure":
            self._n_measuring = max(self._n_measuring - 1, 0)
        elif kind in ("draft", "remeasure"):
            self._experience.n_since_measured += 1
            if kind == "remeasure":
                self._n_plain, self._n_measuring, self._n_measured = N_PLAIN_AGAIN - 1, N_MEASURING, self._n_max
                self._experience.n_since_measured = 0
        else:
            trials = self._learned.trials
            trials.n_until -= 1
            if kind == "probe":
                trials.n_until = TRIAL_GAP_MIN  # unless what is seen of this one says otherwise
                self._experience.n_trials += 1
                self._tries = trials

    def _next_round(self) -> Literal["plain", "measure", "draft", "remeasure", "off", "probe"]:
        """What the next round is for."""
        n_plain = self._n_plain_at_first if self._n_plain is None else self._n_plain
        if n_plain > 0:
            return "plain"
        if self._measures:
            return "measure"
        if self._n > 0:
            is_due = self._experience.n_since_measured + 1 >= self._measuring_gap and self._can_measure
            return "remeasure" if is_due else "draft"
        n_until = self._learned.trials.n_until - (TRIAL_GAP_MIN if self._n_plain is None else 0)
        return "probe" if n_until <= 1 else "off"

    @property
    def _n_plain_at_first(self) -> int:
        return 0 if self._costs.knows_plain else N_PLAIN_AT_FIRST

    def n_verified(self, confidences: Sequence[float], *, drawn: bool) -> int:
        """See DraftLength."""
        n_min = 0 if drawn else self._n_min
        n = confident(confidences, n_min, self._p_min)
        if not self._is_measuring:
            worth, _ = self._worth_by_length(self._are_right(confidences[:n]))
            # whether a drawn one is worth a row must not depend on later ones, which know what it became
            n = next((i - 1 for i in range(1, n + 1) if worth[i] < i), n) if drawn else worth[n]
        return n if n >= n_min else 0

    def observe(self, tokens: Sequence[int], confidences: Sequence[float], are_right: Sequence[bool]) -> None:
        """See DraftLength."""
        self._told.append((tokens, confidences, are_right))
        if len(self._told) == N_AT_ONCE or (confidences and self._n == 0):
            self._learn()

    def _learn(self) -> None:
        drafted = [(confidences, are_right) for _, confidences, are_right in self._told if confidences]
        if drafted:
            self._weigh(drafted)
        self._repetition.observe([token for tokens, _, _ in self._told for token in tokens])
        self._told.clear()
        before, self._learned = self._learned, self._by_kind[self._repetition.share > REPEATS]
        if self._learned is not before:
            self._begin(1.0 if self._n > 0 else MARGIN)
        if drafted or self._learned is not before:
            self._price()

    def _begin(self, margin: float) -> None:
        """Go on with what texts of the present kind have told, if there is anything."""
        if self._learned.reckoning.weight:
            self._n = self._learned.reckoning.best(margin)

    def _weigh(self, drafted: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> None:
        """Learn from what became of the drafts of some rounds: confidences, and which were right."""
        costs = self._costs.table(self._n_max)
        outcomes = [self._outcomes(costs, confidences, are_right) for confidences, are_right in drafted]
        if self._costs.knows_drafts:
            for each in outcomes:
                self._learned.reckon(each)
            self._choose(costs, outcomes[-1])

    def _outcomes(self, costs: CostTable, confidences: Sequence[float], are_right: Sequence[bool]) -> Outcomes:
        """What each length would have brought in this place; learn how right drafts are."""
        right = self._are_right(confidences)
        # what would follow them is as sure as the last
        n_verified, n_kept = self._worth_by_length([*right, *[right[-1]] * (self._n_max - len(right))])
        self._learned.observe(confidences, right, are_right)
        ms = [costs.verify[rows] + draft for rows, draft in zip(n_verified, costs.draft, strict=True)]
        ms[0] = costs.plain
        return Outcomes(n_verified, [1 + n for n in n_kept], ms)

    def _choose(self, costs: CostTable, latest: Outcomes) -> None:
        """Take the length that was best of late, and plan what else to try."""
        reckoning = self._learned.reckoning
        was_on = self._n > 0
        self._n = reckoning.best(1.0 if was_on else MARGIN)
        if self._n > 0:
            best, longest, none = (reckoning.rate(n) for n in (self._n, self._n_max, 0))
            lost = N_PLAIN_AGAIN * (1 - none / best) + N_MEASURING * (1 - longest / best)  # rounds
            self._measuring_gap = max(lost / TRIAL_SHARE, TRIAL_GAP_MIN)
        elif was_on or self._tries:
            affordable = self._costs.trial_ms / (TRIAL_SHARE * costs.plain)
            gain = costs.plain * max(map(truediv, latest.n_tokens, latest.ms))
            if self._tries and (gain > MARGIN or (self._can_measure and _is_due(self._experience.n_trials))):
                self._n_measuring, self._n_measured = N_MEASURING, self._n_at_first
                affordable *= MEASURING_COST
            (self._tries or self._learned.trials).plan(affordable, paid=was_on)
        self._tries = None

    def table(self) -> list[LengthRow]:
        """What it decides from."""
        means = self._learned.reckoning
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
    def _measures(self) -> bool:
        return self._n_measuring > 0 or not self._costs.knows_drafts

    @property
    def _can_measure(self) -> bool:
        return self._costs.is_measured and not self._costs.is_shared

    def _are_right(self, confidences: Sequence[float]) -> list[float]:
        """How probably each is, if those before it are."""
        return [self._learned.is_right(confidence) for confidence in confidences]

    def _price(self) -> None:
        """Reckon prices anew: not when they are needed, as a device waits for that."""
        costs = self._costs.table(self._n_max)
        speed = max(1 / costs.plain, self._learned.reckoning.rate(self._n))
        self._prices = [speed * (more - less) for less, more in pairwise(costs.verify)]

    def _worth_by_length(self, right: Sequence[float]) -> tuple[list[int], list[float]]:
        """Of the first 0, 1, ... drafts: how many are worth their rows, and how many of these are kept on average."""
        all_right, n_right, gain = 1.0, 0.0, 0.0
        best, best_right, best_gain = 0, 0.0, 0.0
        n_verified, n_kept = [0], [0.0]
        for n, (one, price) in enumerate(zip(right, self._prices, strict=False), 1):
            all_right *= one
            n_right += all_right
            gain += all_right - price
            if gain > best_gain:
                best, best_right, best_gain = n, n_right, gain
            n_verified.append(best)
            n_kept.append(best_right)
        return n_verified, n_kept


N_PLAIN_AT_FIRST = N_SETTLING + N_WARM_UP + 2
"""Rounds of a text that begins before it is known what plain rounds cost."""
N_PLAIN_AGAIN = N_SETTLING + 3
"""Rounds amid drafts that measure them again; then come some with the longest drafts."""
N_AT_FIRST = 2
"""Drafts of rounds that measure what these cost, as those behind do."""
MEASURING_GAP, N_MEASURING = 32, 1 + N_SETTLING + 3
"""Behind every so many trials, more often at first, and behind those that would have paid come so many rounds that
draft: their costs stay known while drafting is off, and what was measured before a device had warmed up does not keep
it off."""
MEASURING_COST = 3
"""What such rounds take in the time of a trial, and the trial."""
MARGIN = 1.05
"""How much faster drafting has to look than plain decoding to begin: the best of several lengths is overrated."""
N_AT_ONCE = 4
"""Rounds that are learned from together: amid passes of a model, Python is slow for what it has not just done."""
REPEATS = 0.75
"""The share of tokens that have come before in the same way from which on a text repeats itself."""
TRIAL_SHARE = 0.002
"""Of the time, what may be spent in the long run to try something else: drafts where there are none, or none."""


def _is_due(n_trials: int) -> bool:
    """Whether costs are measured behind a trial in any case: the 1st, 2nd, 4th, ..., then each MEASURING_GAPth."""
    return n_trials % min(1 << (n_trials.bit_length() - 1), MEASURING_GAP) == 0
