"""How drafts are picked: greedily or drawn, and what switches between the two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pymtp.acceptance.interface import MATCH, Verdict, Verified
from pymtp.drafting.interface import Proposal
from pymtp.drafting.pick import AutoPick, ChainPicker, DraftLength, FixedPick
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution
from pymtp.sampling.params import SamplingParams
from pymtp.serving.sequence import TokenSequence

PLAIN = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=1)


def distribution(*probs: float) -> Distribution:
    return Distribution(np.arange(len(probs), dtype=np.int32), np.array(probs))


FLAT = distribution(0.4, 0.3, 0.3)
"""Of a draft and a target alike: drawing keeps all drafts, the most likely token is kept four times in ten."""

WRONG = distribution(0.1, 0.45, 0.45)
CERTAIN = distribution(1, 0, 0)
"""As a target of a draft that is flat: the most likely token is always kept, a drawn one four times in ten."""


def test_a_fixed_pick_never_changes() -> None:
    for draws in (False, True):
        pick = FixedPick(draws=draws)
        pick.observe([FLAT] * 100, [FLAT] * 100)
        assert pick.draws == draws
        assert not pick.compares


def test_it_starts_greedy_and_draws_where_more_drawn_drafts_would_be_accepted() -> None:
    pick = AutoPick()
    assert (pick.draws, pick.compares) == (False, True)
    for _ in range(10):
        pick.observe([FLAT, FLAT], [FLAT, FLAT])
    assert pick.draws
    assert pick.match_rate == pytest.approx(0.4)
    assert pick.rejection_rate == pytest.approx(1)


def test_it_returns_to_greedy_where_greedy_drafts_are_accepted() -> None:
    pick = AutoPick(memory=16)
    pick.observe([FLAT] * 10, [FLAT] * 10)
    assert pick.draws
    pick.observe([FLAT] * 40, [CERTAIN] * 40)
    assert not pick.draws
    assert pick.match_rate > 0.9 > 0.5 > pick.rejection_rate


def test_the_rates_are_means_over_the_verified_rows() -> None:
    rng = np.random.default_rng(1)
    pick = AutoPick(memory=1000)
    drafts, targets = ([distribution(*rng.dirichlet(np.ones(6))) for _ in range(50)] for _ in range(2))
    for i in range(0, 50, 5):
        # the target may have judged fewer places than were drafted
        pick.observe([*drafts[i : i + 5], FLAT], targets[i : i + 5])
    match = [target.probs[draft.probs.argmax()] for draft, target in zip(drafts, targets, strict=True)]
    shared = [np.minimum(draft.probs, target.probs).sum() for draft, target in zip(drafts, targets, strict=True)]
    assert pick.match_rate == pytest.approx(np.mean(match))
    assert pick.rejection_rate == pytest.approx(np.mean(shared))


def test_a_lead_within_the_margin_changes_nothing() -> None:
    pick = AutoPick(margin=0.05)
    draft, target = distribution(0.5, 0.5, 0), distribution(0.96, 0.02, 0.02)
    even = distribution(0.5, 0.28, 0.22)  # the most likely token: 0.5; shared: 0.5 + 0.02
    nearly = distribution(0.5, 0.02, 0.48)
    for _ in range(20):
        pick.observe([nearly], [even])
        assert not pick.draws or pick.rejection_rate - pick.match_rate > 0.05
    pick = AutoPick(margin=0.05)
    pick.observe([FLAT] * 5, [FLAT] * 5)
    assert pick.draws
    while pick.rejection_rate - pick.match_rate > 0:
        pick.observe([draft], [target])
    assert pick.draws  # a lead has to be lost by the margin
    pick.observe([draft] * 20, [target] * 20)
    assert not pick.draws


def test_a_round_is_judged_as_it_was_picked_whatever_its_own_rows_show() -> None:
    """A choice that depended on the round itself would distort the output."""
    judged: list[str] = []

    def spy(name: str) -> object:
        def accept(sampler: Sampler, trial: Verified) -> Verdict:
            judged.append(name)
            return MATCH(sampler, trial)

        return accept

    pick = AutoPick(memory=1)
    one = TokenSequence([1], Sampler(PLAIN, n_vocab=3), frozenset(), 100, draft_max=1, pick=pick)
    one.accept, one.accept_drawn = spy("most likely"), spy("drawn")  # type: ignore[assignment]
    one.n_decoded = 1

    def play(target: Sequence[float]) -> None:
        one.n_decoded = len(one.history) - 1
        turn = one.share(0, 8)
        one.judge(turn, [np.log(np.array(target, np.float32))] * 2, Proposal([0], [FLAT]))

    with np.errstate(divide="ignore"):
        one.history.append(1)
        for target in (FLAT.probs, CERTAIN.probs, CERTAIN.probs, FLAT.probs, WRONG.probs, CERTAIN.probs):
            play(target.tolist())
    assert judged == ["most likely", "drawn", "most likely", "most likely", "drawn", "drawn"]
    assert not pick.draws


def test_a_least_number_of_drafts_does_not_end_a_draft_that_is_still_short() -> None:
    sampler, how = Sampler(SamplingParams(), n_vocab=4), FixedPick(draws=False)
    picker = ChainPicker(sampler, DraftLength(8, n_min=4), how)
    assert picker.is_confident(0.01)
    assert [picker.n_worth([1] * n, [0.5] * n) for n in (1, 3, 4, 8)] == [0, 0, 4, 8]
    assert not ChainPicker(sampler, DraftLength(8, p_min=0.5), how).is_confident(0.4)
