"""Matching drafts against the target, without a model."""

from __future__ import annotations

import numpy as np
import pytest

from pymtp.acceptance import match
from pymtp.sampling import Sampler, SamplingParams
from pymtp.sequence import Proposal, Round

GREEDY = Sampler(SamplingParams(temperature=0))
EOG = 9


def target(*tokens: int) -> np.ndarray:
    """Logits of a target that says these tokens."""
    return np.eye(10, dtype=np.float32)[list(tokens)]


@pytest.mark.parametrize(
    ("says", "drafts", "emitted", "n_accepted"),
    [
        ((1, 2, 3, 4), (1, 2, 3), [1, 2, 3, 4], 3),  # all accepted, and a bonus token
        ((1, 2, 3, 4), (1, 7, 3), [1, 2], 1),  # a recovered token takes the wrong draft's place
        ((1, 2, 3, 4), (7, 2, 3), [1], 0),
        ((5,), (), [5], 0),  # no drafts: plain decoding
        ((1, EOG, 3, 4), (1, EOG, 3), [1, EOG], 2),  # what is behind the end is neither sampled nor kept
        ((1, EOG, 3, 4), (1, 2, 3), [1, EOG], 1),
    ],
)
def test_match(says: tuple[int, ...], drafts: tuple[int, ...], emitted: list[int], n_accepted: int) -> None:
    tokens = match(GREEDY, target(*says), drafts, stop={EOG})
    assert tokens == emitted
    assert Round(None, Proposal(list(drafts)), tokens).n_accepted == n_accepted  # type: ignore[arg-type]


def test_match_samples_one_token_for_each_that_it_emits() -> None:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((4, 50)).astype(np.float32)
    plain, drafted = (Sampler(SamplingParams(temperature=1, seed=5)) for _ in range(2))
    one_by_one = [plain.sample(row) for row in logits]
    assert match(drafted, logits, one_by_one[:3]) == one_by_one


def test_match_needs_a_row_for_each_draft_and_one_more() -> None:
    with pytest.raises(ValueError, match="zip"):
        match(GREEDY, target(1, 2), (1, 2))
