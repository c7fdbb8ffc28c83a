"""Slots of the embedded model: what they hold can be saved and restored, moved to host memory, and taken from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from machine import needs_exact_texts
from pymtp import Generation, InvalidParameter, Model, StateError
from random_gguf import write_glm4moe

pytestmark = pytest.mark.model

FRANCE = "What is the capital of France? It is a city on a river, and its name is"
OTHER = "A list of things that can be found in a kitchen: a pan, a spoon, a"
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "cache_prompt": True}


@pytest.fixture(params=["none", "mtp"])
def load(request: pytest.FixtureRequest) -> Callable[..., Model]:
    def load(**options: Any) -> Model:
        return Model(**{"n_ctx": 256, "n_threads": 1, "draft": request.param, "n_seq_max": 2} | options)

    return load


def finish(generation: Generation) -> str:
    return "".join(generation)


def test_a_generation_runs_in_the_slot_that_it_asks_for(load: Callable[..., Model]) -> None:
    with load() as model:
        many = [model.generate(FRANCE, slot=1, **OPTIONS) for _ in range(3)]
        texts = [finish(each) for each in many]
        assert [each.slot for each in many] == [1, 1, 1]
        assert len(set(texts)) == 1
        other = model.generate(FRANCE, **OPTIONS)
        with pytest.raises(InvalidParameter, match="slot must be between 0 and 1, not 2"):
            finish(model.generate(FRANCE, slot=2, **OPTIONS))
        assert finish(other) == texts[0]  # it fails alone
        waiting = model.generate(FRANCE, slot=0, max_tokens=200, ignore_eos=True)
        # others pass the one that waits for a slot that is in use
        blocked, free = model.generate(OTHER, slot=0, **OPTIONS), model.generate(OTHER, slot=1, **OPTIONS)
        finish(free)
        waiting.close()
        finish(blocked)


def test_a_slot_is_restored_in_another_place_and_process(load: Callable[..., Model]) -> None:
    with load(draft_max=3) as model:
        first = finish(model.generate(FRANCE, slot=1, **OPTIONS))
        tokens, data = model.slots.save(1)
        assert model.tokenize(FRANCE) == tokens[: len(model.tokenize(FRANCE))]
        assert model.slots.save(0) == ([], b"")
    with load(n_seq_max=3, draft_max=3) as model:
        model.slots.restore(2, tokens, data)
        again = model.generate(FRANCE, slot=2, **OPTIONS)
        assert finish(again) == first
        assert again.n_cached == again.n_prompt - 1
        if model.draft_max:
            assert again.stats.accepted > 0
        assert model.slots.erase(2) == len(tokens)
        with pytest.raises(StateError, match="damaged"):
            model.slots.restore(0, tokens, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(StateError):
            model.slots.restore(0, tokens, b"nothing")
        assert finish(model.generate(OTHER, slot=0, **OPTIONS))


def test_a_slot_is_restored_with_another_number_of_threads(load: Callable[..., Model]) -> None:
    texts = []
    for n_threads in (1, 3):
        with load(n_threads=n_threads) as model:
            if n_threads == 1:
                texts.append(finish(model.generate(FRANCE, slot=0, **OPTIONS)))
                tokens, data = model.slots.save(0)
            model.slots.restore(1, tokens, data)
            again = model.generate(FRANCE, slot=1, **OPTIONS)
            texts.append(finish(again))
            assert again.n_cached == again.n_prompt - 1
    assert len(set(texts)) == 1


def test_a_slot_in_use_is_neither_saved_nor_erased(load: Callable[..., Model]) -> None:
    with load() as model, model.generate(FRANCE, slot=0, ignore_eos=True) as generation:
        next(generation)
        for change in (model.slots.save, model.slots.erase):
            with pytest.raises(StateError, match="slot 0 is in use"):
                change(0)


def test_prompts_come_back_from_host_memory(load: Callable[..., Model]) -> None:
    with load(n_seq_max=1) as model:
        model.slots.keep_prefixes(64 << 20)
        first = finish(model.generate(FRANCE, **OPTIONS))
        finish(model.generate(OTHER, **OPTIONS))
        again = model.generate(FRANCE, **OPTIONS)
        assert finish(again) == first
        assert again.n_cached == again.n_prompt - 1
        model.slots.keep_prefixes(0)
        model.generate(OTHER, **OPTIONS).close()
        finish(model.generate("def add(a, b):", **OPTIONS))
        forgotten = model.generate(FRANCE, **OPTIONS)
        finish(forgotten)
        assert forgotten.n_cached < forgotten.n_prompt - 1


def test_a_full_cache_takes_slots_from_the_newest_and_loses_nothing(load: Callable[..., Model]) -> None:
    options = OPTIONS | {"max_tokens": 60, "cache_prompt": False}
    with load(n_seq_max=4, n_cells=256) as model:
        many = [model.generate(f"{i}. {FRANCE}", **options) for i in range(5)]
        assert all(map(finish, many))
        assert [len(each.tokens) for each in many] == [60] * 5


@needs_exact_texts
@pytest.mark.parametrize(
    ("n_cells", "n_seq_max", "draft_max"), [(100, 9, 15), (24, 32, 3), (12, 1, 15), (24, 32, "auto")]
)
def test_a_cache_with_less_room_than_a_round_of_all_drafts_gives_the_same_texts(
    n_cells: int, n_seq_max: int, draft_max: Any
) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 18, "ignore_eos": True}
    with Model(n_ctx=256, n_threads=1, draft="none") as model:
        plain = finish(model.generate([5, 6], **options))
    with Model(n_ctx=256, n_threads=1, n_cells=n_cells, n_seq_max=n_seq_max, draft_max=draft_max) as model:
        many = [model.generate([5, 6], **options) for _ in range(9)]
        assert {finish(each) for each in many} == {plain}


def test_no_more_of_a_prompt_was_cached_than_it_has(load: Callable[..., Model]) -> None:
    with load(n_seq_max=3, n_cells=128, n_ctx=128) as model:
        many = [model.generate(FRANCE, **OPTIONS | {"max_tokens": 80}) for _ in range(3)]
        assert all(map(finish, many))  # one that begins again continues the text of another, which is the same
        assert all(each.n_cached < each.n_prompt for each in many)


@needs_exact_texts
@pytest.mark.parametrize("draft", ["none", "mtp"])
def test_a_full_context_lets_go_of_its_oldest_part(draft: Any, tmp_path: Path) -> None:
    with Model(write_glm4moe(tmp_path / "tiny.gguf"), draft=draft, n_ctx=64, n_threads=1) as model:
        prompt = list(range(30, 48))
        generation = model.generate(prompt, temperature=0, max_tokens=150, ignore_eos=True, n_keep=4)
        finish(generation)
        assert len(generation.tokens) == 150
        assert generation.finish_reason == "length"
        assert generation.is_truncated
        short = model.generate(prompt, temperature=0, max_tokens=150, ignore_eos=True)
        finish(short)
        assert (short.finish_reason, short.is_truncated) == ("context", True)
        assert generation.tokens[: len(short.tokens)] == short.tokens


@needs_exact_texts
@pytest.mark.parametrize("n_keep", [0, 4])
def test_what_was_moved_is_not_reused(n_keep: int, tmp_path: Path) -> None:
    options = OPTIONS | {"max_tokens": 150}
    with Model(write_glm4moe(tmp_path / "tiny.gguf"), draft="mtp", n_ctx=64, n_threads=1) as model:
        prompt = list(range(30, 48))
        generation = model.generate(prompt, n_keep=n_keep, **options)
        finish(generation)
        held: list[int] = []
        for token in [*prompt, *generation.tokens]:
            held.append(token)
            if len(held) > 64:
                del held[n_keep : n_keep + (64 - n_keep) // 2]
        again = model.generate(held[:20], max_tokens=20, temperature=0, cache_prompt=True)
        finish(again)
        alone = model.generate(held[:20], max_tokens=20, temperature=0)
        finish(alone)
        assert again.tokens == alone.tokens
        assert again.n_cached == n_keep


def test_a_context_that_cannot_move_positions_ends_the_text(load: Callable[..., Model]) -> None:
    """llama.cpp moves none of step35, whose layers rotate different parts of a head."""
    with load(n_ctx=64) as model:
        generation = model.generate(FRANCE, max_tokens=150, ignore_eos=True, n_keep=4)
        finish(generation)
        assert (generation.finish_reason, generation.is_truncated) == ("context", True)


def test_a_full_context_may_keep_the_whole_prompt(tmp_path: Path) -> None:
    prompt = list(range(30, 48))

    def tokens(n_keep: int) -> list[int]:
        with Model(write_glm4moe(tmp_path / "tiny.gguf"), draft="none", n_ctx=64, n_threads=1) as model:
            generation = model.generate(prompt, temperature=0, max_tokens=100, ignore_eos=True, n_keep=n_keep)
            finish(generation)
            return list(generation.tokens)

    assert tokens(-1) == tokens(len(prompt)) != tokens(0)


def test_sequences_may_share_the_context_of_one(tmp_path: Path) -> None:
    with Model(write_glm4moe(tmp_path / "tiny.gguf"), n_ctx=64, n_cells=0, n_seq_max=3, n_threads=1) as model:
        assert (model.n_ctx, model.session.n_cells) == (64, 64)
