"""Tensors split over two devices, the CPU twice: texts and drafts are what they are on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from families import FAMILIES
from machine import needs_exact_texts
from pymtp import Generation, GenerationParams, InvalidParameter, Model, SamplingParams, Stats
from pymtp.loading import placement
from pymtp.loading.devices import host_device

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(placement, "find_devices", lambda names, remote: [host_device()] * 2 if names else [])
    return {"device": ["CPU", "CPU"], "split_mode": "tensor"}


def tokens(generation: Generation) -> list[int]:
    list(generation)
    return generation.tokens


def answer(path: Path, prompt: str | list[int], draft_max: int, **options: Any) -> tuple[list[int], Stats]:
    with Model(path, n_ctx=512, n_threads=1, draft_max=draft_max, **options) as model:
        generation = model.generate(prompt, sampling=GREEDY, max_tokens=48, ignore_eos=True)
        return tokens(generation), generation.stats


@needs_exact_texts
@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("family", ["glm4moe", "mimo2", "step35", "qwen35", "qwen35moe", "cohere2moe", "hy_v3"])
def test_a_text_is_what_it_is_on_one_device(
    family: str, draft_max: int, two_devices: dict[str, Any], tmp_path: Path
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    alone, _ = answer(path, [1, 2, 3, 4, 5], draft_max)
    split, stats = answer(path, [1, 2, 3, 4, 5], draft_max, **two_devices)
    assert split == alone
    assert bool(stats.drafted) == bool(draft_max)


@needs_exact_texts
def test_drafts_are_accepted_as_on_one_device(two_devices: dict[str, Any], embedded_model: Path) -> None:
    prompt = "def fibonacci(n):\n"
    alone, stats = answer(embedded_model, prompt, 2)
    split, split_stats = answer(embedded_model, prompt, 2, **two_devices)
    assert split == alone
    assert split_stats.accepted_per_position == pytest.approx(stats.accepted_per_position, abs=2)
    assert sum(split_stats.accepted_per_position) > 10


def test_sequences_together_are_what_they_are_alone(two_devices: dict[str, Any], tmp_path: Path) -> None:
    path = FAMILIES["glm4moe"].write(tmp_path / "tiny.gguf")
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    params = GenerationParams(sampling=GREEDY, max_tokens=24, ignore_eos=True)
    with Model(path, n_ctx=512, n_threads=1, draft_max=3, n_seq_max=3, **two_devices) as model:
        alone = [tokens(model.generate(prompt, params)) for prompt in prompts]
        started = [model.generate(prompt, params) for prompt in prompts]
        assert [tokens(generation) for generation in started] == alone


@pytest.mark.parametrize("family", ["gemma4", "deepseek4"])
def test_an_architecture_that_cannot_be_split_is_refused(
    family: str, two_devices: dict[str, Any], tmp_path: Path
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidParameter, match=f"split_mode must be none, layer or row for {family} models"):
        Model(path, **two_devices)
