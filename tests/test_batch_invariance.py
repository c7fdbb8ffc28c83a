"""The text of a request is, token for token, what it is alone: whoever shares its passes and its cache.

On CPUs, and on GPUs with `invariant`.
"""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import LlamaFileType

from machine import needs_exact_cpu, needs_invariance
from pymtp import Chunk, Model, PymtpError
from random_gguf import (
    write_bailingmoe3,
    write_falcon_h1,
    write_glm4moe,
    write_glm5_next,
    write_glm_dsa,
    write_granite_hybrid,
    write_jamba,
    write_lfm2,
    write_mimo2,
    write_nemotron_h_moe,
    write_qwen3next,
    write_qwen4exp_picking,
    write_qwen35,
    write_qwen35moe,
    write_step35,
)

N_REQUESTS = 10

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "plain": write_glm4moe,
    "sliding window": write_mimo2,
    "sliding window, 3 heads": write_step35,
    "hybrid": write_qwen35,
    "an index": write_glm_dsa,
    "hybrid, pools": write_glm5_next,
    "hybrid, blocks": write_qwen4exp_picking,
}

RECURRENT: dict[str, Callable[[Path], Path]] = {
    "qwen35": write_qwen35,
    "qwen35moe": write_qwen35moe,
    "qwen3next": write_qwen3next,
    "nemotron_h_moe": write_nemotron_h_moe,
    "bailingmoe3": write_bailingmoe3,
    "falcon-h1": write_falcon_h1,
    "granitehybrid": write_granite_hybrid,
    "lfm2": write_lfm2,
    "jamba": write_jamba,
}
WITHOUT_HEADS = ("falcon-h1", "granitehybrid", "lfm2")


class Requests:
    """Prompts and lengths that differ. A seeded text depends on every bit of its logits."""

    def __init__(self, seed: int, n_vocab: int, longest: int = 10) -> None:
        rng = random.Random(seed)
        self.prompts = [
            [rng.randrange(1, n_vocab - 1) for _ in range(rng.randint(2, longest))] for _ in range(N_REQUESTS)
        ]
        self.lengths = [rng.randint(4, 24) for _ in range(N_REQUESTS)]

    def params(self, i: int, temperature: float) -> dict[str, object]:
        return {"max_tokens": self.lengths[i], "temperature": temperature, "seed": i + 1, "ignore_eos": True}


def alone(model: Model, requests: Requests, temperature: float) -> list[list[int]]:
    res = []
    for i, prompt in enumerate(requests.prompts):
        generation = model.generate(prompt, **requests.params(i, temperature))  # type: ignore[arg-type]
        list(generation)
        res.append(generation.tokens)
    return res


def together(
    model: Model, requests: Requests, temperature: float, draft_max: Sequence[int | None] = (None,)
) -> list[list[int]]:
    """Admitted while others are under way, and beside some that are cancelled, so that cells are used out of order."""
    rng = random.Random(1)
    generations = []
    cancelled = []
    for i, prompt in enumerate(requests.prompts):
        params = {**requests.params(i, temperature), "draft_max": draft_max[i % len(draft_max)]}
        generations.append(model.generate(prompt, **params))  # type: ignore[arg-type]
        cancelled.append(model.generate(rng.choice(requests.prompts), max_tokens=40, temperature=1.0, seed=7))
    for n, _ in enumerate(chain.from_iterable(zip_longest(*generations))):
        if cancelled and n % 5 == 0:
            cancelled.pop(0).close()
    return [generation.tokens for generation in generations]


