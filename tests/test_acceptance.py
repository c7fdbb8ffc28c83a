"""Every method of acceptance on small vocabularies, against exact probabilities.

Target and draft model are tables of what follows a token; the chain is the real one. All seeds are fixed, so a bound
that holds once holds in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from pymtp.acceptance.forced import Forced, Scripted
from pymtp.acceptance.interface import MATCH, Acceptance, Verdict, Verified
from pymtp.acceptance.rejection import BLOCK_REJECTION, TOKENWISE_REJECTION
from pymtp.errors import InvalidParameter, NothingAllowed
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution
from pymtp.sampling.params import SamplingParams

N_TOKENS = 3
"""Tokens of a text, after token 0."""

PLAIN = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=1)
GREEDY = SamplingParams(temperature=0)
REJECTION = [TOKENWISE_REJECTION, BLOCK_REJECTION]

Texts = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Pair:
    """Logits of target and draft after each token, (n, n) each."""

    target: np.ndarray
    draft: np.ndarray

    @property
    def n(self) -> int:
        return len(self.target)


def random_pair(n: int, scale: float = 1.5, seed: int = 1) -> Pair:
    target, draft = np.random.default_rng(seed).normal(scale=scale, size=(2, n, n)).astype(np.float32)
    return Pair(target, draft)


def without(logits: np.ndarray, tokens: slice) -> np.ndarray:
    logits = logits.copy()
    logits[:, tokens] = -np.inf
    return logits


class Play:
    """Texts that target and draft make together."""

    def __init__(
        self,
        accept: Acceptance,
        pair: Pair,
        n_draft: int,
        *,
        draws: bool,
        params: SamplingParams = PLAIN,
        n_texts: int = 800,
        keeps_distributions: Callable[[bool], bool] = lambda draws: draws,
    ) -> None:
        self.texts: list[tuple[int, ...]] = []
        self.n_accepted: list[int] = []
        """Of each round."""
        self.n_accepted_first: list[int] = []
        """Of the first round of each text."""
        self._accept, self._pair, self._n_draft, self._draws = accept, pair, n_draft, draws
        self._tells = keeps_distributions(draws)
        for i in range(n_texts):
            sampler = Sampler(replace(params, seed=i), n_vocab=pair.n, history=[0])
            self._is_blocked = False
            text = [0, *self._round(sampler, 0)]
            self.n_accepted_first.append(self.n_accepted[-1])
            while len(text) <= N_TOKENS and not self._is_blocked:
                text += self._round(sampler, text[-1])
            self.texts.append(tuple(text[1 : N_TOKENS + 1]))

    def _round(self, sampler: Sampler, last: int) -> list[int]:
        drafts: list[int] = []
        distributions: list[Distribution] = []
        for _ in range(self._n_draft):
            distributions.append(sampler.draft_distribution(self._pair.draft[[last, *drafts][-1]]))
            if distributions[-1].best is None:
                distributions.pop()
                break
            drafts.append(distributions[-1].draw(sampler.random()) if self._draws else distributions[-1].best[0])
            sampler.assume(drafts[-1])
        sampler.forget()
        rows = [self._pair.target[token] for token in [last, *drafts]]
        verdict = self._accept(sampler, Verified(rows, drafts, distributions if self._tells else ()))
        assert verdict.tokens[: verdict.n_accepted] == drafts[: verdict.n_accepted]
        assert len(verdict.tokens) == verdict.n_accepted + (not verdict.is_blocked)
        self._is_blocked = verdict.is_blocked
        self.n_accepted.append(verdict.n_accepted)
        return verdict.tokens

    @property
    def mean_accepted(self) -> float:
        return float(np.mean(self.n_accepted))

    def is_as(self, exact: Texts) -> bool:
        """Whether the texts are distributed so (chi-square, p = 0.0001)."""
        assert sum(exact.values()) == pytest.approx(1)
        n = len(self.texts)
        often = [text for text, prob in exact.items() if prob * n >= 5]
        counts = Counter(self.texts)
        observed = np.array([counts[text] for text in often], float)
        expected = np.array([exact[text] * n for text in often])
        if expected.sum() < n - 5:  # the others together
            observed, expected = np.append(observed, n - observed.sum()), np.append(expected, n - expected.sum())
        elif observed.sum() < n - 25:
            return False
        df = len(expected) - 1
        bound = df * (1 - 2 / (9 * df) + 3.72 * np.sqrt(2 / (9 * df))) ** 3  # Wilson and Hilferty
        return bool(((observed - expected) ** 2 / expected).sum() < bound)


def exact_texts(pair: Pair, params: SamplingParams = PLAIN) -> Texts:
    """The probability of every text in plain decoding."""

    def row(prefix: tuple[int, ...]) -> np.ndarray:
        """(n,) after a prefix; XTC is either on or off."""
        probs = np.zeros(pair.n)
        for xtc, weight in ((0, 1 - params.xtc_probability), (1, params.xtc_probability)):
            sampler = Sampler(replace(params, xtc_probability=xtc), n_vocab=pair.n, history=[0, *prefix])
            with suppress(NothingAllowed):
                left = sampler.distribution(pair.target[[0, *prefix][-1]])
                probs[left.tokens] += weight * left.probs
        return probs

    ended: Texts = {}
    texts: Texts = {(): 1.0}
    for _ in range(N_TOKENS):
        rows = {prefix: row(prefix) for prefix in texts}
        ended |= {prefix: p for prefix, p in texts.items() if not rows[prefix].any()}
        texts = {(*prefix, i): p * rows[prefix][i] for prefix, p in texts.items() for i in range(pair.n) if p > 0}
    return {text: p for text, p in texts.items() if p > 0} | ended


WAYS = {
    "match, most likely drafts": (MATCH, False),
    "match, drawn drafts": (MATCH, True),
    "token-wise, drawn drafts": (TOKENWISE_REJECTION, True),
    "token-wise, most likely drafts": (TOKENWISE_REJECTION, False),
    "block, drawn drafts": (BLOCK_REJECTION, True),
    "block, most likely drafts": (BLOCK_REJECTION, False),
}

every_way = pytest.mark.parametrize(("accept", "draws"), WAYS.values(), ids=WAYS)


@every_way
@pytest.mark.parametrize("n_draft", [1, 2, 3, 4])
def test_outputs_are_distributed_as_in_plain_decoding(accept: Acceptance, draws: bool, n_draft: int) -> None:
    pair = random_pair(4 + n_draft % 2, seed=n_draft)
    play = Play(accept, pair, n_draft, draws=draws)
    assert play.is_as(exact_texts(pair))
    assert 0.02 < play.mean_accepted < n_draft


@pytest.mark.slow
@every_way
def test_a_million_tokens_are_distributed_as_in_plain_decoding(accept: Acceptance, draws: bool) -> None:
    pair = random_pair(5, seed=30)
    play = Play(accept, pair, 3, draws=draws, n_texts=-(-1_000_000 // N_TOKENS))
    assert play.is_as(exact_texts(pair))


@every_way
@pytest.mark.parametrize("n_draft", [1, 2, 3])
def test_texts_that_end_where_nothing_is_allowed_are_those_of_plain_decoding(
    accept: Acceptance, draws: bool, n_draft: int
) -> None:
    """After 2, which is drafted too often, the target has but the token 4, which is banned; after 1 the draft."""
    pair = random_pair(5, seed=n_draft)
    pair.draft[:, 2] += 3
    pair.target[2, :4] = pair.draft[1, :4] = -np.inf
    params = replace(PLAIN, logit_bias={4: -np.inf})
    play, exact = Play(accept, pair, n_draft, draws=draws, params=params), exact_texts(pair, params)
    assert {len(text) for text in play.texts} == {1, 2, 3}
    assert play.is_as(exact)


BLOCKED = np.where(np.arange(10) == 8, 0, -np.inf).astype(np.float32)
"""A row that has but the token 8."""


@pytest.mark.parametrize("name", ["match", "rejection", "token-wise", "forced", "scripted"])
@pytest.mark.parametrize("n_accepted", [0, 1, 2])
@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"mirostat": 2}], ids=str)
def test_every_method_ends_where_nothing_is_allowed(name: str, n_accepted: int, options: dict[str, Any]) -> None:
    made = {"match": MATCH, "rejection": BLOCK_REJECTION, "token-wise": TOKENWISE_REJECTION, "forced": Forced([1, 1])}
    accept: Acceptance = made.get(name) or Scripted([1, 2])
    if options.get("mirostat") and accept in REJECTION:
        return  # it picks one token, and has no distribution
    drafts = [1, 2][:n_accepted]
    sampler = Sampler(replace(PLAIN, **options, logit_bias={8: -np.inf, 9: -np.inf}), n_vocab=10)
    verdict = accept(sampler, Verified([*(row * 1000 for row in says(*drafts)), BLOCKED], drafts))
    assert verdict == Verdict(drafts, n_accepted, verdict.targets, is_blocked=True)


@every_way
def test_target_and_drafts_may_have_tokens_that_the_other_lacks(accept: Acceptance, draws: bool) -> None:
    both = random_pair(6, seed=8)
    pair = Pair(without(both.target, slice(0, 2)), without(both.draft, slice(4, 6)))
    play = Play(accept, pair, 2, draws=draws)
    assert play.is_as(exact_texts(pair))
    assert play.mean_accepted > 0.1


@every_way
def test_drafts_that_the_target_never_emits_are_never_accepted(accept: Acceptance, draws: bool) -> None:
    both = random_pair(8)
    pair = Pair(without(both.target, slice(0, 4)), without(both.draft, slice(4, 8)))
    play = Play(accept, pair, 3, draws=draws, n_texts=1000)
    assert play.is_as(exact_texts(pair))
    assert play.mean_accepted == 0


@pytest.mark.parametrize("accept", REJECTION, ids=lambda each: each.name)
@pytest.mark.parametrize("n_draft", [1, 2, 3, 4])
def test_drafts_from_the_targets_own_distribution_are_all_accepted(accept: Acceptance, n_draft: int) -> None:
    target = random_pair(5).target
    play = Play(accept, Pair(target, target), n_draft, draws=True)
    assert play.is_as(exact_texts(Pair(target, target)))
    assert play.mean_accepted == n_draft


CHAINS = {
    "penalties, DRY, filters": {
        "repeat_penalty": 1.5,
        "presence_penalty": 0.4,
        "dry_multiplier": 1.0,
        "dry_allowed_length": 1,
        "top_k": 4,
        "top_p": 0.95,
        "min_p": 0.02,
    },
    "typical, dynamic temperature": {"typical_p": 0.9, "dynatemp_range": 0.5, "top_n_sigma": 2.0},
}


def similar_pair(seed: int) -> Pair:
    pair = random_pair(5, scale=1, seed=seed)
    return Pair(pair.target, 0.6 * pair.target + 0.4 * pair.draft)


@every_way
@pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
def test_every_row_sees_the_history_of_plain_decoding(accept: Acceptance, draws: bool, options: dict[str, Any]) -> None:
    params = replace(PLAIN, **options)
    pair = similar_pair(3)
    play = Play(accept, pair, 3, draws=draws, params=params)
    assert play.is_as(exact_texts(pair, params))
    assert play.mean_accepted > 0.4


@pytest.mark.parametrize("accept", REJECTION, ids=lambda each: each.name)
def test_rejection_works_with_xtc(accept: Acceptance) -> None:
    """XTC draws the same at a position in every round that reaches it: rows after the end of a block judge it too."""
    params = replace(PLAIN, xtc_probability=0.5, xtc_threshold=0.15)
    pair = similar_pair(3)
    play = Play(accept, pair, 3, draws=True, params=params)
    assert play.is_as(exact_texts(pair, params))


def mean_accepted(pair: Pair, n_draft: int, *, blocks: bool) -> float:
    """What the papers promise: arXiv 2211.17192 for single tokens, 2403.10444 for blocks."""
    target, draft = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (pair.target, pair.draft))
    mean = 0.0
    for n in range(1, n_draft + 1):
        for text in product(range(pair.n), repeat=n):
            drawn, kept = 1.0, 1.0
            for last, token in zip((0, *text), text, strict=False):
                ratio = target[last, token] / draft[last, token]
                drawn *= draft[last, token]
                kept = min(kept * ratio, 1) if blocks else kept * min(ratio, 1)
            mean += drawn * kept
    return mean


@pytest.mark.parametrize("n_draft", [1, 2, 3, 4])
def test_block_rejection_accepts_the_optimum_and_at_least_as_much_as_tokenwise(n_draft: int) -> None:
    pair = random_pair(4, seed=5)
    lengths = {}
    for accept in REJECTION:
        # every text starts after token 0, so this is its first round
        firsts = Play(accept, pair, n_draft, draws=True, n_texts=1200).n_accepted_first
        lengths[accept.name] = np.mean(firsts)
        expected = mean_accepted(pair, n_draft, blocks=accept is BLOCK_REJECTION)
        assert abs(lengths[accept.name] - expected) < 4 * np.std(firsts) / np.sqrt(len(firsts))
    exact = [mean_accepted(pair, n_draft, blocks=blocks) for blocks in (False, True)]
    assert exact[1] > exact[0] + 0.02 if n_draft > 1 else exact[1] == pytest.approx(exact[0])


# What must not pass: the checks above on methods with a flaw


def test_the_check_catches_recovered_tokens_drawn_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "sample_residual", lambda target, source, weight, uniform: target.draw(uniform))
    for accept in REJECTION:
        for n_draft in (1, 3):
            pair = random_pair(5, seed=n_draft)
            assert not Play(accept, pair, n_draft, draws=True).is_as(exact_texts(pair))


def test_the_check_catches_a_residual_without_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = random_pair(4, scale=3, seed=1907)  # of many, the one where it matters most
    exact = exact_texts(pair)
    assert Play(BLOCK_REJECTION, pair, 2, draws=True, n_texts=2000).is_as(exact)
    recover = Distribution.sample_residual
    monkeypatch.setattr(
        Distribution, "sample_residual", lambda target, source, weight, uniform: recover(target, source, 1, uniform)
    )
    assert not Play(BLOCK_REJECTION, pair, 2, draws=True, n_texts=2000).is_as(exact)


def test_the_check_catches_greedy_drafts_treated_as_drawn() -> None:
    for accept in REJECTION:
        for n_draft in (1, 3):
            pair = random_pair(5, seed=n_draft)
            play = Play(accept, pair, n_draft, draws=False, keeps_distributions=lambda draws: True)
            assert not play.is_as(exact_texts(pair))


def test_the_check_catches_a_history_without_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    params = replace(PLAIN, presence_penalty=2.0)
    pair = similar_pair(3)
    monkeypatch.setattr(Sampler, "assume", lambda self, token: None)
    assert not Play(BLOCK_REJECTION, pair, 3, draws=True, params=params).is_as(exact_texts(pair, params))


# Single trials


def distribution(*probs: float) -> Distribution:
    tokens = np.flatnonzero(probs).astype(np.int32)
    return Distribution(tokens, np.array(probs)[tokens])


def logits(*probs: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, np.float32))


@pytest.mark.parametrize("accept", REJECTION, ids=lambda each: each.name)
def test_a_draft_of_probability_0_is_rejected(accept: Acceptance) -> None:
    row = logits(0.1, 0.1, 0.8)
    for seed in range(50):
        sampler = Sampler(replace(PLAIN, seed=seed), n_vocab=3)
        verdict = accept(sampler, Verified([row, row], [2], [distribution(0.5, 0.5, 0)]))
        assert verdict.n_accepted == 0
        assert verdict.tokens == [2]  # the residual has nothing else


@pytest.mark.parametrize("accept", REJECTION, ids=lambda each: each.name)
def test_an_empty_residual_falls_back_to_the_target(accept: Acceptance) -> None:
    """The draft has probability 0, and its distribution is the target's own."""
    row = logits(0.7, 0.3, 0)
    source = Sampler(PLAIN, n_vocab=3).distribution(row)
    sampler = Sampler(PLAIN, n_vocab=3)
    tokens = []
    for _ in range(1000):
        verdict = accept(sampler, Verified([row, row], [2], [source]))
        assert verdict.n_accepted == 0
        tokens += verdict.tokens
    counts = np.bincount(tokens, minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 700) < 4 * np.sqrt(1000 * 0.7 * 0.3)


