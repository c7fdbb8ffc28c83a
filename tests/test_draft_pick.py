"""How drafts are picked, and how many are worth verifying."""

from __future__ import annotations

from pymtp.drafting.interface import ChainPicker
from pymtp.sampling.chain import Sampler
from pymtp.sampling.params import SamplingParams


def test_a_least_number_of_drafts_does_not_end_a_draft_that_is_still_short() -> None:
    sampler = Sampler(SamplingParams(), n_vocab=4)
    picker = ChainPicker(sampler, draws=False, n_min=4)
    assert picker.is_confident(0.01)
    assert [picker.n_worth([1] * n, [0.5] * n) for n in (1, 3, 4, 8)] == [0, 0, 4, 8]
    assert not ChainPicker(sampler, draws=False, p_min=0.5).is_confident(0.4)
