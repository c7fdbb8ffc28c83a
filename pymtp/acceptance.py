"""Which drafts the target keeps.

Every method takes the target's rows behind the newest token and behind each draft, and returns the tokens to emit.
Knows token ids and probabilities; never text, and nothing of how the drafts were made.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from pymtp.distribution import Distribution
from pymtp.errors import InvalidParameter
from pymtp.logprobs import top_probs
from pymtp.sampler import Row, Sampler


class Trial(NamedTuple):
    """Drafts of one sequence, before the target."""

    rows: Sequence[Row]
    """Of the target: where the first draft belongs, and behind each draft; (len(drafts) + 1,)."""
    drafts: Sequence[int]
    distributions: Sequence[Distribution] = ()
    """What the drafts were drawn from, (len(drafts),); empty: they were not drawn."""
    stop: Container[int] = ()
    """Tokens that end a text. Only the last draft may be one."""
    keep: bool = False
    """Whether the verdict is to have the targets."""


class Verdict(NamedTuple):
    """What was made of some drafts."""

    tokens: list[int]
    """To emit: the accepted drafts and one more, recovered (in the place of a draft) or bonus (all were accepted); none
    behind a token that ends the text. Token i was judged by row i."""
    n_accepted: int
    """Drafts among them."""
    targets: list[Distribution]
    """What the tokens were drawn from; perhaps not all, unless the trial asked to keep them."""


class Acceptance(Protocol):
    """A method."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def is_lossless(self) -> bool:
        """Whether what is emitted is distributed as in plain decoding."""

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """Judge the drafts; the sampler accepts the tokens that are emitted."""


@dataclass(frozen=True)
class Match:
    """Sample the target row by row, and keep the drafts for as long as they are what was sampled.

    Lossless whatever the drafts are: every token is sampled from the target, in order, as plain decoding samples it,
    with the same generator. So the same seed gives the text of plain decoding.
    """

    name: str = "match"
    is_lossless: bool = True

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """See Acceptance."""
        tokens: list[int] = []
        targets: list[Distribution] = []
        for row, draft in zip(trial.rows, [*trial.drafts, None], strict=True):
            tokens.append(sampler.sample(row))
            if trial.keep:
                targets.append(sampler.last_distribution)
            if tokens[-1] != draft:
                return Verdict(tokens, len(tokens) - 1, targets)
            if draft in trial.stop:
                break
        return Verdict(tokens, len(tokens), targets)


@dataclass(frozen=True)
class TokenwiseRejection:
    """Keep a draft with probability min(1, target / draft), else recover from what the draft had too little of.

    Speculative sampling: arXiv 2211.17192, 2302.01318. The drafts must have been drawn from `distributions`; without
    these a draft counts as certain (one-hot), for which the method is lossless as well.
    """

    name: str = "rejection (token-wise)"
    is_lossless: bool = True

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """See Acceptance."""
        tokens: list[int] = []
        targets: list[Distribution] = []
        drawn_from = trial.distributions or _one_hot(trial.drafts)
        for row, draft, source in zip(trial.rows, trial.drafts, drawn_from, strict=False):
            target = sampler.distribution(row)
            targets.append(target)
            draft_prob = source.prob(draft)
            is_kept = draft_prob > 0 and sampler.random() * draft_prob < target.prob(draft)
            tokens.append(draft if is_kept else target.recover(source, 1.0, sampler.random()))
            sampler.accept(tokens[-1])
            if not is_kept:
                return Verdict(tokens, len(tokens) - 1, targets)
            if draft in trial.stop:
                return Verdict(tokens, len(tokens), targets)
        tokens.append(sampler.sample(trial.rows[-1]))
        return Verdict(tokens, len(trial.drafts), [*targets, sampler.last_distribution] if trial.keep else targets)


@dataclass(frozen=True)
class BlockRejection:
    """Decide about all drafts together: never keeps fewer of them, on average, than token-wise rejection.

    Block verification: arXiv 2403.10444, algorithm 2.
    """

    name: str = "rejection"
    is_lossless: bool = True

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """See Acceptance."""
        drafts = trial.drafts
        if not drafts:
            return MATCH(sampler, trial)
        drawn_from = trial.distributions or _one_hot(drafts)
        targets = self._targets(sampler, trial)

        # weight: how much of the drafts so far the target would have said, at most all
        n_kept, kept_weight, weight = 0, 1.0, 1.0
        for i, draft in enumerate(drafts):
            draft_prob = drawn_from[i].prob(draft)
            weight = min(weight * targets[i].prob(draft) / draft_prob, 1.0) if draft_prob > 0 else 0.0
            keeps = weight
            if i + 1 < len(drafts):
                missing = targets[i + 1].missing(drawn_from[i + 1], weight)
                keeps = missing / (missing + 1 - weight) if missing + 1 - weight > 0 else 1.0
            if sampler.random() < keeps:
                n_kept, kept_weight = i + 1, weight

        tokens = list(drafts[:n_kept])
        sampler.accept(*tokens)
        if tokens and tokens[-1] in trial.stop:
            return Verdict(tokens, n_kept, targets)
        if n_kept == len(drafts):
            tokens.append(sampler.sample(trial.rows[-1]))
            return Verdict(tokens, n_kept, [*targets, sampler.last_distribution] if trial.keep else targets)
        tokens.append(targets[n_kept].recover(drawn_from[n_kept], kept_weight, sampler.random()))
        sampler.accept(tokens[-1])
        return Verdict(tokens, n_kept, targets[: n_kept + 1])

    @staticmethod
    def _targets(sampler: Sampler, trial: Trial) -> list[Distribution]:
        """The target's distributions in the places of the drafts."""
        targets = []
        for row, draft in zip(trial.rows, trial.drafts, strict=False):
            targets.append(sampler.distribution(row))
            sampler.assume(draft)
        sampler.forget()
        return targets