EOG = 9


def says(*tokens: int) -> list[np.ndarray]:
    """Logits of a target that emits these tokens."""
    return list(np.eye(10, dtype=np.float32)[list(tokens)])


@pytest.mark.parametrize("accept", [MATCH, *REJECTION], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("target", "drafts", "emitted", "n_accepted"),
    [
        ((1, 2, 3, 4), [1, 2, 3], [1, 2, 3, 4], 3),  # all accepted, and a bonus token
        ((1, 2, 3, 4), [1, 7, 3], [1, 2], 1),  # a recovered token takes the wrong draft's place
        ((1, 2, 3, 4), [7, 2, 3], [1], 0),
        ((5,), [], [5], 0),  # no drafts: plain decoding
        ((1, EOG, 3), [1, EOG], [1, EOG], 2),  # nothing is sampled after the end
        ((1, EOG, 3), [1, 2], [1, EOG], 1),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_at_temperature_0_all_methods_emit_the_targets_tokens(
    accept: Acceptance, target: tuple[int, ...], drafts: list[int], emitted: list[int], n_accepted: int, keep: bool
) -> None:
    sampler = Sampler(GREEDY, n_vocab=10)
    verdict = accept(sampler, Verified(says(*target), drafts, stop={EOG}, keep=keep))
    assert verdict.tokens == emitted
    assert verdict.n_accepted == n_accepted
    if keep:
        assert [left.best[0] for left in verdict.targets[: len(emitted)]] == emitted


def test_match_samples_once_per_emitted_token() -> None:
    rows = list(np.random.default_rng(1).standard_normal((4, 50)).astype(np.float32))
    plain, drafted = (Sampler(SamplingParams(temperature=1, seed=5), n_vocab=50) for _ in range(2))
    one_by_one = [plain.sample(row) for row in rows]
    assert MATCH(drafted, Verified(rows, one_by_one[:3])).tokens == one_by_one
    assert drafted.sample(rows[0]) == plain.sample(rows[0])


def test_match_needs_one_row_more_than_drafts() -> None:
    with pytest.raises(AssertionError):
        MATCH(Sampler(GREEDY, n_vocab=10), Verified(says(1, 2), (1, 2)))


@pytest.mark.parametrize("accept", REJECTION, ids=lambda each: each.name)
def test_a_round_without_drafts_draws_only_its_token(accept: Acceptance) -> None:
    row = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    params = SamplingParams(temperature=2, seed=5)
    plain, other = Sampler(params, n_vocab=50), Sampler(params, n_vocab=50)
    assert [accept(other, Verified([row], [])).tokens for _ in range(20)] == [[plain.sample(row)] for _ in range(20)]
    assert plain.random() == other.random()


# Forced acceptance


def forced_rounds(accept: Forced, n_draft: int, n_rounds: int = 2000) -> Iterator[Verdict]:
    sampler = Sampler(GREEDY, n_vocab=10)
    for _ in range(n_rounds):
        yield accept(sampler, Verified(says(*range(n_draft + 1)), [5] * n_draft))


def test_forced_acceptance_has_the_given_rate_at_each_position() -> None:
    accept = Forced([0.9, 0.5, 0.5, 0.1])
    lengths = np.array([verdict.n_accepted for verdict in forced_rounds(accept, 4)])
    rates = [(lengths > i).mean() for i in range(4)]
    np.testing.assert_allclose(rates, [0.9, 0.5, 0.5, 0.1], atol=0.04)
    assert "not valid output" in accept.name


def test_forced_drafts_ignore_the_target_and_one_token_is_sampled_after_them() -> None:
    verdicts = list(forced_rounds(Forced([1.0, 1.0, 0.0]), 3, 5))
    assert verdicts == [Verdict([5, 5, 2], 2, [])] * 5
    # rounds may draft more or less than there are rates
    assert next(forced_rounds(Forced([1.0]), 3, 1)).tokens == [5, 1]
    assert next(forced_rounds(Forced([1.0, 1.0]), 1, 1)).tokens == [5, 1]
    assert next(forced_rounds(Forced([1.0]), 0, 1)).tokens == [0]


def test_a_forced_draft_can_end_the_sequence() -> None:
    verdict = Forced([1.0, 1.0])(Sampler(GREEDY, n_vocab=10), Verified(says(1, 2, 3), [5, EOG], stop={EOG}))
    assert verdict == Verdict([5, EOG], 2, [])


@pytest.mark.parametrize("length", [1, 1.7, 2.8, 4])
def test_forced_rounds_have_the_requested_mean_length(length: float) -> None:
    accept = Forced.of_length(length, 3)
    assert 1 + sum(accept.rates) == pytest.approx(length, abs=1e-6)
    mean = np.mean([len(verdict.tokens) for verdict in forced_rounds(accept, 3)])
    assert mean == pytest.approx(length, abs=0.08)


def test_impossible_forced_rates_are_refused() -> None:
    for rates in ([], [1.1], [-0.1], [0.5, 0.6]):
        with pytest.raises(InvalidParameter, match="rates must be between 0 and 1 and never increase"):
            Forced(rates)
    for length in (0.9, 4.1):
        with pytest.raises(InvalidParameter, match=f"length must be between 1 and 4, not {length}"):
            Forced.of_length(length, 3)


def test_scripted_acceptance_emits_the_answer_and_accepts_what_equals_it() -> None:
    accept, sampler = Scripted([5, 6, 7, 8]), Sampler(SamplingParams(temperature=0), n_vocab=10)
    rows = list(np.eye(10, dtype=np.float32)[[1, 1, 1, 1]])
    assert accept(sampler, Verified(rows[:3], [5, 9])) == Verdict([5, 6], 1, [])
    assert accept(sampler, Verified(rows[:2], [7])) == Verdict([7, 8], 1, [])
    assert accept(sampler, Verified(rows[:1], [])) == Verdict([1], 0, [])  # after the answer: what was sampled
