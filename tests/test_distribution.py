"""Distributions against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymtp.errors import InvalidParameter, PymtpError
from pymtp.sampling.distribution import Distribution

N_VOCAB = 3000


@st.composite
def distributions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Some tokens in any order, and probabilities of which some are 0."""
    n = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    # few tokens, so that two distributions have some in common, or many
    tokens = rng.permutation(draw(st.sampled_from([80, N_VOCAB])))[:n].astype(np.int32)
    probs = rng.dirichlet(np.full(n, 0.3)) * (rng.random(n) < 0.8)
    return tokens, probs / probs.sum() if probs.any() else np.full(n, 1 / n)


def dense(tokens: np.ndarray, probs: np.ndarray) -> np.ndarray:
    everything = np.zeros(N_VOCAB)
    everything[tokens] = probs
    return everything


@given(one=distributions())
def test_a_distribution_returns_its_tokens_and_probabilities(one: tuple[np.ndarray, np.ndarray]) -> None:
    tokens, probs = one
    distribution = Distribution(tokens, probs)
    np.testing.assert_array_equal(distribution.tokens, tokens)
    np.testing.assert_array_equal(distribution.probs, probs)
    np.testing.assert_array_equal([distribution.prob(token) for token in range(N_VOCAB)], dense(tokens, probs))
    assert distribution.best == (tokens[probs.argmax()], probs.max())


@given(one=distributions(), uniform=st.floats(0, 1, exclude_max=True))
def test_a_draw_inverts_the_cumulative_probabilities(one: tuple[np.ndarray, np.ndarray], uniform: float) -> None:
    tokens, probs = one
    cumulated = probs.cumsum()
    at = np.searchsorted(cumulated, uniform * cumulated[-1], side="right")
    assert Distribution(tokens, probs).draw(uniform) == tokens[min(at, len(tokens) - 1)]


def test_tokens_without_probability_are_not_drawn() -> None:
    assert Distribution([1, 2], [0.0, 1.0]).draw(0.0) == 2
    draws = [Distribution([7, 3, 9], [0.2, 0.5, 0.3]).draw(u) for u in (0, 0.19, 0.2, 0.69, 0.71, 0.999999)]
    assert draws == [7, 7, 3, 3, 9, 9]


@given(target=distributions(), source=distributions(), weight=st.floats(0, 1), uniform=st.floats(0, 0.999))
def test_the_residual(
    target: tuple[np.ndarray, np.ndarray], source: tuple[np.ndarray, np.ndarray], weight: float, uniform: float
) -> None:
    ours, other = Distribution(*target), Distribution(*source)
    lacking = np.maximum(weight * dense(*target) - dense(*source), 0)[target[0]]
    assert ours.residual_mass(other, weight) == pytest.approx(lacking.sum())
    expected = Distribution(target[0], lacking if lacking.any() else target[1])
    assert ours.sample_residual(other, weight, uniform) == expected.draw(uniform)


def test_a_distribution_has_no_residual_against_itself() -> None:
    one = Distribution([4, 8], [0.25, 0.75])
    assert one.residual_mass(one) == 0
    assert [one.sample_residual(one, 1.0, uniform) for uniform in (0.2, 0.3)] == [4, 8]


def test_an_empty_distribution_draws_nothing() -> None:
    nothing, one = Distribution([], []), Distribution([4], [1.0])
    assert nothing.tokens.tolist() == []
    assert nothing.best is None
    assert nothing.draw(0.5) == nothing.sample_residual(one, 1.0, 0.5) == -1
    assert one.residual_mass(nothing) == 1


@pytest.mark.parametrize("probs", [[1.0], [0.5, 0.25, 0.25]])
def test_tokens_and_probabilities_must_match_in_number(probs: list[float]) -> None:
    with pytest.raises(InvalidParameter, match="one for each token"):
        Distribution([1, 2], probs)


def test_negative_tokens_are_refused() -> None:
    with pytest.raises(PymtpError, match="token -1"):
        Distribution([-1], [1.0])