@dataclass(frozen=True)
class Relaxed:
    """While the model thinks, keep a draft that is among the target's likely tokens; else `match`.

    Likely: one of the `top_n` most likely ones before the chain, and at most `delta` less likely than the first
    (TensorRT-LLM's relaxed acceptance). Lossy: what is thought is no longer distributed as in plain decoding.
    """

    is_thinking: Callable[[], bool]
    """Whether the token behind those that the sampler has accepted belongs to the thinking."""
    observe: Callable[[int], object]
    """Told each token that is emitted."""
    top_n: int = 10
    delta: float = 0.6
    name: str = "relaxed (lossy)"
    is_lossless: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.top_n, int) or self.top_n < 1:
            raise InvalidParameter("relaxed_top_n", "an integer, 1 or more", value=self.top_n)
        if not isinstance(self.delta, (int, float)) or not 0 <= self.delta <= 1:
            raise InvalidParameter("relaxed_delta", "between 0 and 1", value=self.delta)

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """See Acceptance."""
        tokens: list[int] = []
        targets: list[Distribution] = []
        for row, draft in zip(trial.rows, [*trial.drafts, None], strict=True):
            if draft is not None and self.is_thinking() and self._is_likely(row, draft):
                if trial.keep:
                    targets.append(sampler.distribution(row))
                sampler.accept(draft)
                tokens.append(draft)
            else:
                tokens.append(sampler.sample(row))
                if trial.keep:
                    targets.append(sampler.last_distribution)
            self.observe(tokens[-1])
            if tokens[-1] != draft:
                return Verdict(tokens, len(tokens) - 1, targets)
            if draft in trial.stop:
                break
        return Verdict(tokens, len(tokens), targets)

    def _is_likely(self, row: Row, draft: int) -> bool:
        tokens, probs = top_probs(row, self.top_n)
        return bool(np.any((tokens == draft) & (probs >= probs[0] - self.delta)))


@dataclass(frozen=True)
class Forced:
    """Keep drafts by the dice, whatever the target says: for benchmarks. The text is not valid output."""

    rates: Sequence[float]
    """Of each position: the share of rounds that keep it and all drafts before it."""
    random: Callable[[], float] = field(default_factory=lambda: np.random.default_rng(0).random)
    name: str = "forced (not valid output)"
    is_lossless: bool = False

    def __post_init__(self) -> None:
        ordered = all(a >= b for a, b in zip([1.0, *self.rates], [*self.rates, 0.0], strict=True))
        if not self.rates or not ordered:
            raise InvalidParameter("rates", "between 0 and 1, none above the one before", value=list(self.rates))

    @classmethod
    def of_length(cls, length: float, n_draft: int, random: Callable[[], float] | None = None) -> Forced:
        """Rates r, r^2, ... with which rounds of `n_draft` drafts have this mean acceptance length."""
        if not 1 <= length <= n_draft + 1:
            raise InvalidParameter("length", f"between 1 and {n_draft + 1}", value=length)
        low, high = 0.0, 1.0
        for _ in range(60):
            rate = (low + high) / 2
            low, high = (rate, high) if 1 + sum(rate**i for i in range(1, n_draft + 1)) < length else (low, rate)
        rates = [high**i for i in range(1, n_draft + 1)]
        return cls(rates, random) if random else cls(rates)

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """See Acceptance."""
        before = [1.0, *self.rates]
        n_kept = 0
        while n_kept < min(len(trial.drafts), len(self.rates)) and self.random() * before[n_kept] < self.rates[n_kept]:
            n_kept += 1
        tokens = list(trial.drafts[:n_kept])
        sampler.accept(*tokens)
        if not (tokens and tokens[-1] in trial.stop):
            tokens.append(sampler.sample(trial.rows[n_kept]))
        return Verdict(tokens, n_kept, [])


MATCH = Match()
TOKENWISE_REJECTION = TokenwiseRejection()
BLOCK_REJECTION = BlockRejection()


def _one_hot(drafts: Sequence[int]) -> list[Distribution]:
    return [Distribution([draft], [1.0]) for draft in drafts]
