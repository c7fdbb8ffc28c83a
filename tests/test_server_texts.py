"""Greedy texts of a server with 1, 4 and 16 slots: those that the library generates alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from http_server import running
from machine import needs_exact_texts
from pymtp import GenerationParams, Model, SamplingParams
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

NOUNS = ("cat", "house", "day")
PROMPTS = [f"{start} {noun}" for start in ("Once upon a time there was a", "The best") for noun in NOUNS]
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """What plain decoding of each prompt for itself generates."""
    params = GenerationParams(SamplingParams(temperature=0), max_tokens=24)
    with Model(n_ctx=256, n_threads=1, draft="none") as model:
        return ["".join(model.generate(prompt, params)) for prompt in PROMPTS]


@needs_exact_texts
@pytest.mark.parametrize("n_slots", [1, 4, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("draft_max", "shared"),
    [
        pytest.param(0, False, marks=pytest.mark.slow),
        (3, False),
        pytest.param(3, True, marks=pytest.mark.slow),
        ("auto", True),
    ],
)
def test_texts_do_not_depend_on_slots_or_drafts(
    alone: list[str], n_slots: int, draft_max: int | str, shared: bool
) -> None:
    def load() -> Model:
        cells = {"kv_unified": shared, "n_cells": 256 * n_slots if shared else None}
        return Model(n_ctx=256, n_seq_max=n_slots, draft_max=draft_max, n_threads=1, **cells)  # type: ignore[arg-type]

    with running(load, ServerSettings(GenerationParams())) as client, ThreadPoolExecutor(len(PROMPTS)) as pool:

        def ask(prompt: str) -> str:
            return str(client.post("/v1/completions", prompt=prompt, **GREEDY).json["choices"][0]["text"])

        assert list(pool.map(ask, PROMPTS * 2)) == alone * 2
