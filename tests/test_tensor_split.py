"""Tensors split over two devices, the CPU twice: logits and drafts are those of one, but for the order of sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families import FAMILIES
from machine import needs_no_gpu
from pymtp import DraftParams, Generation, GenerationParams, InvalidParameter, Model, SamplingParams
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from pymtp.options import Params
from pymtp.placement import devices
from pymtp.placement.devices import host_device
from pymtp.placement.plan import plan
from pymtp.placement.target import LoadTarget

pytestmark = needs_no_gpu
K = 3


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(devices, "find_devices", lambda names, remote: [host_device()] * 2 if names else [])
    return {"device": ["CPU", "CPU"], "split_mode": "tensor"}


def tokens(generation: Generation) -> list[int]:
    list(generation)
    return generation.tokens


def rounds(made: Session) -> Iterator[np.ndarray]:
    """Rounds of several lengths, of which some drafts stay: all logits. The graphs of their passes alternate."""
    made.decode([Chunk([1, 2, 3, 4, 5], 0, 0, feed=True)])
    yield made.logits.copy()
    end = 5
    for n in (3, 1, 2, 3, 0, 1, 3):
        drafts, _ = made.draft_tokens([Chunk([7], end, 0)], n) if n else ([[]], None)
        assert len(drafts[0]) == n
        # the same tokens on both sides: a near tie of drafts is none of logits
        made.decode([Chunk([7, *range(11, 11 + n)], end, 0, logits="all", feed=True)])
        yield made.logits.copy()
        end += 1 + n // 2
        made.truncate(end, sequence=0)


@pytest.mark.parametrize(
    "family",
    [
        "glm4moe",
        "step35",
        "qwen35",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mimo2", "qwen35moe", "cohere2moe", "hy_v3")),
    ],
)
def test_logits_are_those_of_one_device(family: str, two_devices: dict[str, Any], tmp_path: Path) -> None:
    facts = model_facts(FAMILIES[family].write(tmp_path / "tiny.gguf"))
    params = ContextParams(n_ctx=256, n_threads=1, type_k="f32", type_v="f32", flash_attn="on")
    with ExitStack() as stack:
        alone, split = (
            rounds(stack.enter_context(Session(loaded.model, params, n_draft_max=K, model_id="m")))
            for placed in (ModelParams(), ModelParams(**two_devices))
            for loaded in [stack.enter_context(closing(Weights(facts, placed, with_heads=True)))]
        )
        for a, b in zip(alone, split, strict=True):
            np.testing.assert_allclose(b, a, atol=0.02 * a.std())


def test_drafts_are_accepted_as_on_one_device(two_devices: dict[str, Any], embedded_model: Path) -> None:
    accepted = []
    for placed in ({}, two_devices):
        with Model(embedded_model, n_ctx=512, n_threads=1, draft_max=2, **placed) as model:
            generation = model.generate("def fibonacci(n):\n", temperature=0, max_tokens=96, ignore_eos=True)
            list(generation)
            accepted.append(generation.stats.accepted / generation.stats.drafted)
    assert accepted[0] > 0.4
    assert accepted[1] == pytest.approx(accepted[0], abs=0.15)


def test_sequences_together_go_on_as_alone(two_devices: dict[str, Any], embedded_model: Path) -> None:
    prompts = ["The", "def fibonacci(n):\n", "Once upon a time there was"]
    params = GenerationParams(sampling=SamplingParams(temperature=0), max_tokens=6, ignore_eos=True)
    with Model(embedded_model, n_ctx=512, n_threads=1, draft_max=K, n_seq_max=3, **two_devices) as model:
        alone = [tokens(model.generate(prompt, params)) for prompt in prompts]
        started = [model.generate(prompt, params) for prompt in prompts]
        assert [tokens(generation) for generation in started] == alone


def test_what_each_part_takes_is_left_to_the_loader(two_devices: dict[str, Any], embedded_model: Path) -> None:
    params = ModelParams(**two_devices)
    assert LoadTarget(params, model_facts(embedded_model)).shares(params) == []
    found = plan(embedded_model, Params(params, ContextParams(), DraftParams()))
    assert found.places == () and found.note and "is not computed (--split-mode)" in found.note


@pytest.mark.parametrize("family", ["gemma4", "deepseek4"])
def test_an_architecture_that_cannot_be_split_is_refused(
    family: str, two_devices: dict[str, Any], tmp_path: Path
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidParameter, match=f"split_mode must be none, layer or row for {family} models"):
        Model(path, **two_devices)
