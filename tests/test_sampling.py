"""SamplingParams and the sampler, without a model."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from pymtp.errors import InvalidParameter
from pymtp.sampling import Sampler, SamplingParams

LOGITS = np.random.default_rng(3).standard_normal(100).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "0 or more"),
        ("temperature", float("nan"), "0 or more"),
        ("temperature", float("inf"), "0 or more"),
        ("top_k", -1, "0 (off) or more"),
        ("top_p", 1.5, "between 0 and 1"),
        ("min_p", -0.5, "between 0 and 1"),
        ("seed", -2, "between 0 and 4294967295"),
        ("seed", 2**32, "between 0 and 4294967295"),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: float, allowed: str) -> None:
    with pytest.raises(InvalidParameter) as error:
        SamplingParams(**{name: value})
    assert name in str(error.value)
    assert allowed in str(error.value)


def test_parameters_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_k = 1  # type: ignore[misc]


def test_temperature_0_takes_the_most_likely_token() -> None:
    assert Sampler(SamplingParams(temperature=0)).sample(LOGITS) == LOGITS.argmax()


def test_the_same_seed_gives_the_same_tokens_and_another_others() -> None:
    first, same, other = (
        [sampler.sample(LOGITS) for _ in range(50)]
        for sampler in (Sampler(SamplingParams(temperature=1.5, seed=seed)) for seed in (1, 1, 2))
    )
    assert first == same != other


def test_without_a_seed_each_sampler_differs() -> None:
    runs = {tuple(Sampler(SamplingParams(temperature=2)).sample(LOGITS) for _ in range(30)) for _ in range(3)}
    assert len(runs) == 3


def test_picking_a_draft_leaves_the_generator_alone() -> None:
    plain, drafting = (Sampler(SamplingParams(temperature=1.5, seed=1)) for _ in range(2))
    for _ in range(20):
        assert drafting.pick_draft(LOGITS) == LOGITS.argmax()
        assert drafting.sample(LOGITS) == plain.sample(LOGITS)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_barred_tokens_are_neither_drafted_nor_sampled(temperature: float) -> None:
    top = np.argsort(LOGITS)[::-1]
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), barred=top[:3].tolist())
    assert sampler.pick_draft(LOGITS) == top[3]
    assert not {sampler.sample(LOGITS) for _ in range(200)} & set(top[:3].tolist())


def test_sampled_frequencies_are_those_of_the_chain() -> None:
    """top-k 4 of known probabilities at temperature 1, against their exact values (chi-square, p = 0.001)."""
    probs = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    sampler = Sampler(SamplingParams(temperature=1, top_k=4, top_p=1, min_p=0, seed=11))
    n = 4000
    counts = np.bincount([sampler.sample(np.log(probs).astype(np.float32)) for _ in range(n)], minlength=5)
    expected = probs[:4] / probs[:4].sum() * n
    assert counts[4] == 0
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.27