@needs_exact_cpu
@pytest.mark.parametrize("draft_max", [pytest.param(0, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("family", "type_kv", "n_slots"),
    [
        ("plain", "f16", 16),
        pytest.param("plain", "q8_0", 8, marks=pytest.mark.slow),
        ("plain", "q4_0", 4),
        pytest.param("sliding window", "f16", 5, marks=pytest.mark.slow),
        pytest.param("sliding window", "q8_0", 2, marks=pytest.mark.slow),
        ("sliding window, 3 heads", "f16", 5),
        ("hybrid", "f16", 5),
        ("an index", "f16", 5),
        pytest.param("hybrid, pools", "f16", 5, marks=pytest.mark.slow),
        pytest.param("hybrid, blocks", "f16", 5, marks=pytest.mark.slow),
        ("hybrid, blocks", "q8_0", 3),
    ],
)
def test_a_text_is_what_it_is_alone(family: str, type_kv: str, n_slots: int, draft_max: int, tmp_path: Path) -> None:
    path = FAMILIES[family](tmp_path / "tiny.gguf")
    options = {"n_ctx": 512, "type_k": type_kv, "type_v": type_kv, "flash_attn": "on", "device": []}
    expected = {}
    with Model(path, draft="none", **options) as model:  # type: ignore[arg-type]
        requests = Requests(3, model.vocabulary.size)
        for temperature in (0.0, 1.1):
            expected[temperature] = alone(model, requests, temperature)
    with Model(path, draft_max=draft_max, n_seq_max=n_slots, **options) as model:  # type: ignore[arg-type]
        for temperature, texts in expected.items():
            assert together(model, requests, temperature) == texts


@needs_exact_cpu
@pytest.mark.parametrize("family", ["an index", "hybrid, pools", "hybrid, blocks"])
def test_what_an_index_picks_is_the_same_wherever_its_cells_lie(family: str, tmp_path: Path) -> None:
    """Bit for bit, of trunk and head: a difference too small to change a token counts too."""
    path = FAMILIES[family](tmp_path / "tiny.gguf")
    text, other = (random.Random(seed).choices(range(1, 500), k=90) for seed in (1, 2))
    options = {"n_ctx": 512, "flash_attn": "on", "device": [], "draft_max": 3, "n_seq_max": 3}

    def logits(scattered: bool) -> object:
        with Model(path, **options) as model:  # type: ignore[arg-type]
            session, found = model.session, []
            if scattered:
                session.decode([Chunk(other[:37], 0, 2)])
            for start in range(0, len(text), 10):
                if scattered:
                    session.decode([Chunk(other[start : start + 10], start, 1, feed=True)])
                if scattered and start == 40:
                    session.truncate(0, sequence=2)
                session.decode([Chunk(text[start : start + 10], start, feed=True)])
                found.append(session.logits[-1].copy())
            for step, token in enumerate([5, 6, 7]):
                session.draft(step, 3, [Chunk([token], len(text) + step)])
                found.append(session.draft_logits[0].copy())
            return np.array(found)

    np.testing.assert_array_equal(logits(scattered=False), logits(scattered=True))


@needs_invariance
@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("type_kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("family", ["plain", "sliding window", "sliding window, 3 heads", "trained"])
def test_an_invariant_text_is_what_it_is_alone(
    family: str, type_kv: str, draft_max: int, embedded_model: Path, tmp_path: Path
) -> None:
    path = embedded_model if family == "trained" else FAMILIES[family](tmp_path / "tiny.gguf")
    options = {"n_ctx": 512, "type_k": type_kv, "type_v": type_kv, "invariant": True}
    with Model(path, draft="none", **options) as model:  # type: ignore[arg-type]
        requests = Requests(3, model.vocabulary.size)
        expected = {temperature: alone(model, requests, temperature) for temperature in (0.0, 1.1)}
    with Model(path, draft_max=draft_max, n_seq_max=5, **options) as model:  # type: ignore[arg-type]
        for temperature, texts in expected.items():
            assert together(model, requests, temperature) == texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flash_attn": "off"}, "flash_attn must be on or auto with invariant, not 'off'"),
        ({"n_ubatch": 600}, "needs passes of at most 512 rows, not 600; lower -ub, -np or --draft-max"),
        ({"n_cells": 64}, "n_cells must be left out with invariant"),
    ],
)
def test_what_invariant_does_not_go_with(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PymtpError, match=re.escape(message)):
        Model(write_glm4moe(tmp_path / "tiny.gguf"), n_ctx=64, invariant=True, **options)


class Repeating(Requests):
    """Texts of few tokens, so that lookup finds something, right or wrong."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 5, longest=60)

    def params(self, i: int, temperature: float) -> dict[str, object]:
        return {**super().params(i, temperature), "logit_bias": {1: 100, 2: 100, 3: 100}}


@needs_exact_cpu
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.1])
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in ("qwen35", "nemotron_h_moe", "lfm2", "jamba") else pytest.mark.slow)
        for name in RECURRENT
    ],
)
def test_a_text_of_a_recurrent_model_is_what_it_is_alone_though_others_draft_more(
    family: str, temperature: float, tmp_path: Path
) -> None:
    path = RECURRENT[family](tmp_path / "tiny.gguf")
    draft = "none" if family == "jamba" else "lookup" if family in WITHOUT_HEADS else "mtp"
    options = {"n_ctx": 512, "type_k": "f16", "type_v": "f16", "flash_attn": "on", "device": []}
    requests = Repeating(4)
    with Model(path, draft="none", **options) as model:  # type: ignore[arg-type]
        expected = alone(model, requests, temperature)
    with Model(path, draft_max=4, n_seq_max=5, draft=draft, **options) as model:  # type: ignore[arg-type]
        assert together(model, requests, temperature, (1, 4, 0, 2)) == expected
        assert model.stats.drafted > 50 or draft == "none"


def requantized(model: Path, weights: str, folder: Path) -> Path:
    """The model with all matrices in about that type, by llama.cpp."""
    path = folder / f"{weights}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = LlamaFileType[f"MOSTLY_{weights}"], True
    assert llama_cpp.llama_model_quantize(bytes(model), bytes(path), ctypes.byref(params)) == 0
    return path


@pytest.mark.model
@needs_exact_cpu
@pytest.mark.parametrize(
    ("weights", "type_kv"),
    [
        (None, "f16"),
        pytest.param(None, "q8_0", marks=pytest.mark.slow),
        *(pytest.param(name, "f16", marks=pytest.mark.slow) for name in ("F16", "BF16", "Q2_K")),
    ],
)
def test_a_prompt_is_the_same_in_parts_and_beside_others(
    embedded_model: Path, weights: str | None, type_kv: str, tmp_path: Path
) -> None:
    path = requantized(embedded_model, weights, tmp_path) if weights else embedded_model
    rng = random.Random(1)
    prompts = [[rng.randrange(1, 5000) for _ in range(n)] for n in (150, 41, 90)]
    options = {"n_ctx": 1024, "type_k": type_kv, "type_v": type_kv, "flash_attn": "on", "device": [], "n_seq_max": 3}

    def last_row(n_ubatch: int, parts: int, n_beside: int) -> object:
        """Logits of the first prompt, in as many parts, with the others' parts in the same passes."""
        with Model(path, draft="none", n_ubatch=n_ubatch, **options) as model:  # type: ignore[arg-type]
            for part in range(parts):
                chunks = []
                for sequence, prompt in list(enumerate(prompts))[n_beside::-1]:
                    begin, end = (len(prompt) * i // parts for i in (part, part + 1))
                    chunks.append(Chunk(prompt[begin:end], begin, sequence))
                model.session.decode(chunks)
            return model.session.logits[-1].copy()

    expected = last_row(512, 1, 0)
    for n_ubatch, parts, n_beside in ((512, 1, 2), (64, 1, 0), (512, 4, 2), (512, 30, 1)):
        np.testing.assert_array_equal(last_row(n_ubatch, parts, n_beside), expected)


@needs_exact_cpu
def test_a_window_is_whole_for_all_ubatches_of_a_pass(tmp_path: Path) -> None:
    """Though the last of them take cells of positions that the first ones see."""
    text, other = (random.Random(seed).choices(range(1, 500), k=n) for seed, n in ((1, 75), (2, 90)))
    path = write_mimo2(tmp_path / "tiny.gguf")
    with Model(path, draft="none", n_ctx=300, n_ubatch=8, n_seq_max=2, n_threads=1, n_gpu_layers=0) as model:
        session = model.session
        session.decode([Chunk(text[:2], 0, 1)])
        session.decode([Chunk(other, 0)])
        session.decode([Chunk(text[2:5], 2, 1)])
        session.truncate(35)
        session.decode([Chunk(text[5:], 5, 1)])
        found = session.logits[-1].copy()
        session.truncate(0, sequence=1)
        for begin in range(0, len(text), 5):
            session.decode([Chunk(text[begin : begin + 5], begin, 1)])
        np.testing.assert_array_equal(found, session.logits[-1])
