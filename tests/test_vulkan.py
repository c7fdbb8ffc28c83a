"""Rounds on a Vulkan device: what they compute, save, and leave to the host.

Mesa's lavapipe, Vulkan on a CPU, is one: `GGML_VK_VISIBLE_DEVICES=0 pytest -m slow tests/test_vulkan.py`, as llama.cpp
uses no such device unless it is named. It compiles each kernel for seconds, so passes have few rows, and few shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import families
from log_level import logged
from pymtp import Chunk, Model, ModelParams
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.placement.devices import devices
from test_isolation import FAMILIES, PUBLIC, rounds, session

DEVICE = next((device.name for device in devices() if device.backend == "Vulkan"), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DEVICE, reason="no Vulkan device: make it with -DGGML_VULKAN=ON, see the file's first lines"
    ),
]

PROMPTS = [PUBLIC[:6], PUBLIC[6:]]
TIE = 0.01
"""Of the largest logit: how far those of the same row may be from each other."""
N_SPLITS = {
    "gemma4": 2,  # the embeddings of its layers are in host memory, as on other devices
    "gemma4, shared K/V": 2,
    # llama.cpp's Vulkan has no LIGHTNING_INDEXER of keys, nor states, as small as these
    "qwen4exp": 6,
    "qwen4exp, an index that picks": 6,
    "nemotron_h_moe": 5,
    "glm-dsa": 5,
    "glm-dsa, an index a layer": 9,
    "deepseek32": 9,
    "dots3note": 5,
    "glm5-next": 5,
    "deepseek4": 5,
}


@pytest.fixture(scope="module", params=["plain", "sliding window", "hybrid", "own cache"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def weights(path: Path) -> Iterator[Weights]:
    loaded = Weights(model_facts(path), ModelParams(device=[DEVICE]), with_heads=True)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def on_host(path: Path) -> Iterator[Weights]:
    loaded = Weights(model_facts(path), ModelParams(device=[]), with_heads=True)
    yield loaded
    loaded.close()


def same_but_for_rounding(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=TIE * np.abs(other).max(), rtol=0)


def test_rounds_compute_what_the_host_computes(weights: Weights, on_host: Weights) -> None:
    same_but_for_rounding(*(rounds(session(each), PROMPTS[0], 0) for each in (weights, on_host)))


def test_a_saved_sequence_continues_in_another_session(weights: Weights) -> None:
    made, other = session(weights), session(weights)
    rounds(made, PROMPTS[0], 0)
    other.restore_sequence(1, made.save_sequence(0))
    end, found = len(PROMPTS[0]) + 4, []  # a token and a draft of each round
    for each, sequence in ((made, 0), (other, 1)):
        drafts, probs = each.draft_tokens([Chunk([3], end, sequence)], 2, probs=True)
        each.decode([Chunk([3, *drafts[0]], end, sequence, logits="all", feed=True)])
        found.append([np.array(drafts), np.array(probs), each.logits.copy()])
    same_but_for_rounding(found[1], found[0])


def test_texts_are_the_plain_ones_but_for_ties(path: Path, on_host: Weights) -> None:
    """With drafts, alone and with another sequence in the passes."""
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    with Model(path, n_ctx=64, n_threads=1, n_seq_max=2, device=[DEVICE], draft_max=2) as model:
        for draft_max in (0, 2):
            with model.batch() as batch:
                both = [batch.submit(prompt, draft_max=draft_max, **options) for prompt in PROMPTS]  # type: ignore[arg-type]
                list(batch)
            for prompt, shared in zip(PROMPTS, both, strict=True):
                plain, alone = (model.generate(prompt, draft_max=n, **options) for n in (0, draft_max))  # type: ignore[arg-type]
                assert len(list(plain)) and len(list(alone))
                for tokens in (alone.tokens, shared.tokens):
                    assert same_but_for_ties(on_host, prompt, tokens, plain.tokens)


def same_but_for_ties(on_host: Weights, prompt: list[int], tokens: list[int], plain: list[int]) -> bool:
    """Whether the first tokens that differ, if any do, have nearly the same logit."""
    at = next((i for i, pair in enumerate(zip(tokens, plain, strict=True)) if len(set(pair)) > 1), None)
    if at is None:
        return True
    made = session(on_host)
    made.decode([Chunk([*prompt, *plain[:at]], 0)])
    return bool(abs(made.logits[0][tokens[at]] - made.logits[0][plain[at]]) < TIE * np.abs(made.logits).max())


def test_rounds_need_nothing_of_the_host(
    path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Graphs of trunk and heads are one split each, and the scheduler copies no inputs: they come side by side."""
    if model_facts(path).architecture == "glm-dsa":
        pytest.skip("Vulkan has no LIGHTNING_INDEXER")
    monkeypatch.setenv("GGML_SCHED_DEBUG", "1")
    with logged("debug"):
        made = session(weights)
        capfd.readouterr()
        rounds(made, PROMPTS[0], 0)
    prompt, *of_rounds = re.findall(r"## SPLIT #.*", capfd.readouterr().err)
    assert prompt.startswith(f"## SPLIT #0: {DEVICE} ")
    assert len(of_rounds) >= 2 and {line.strip() for line in of_rounds} == {f"## SPLIT #0: {DEVICE} # 0 inputs"}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_host_computes_nothing_but_what_vulkan_lacks(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    family = families.FAMILIES[name]
    path, options = family.write(tmp_path / "tiny.gguf"), {}
    if family.write_assistant:
        options["draft_model"] = family.write_assistant(tmp_path / "assistant.gguf")
    with logged("debug"), Model(path, n_ctx=64, n_threads=1, device=[DEVICE], draft_max=2, **options):  # type: ignore[arg-type]
        pass
    found = re.findall(r"splits = (\d+)", capfd.readouterr().err)
    assert found and set(found) == {str(N_SPLITS.get(name, 1))}
