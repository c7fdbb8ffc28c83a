"""Generation with drafts against generation without, on the embedded model."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from contexts import ONE_FREED, ONE_MADE, contexts
from log_level import logged
from machine import needs_exact_texts
from pymtp import Chunk, Model, SamplingParams
from pymtp.errors import ContextFull, InvalidParameter

pytestmark = [pytest.mark.model, needs_exact_texts]

GREEDY = SamplingParams(temperature=0)

# a fifth of them code, a fifth raw prose, the rest chat
QUESTIONS = [
    "Write a Python function that reverses a string.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write a Python class for a stack.",
    "Write a Python function that counts the words of a text.",
    "What is the capital of France?",
    "Tell me about the sea.",
    "What does the `ls` command do?",
    "What does the `tar` command do?",
    "How many legs does a spider have?",
    "True or false: whales are fish.",
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "A train runs 60 miles in an hour. How far does it run in 3 hours?",
    "What is a synonym of happy?",
    "Why is the sky blue?",
    "Continue this story:\n\nThe old man looked at the door and waited.",
    "Give three rules for staying healthy.",
]
TEXTS = [
    "It was a dark night, and the wind went over the hills like",
    "The function returns a list of all the values that",
    "import os\nimport sys\n\ndef main(",
    "class Node:\n    def __init__(self, value",
]


@dataclass(frozen=True)
class Difference:
    """Where a text with drafts first leaves the plain one, and by how little plain decoding decided there."""

    prompt: str
    n_draft: int
    index: int
    gap: float


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[..., Model]]:
    """Loads the embedded model once for each set of options; `draft_max=0` decodes plainly."""
    models: dict[tuple[object, ...], Model] = {}

    def load(**options: object) -> Model:
        key = tuple(sorted(options.items()))
        if key not in models:
            models[key] = Model(**{"n_threads": 1, **options})  # type: ignore[arg-type]
        return models[key]

    yield load
    for model in models.values():
        model.close()


def prompts(model: Model) -> list[str]:
    return [model.chat_prompt([{"role": "user", "content": question}]) for question in QUESTIONS] + TEXTS


def tokens(model: Model, prompt: str | list[int], **options: object) -> list[int]:
    generation = model.generate(prompt, **options)  # type: ignore[arg-type]
    for _ in generation:
        pass
    return generation.tokens


def first_difference(plain: Model, prompt: str, expected: list[int], got: list[int], n_draft: int) -> Difference | None:
    index = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if index is None:
        assert len(expected) == len(got)
        return None
    session = plain.session
    session.truncate(0)
    prefix = plain.vocabulary.tokenize(prompt) + expected[:index]
    session.decode([Chunk(prefix, 0)])
    best, second = np.sort(session.logits[0])[:-3:-1]
    return Difference(prompt, n_draft, index, float(best - second))


LONG = {"sampling": GREEDY, "max_tokens": 64, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain_text(load: Callable[..., Model]) -> Callable[[str], list[int]]:
    """The tokens of plain decoding after a prompt."""
    return functools.cache(lambda prompt: tokens(load(draft_max=0), prompt, **LONG))


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("n_draft", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3)), 4])
def test_greedy_text_with_drafts_equals_plain_decoding(
    load: Callable[..., Model], plain_text: Callable[[str], list[int]], n_draft: int, every: int
) -> None:
    plain, drafting = load(draft_max=0), load(draft_max=n_draft)
    begins = prompts(plain)[::every]
    differences, n_accepted = [], drafting.stats.accepted
    for prompt in begins:
        expected = plain_text(prompt)
        got = tokens(drafting, prompt, **LONG)
        difference = first_difference(plain, prompt, expected, got, n_draft)
        if difference:
            differences.append(difference)
    print(*differences, sep="\n")
    assert drafting.stats.accepted - n_accepted > 10 * len(begins)
    assert all(difference.gap < 0.02 for difference in differences), differences
    assert len(differences) <= len(begins) // 100 + 1


@pytest.mark.parametrize("n_draft", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_same_seed_gives_the_plain_text_at_temperature_1(load: Callable[..., Model], n_draft: int) -> None:
    plain, drafting = load(draft_max=0), load(draft_max=n_draft)
    sampling = SamplingParams(temperature=1, seed=7)
    for prompt in prompts(plain)[::5]:
        expected = tokens(plain, prompt, sampling=sampling, max_tokens=60)
        assert tokens(drafting, prompt, sampling=sampling, max_tokens=60, draft_pick="greedy") == expected


@pytest.mark.parametrize(("draft_max", "is_known"), [(2, False), ("auto", True)])
def test_the_speed_of_plain_decoding_is_never_a_guess(draft_max: int | Literal["auto"], is_known: bool) -> None:
    with Model(n_threads=1, n_ctx=256, draft_max=draft_max) as model:
        "".join(model.generate("def add(a, b):", temperature=0, max_tokens=30, ignore_eos=True))
        assert (model.plain_tok_s is not None) == is_known


@pytest.mark.parametrize("n_before", [0, 600])  # from 512 cells on, attention of one row may be summed in parts
def test_verified_rows_equal_single_steps(load: Callable[..., Model], n_before: int) -> None:
    model = load(draft_max=4, n_ctx=1024, n_threads=2, flash_attn="on")
    session = model.session
    text = (model.vocabulary.tokenize(" ".join(prompts(model))) * 2)[: n_before + 20]
    session.truncate(0)
    if n_before:
        session.decode([Chunk(text[:n_before], 0)])
    single = {}
    for i in range(n_before, len(text)):
        session.decode([Chunk(text[i : i + 1], i)])
        single[i] = session.logits[0].copy()
    for n_rows in (2, 3, 4, 5):
        session.truncate(n_before)
        for i in range(n_before, len(text), n_rows):
            rows = text[i : i + n_rows]
            session.decode([Chunk(rows, i, logits="all")])
            np.testing.assert_array_equal(session.logits, [single[i + j] for j in range(len(rows))])


@pytest.mark.parametrize("n_tokens", [63, 64, 65, 128, 150])
def test_prompts_around_the_size_of_an_ubatch(load: Callable[..., Model], n_tokens: int) -> None:
    """Ubatches of 64 rows; prompts that are shorter, as long, longer, twice as long, and longer than that."""
    plain, drafting = (load(draft_max=k, n_ubatch=64, n_batch=128) for k in (0, 3))
    prompt = (plain.vocabulary.tokenize(" ".join(TEXTS)) * 4)[:n_tokens]
    options = {"sampling": GREEDY, "max_tokens": 20, "ignore_eos": True}
    before, n_rounds = drafting.session.counters, drafting.stats.rounds
    assert tokens(drafting, prompt, **options) == tokens(plain, prompt, **options)
    after, n_rounds = drafting.session.counters, drafting.stats.rounds - n_rounds
    n_ubatches = -(-n_tokens // 64)
    assert after.n_trunk_passes - before.n_trunk_passes == n_ubatches + n_rounds
    # the heads see a prompt in the trunk's own passes; the last round may have no room for drafts
    assert 0 <= n_rounds - (after.n_head_passes - before.n_head_passes) <= 1


@pytest.mark.parametrize("n_draft", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3)), 4])
def test_generation_up_to_a_full_context(load: Callable[..., Model], n_draft: int) -> None:
    plain, drafting = load(draft_max=0, n_ctx=128), load(draft_max=n_draft, n_ctx=128)
    prompt = plain.vocabulary.tokenize(TEXTS[0])
    results = []
    for model in (plain, drafting):
        generation = model.generate(prompt, sampling=GREEDY, ignore_eos=True)
        list(generation)
        assert generation.finish_reason == "context"
        # the last token needs no cell of its own
        assert len(prompt) + len(generation.tokens) == model.session.n_ctx + 1
        results.append(generation.tokens)
    assert results[0] == results[1]


def test_a_prompt_that_fills_the_context_still_gives_a_token(load: Callable[..., Model]) -> None:
    model = load(draft_max=3, n_ctx=256)
    n_ctx = model.session.n_ctx
    assert len(tokens(model, [5] * (n_ctx - 1), sampling=GREEDY, ignore_eos=True)) == 2
    with pytest.raises(ContextFull, match=f"{n_ctx} tokens, the context only {n_ctx}"):
        tokens(model, [5] * n_ctx)


def test_an_end_token_inside_an_accepted_block_ends_the_generation(load: Callable[..., Model]) -> None:
    plain, drafting = load(draft_max=0), load(draft_max=4)
    n_inside = 0
    for question in QUESTIONS[:4]:
        prompt = plain.chat_prompt([{"role": "user", "content": question}])
        expected = tokens(plain, prompt, sampling=GREEDY, max_tokens=200)
        generation = drafting.generate(prompt, sampling=GREEDY, max_tokens=200)
        text = "".join(generation)
        assert generation.tokens == expected
        if generation.finish_reason == "eog":
            assert generation.tokens[-1] in drafting.vocabulary.end_of_generation
            assert not set(generation.tokens[:-1]) & drafting.vocabulary.end_of_generation
            assert "<|im_end|>" not in text
            stats = generation.stats
            # had the end been a recovered or bonus token, each round would have emitted one more than it accepted
            n_inside += stats.generated_tokens == stats.accepted + stats.rounds
    assert n_inside > 0


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 5])
def test_max_tokens_can_cut_inside_an_accepted_block(load: Callable[..., Model], max_tokens: int) -> None:
    plain, drafting = load(draft_max=0), load(draft_max=4)
    prompt = prompts(plain)[0]
    generation = drafting.generate(prompt, sampling=GREEDY, max_tokens=max_tokens)
    text = "".join(generation)
    assert generation.tokens == tokens(plain, prompt, sampling=GREEDY, max_tokens=max_tokens)
    assert generation.stats.generated_tokens == len(generation.tokens) == max_tokens
    assert generation.finish_reason == "length"
    assert text == b"".join(map(drafting.vocabulary.piece, generation.tokens)).decode(errors="replace")


def test_characters_of_several_tokens_come_out_whole(load: Callable[..., Model]) -> None:
    model = load(draft_max=3)
    text = "naïve café, 日本語, 🙂"
    ids = model.vocabulary.tokenize(text)
    assert len(ids) > len(text) / 2
    assert b"".join(map(model.vocabulary.piece, ids)).decode() == text
    sampling = SamplingParams(temperature=2, top_k=0, top_p=1, min_p=0, seed=1)
    generation = model.generate(ids, sampling=sampling, max_tokens=100)
    written = ""
    for piece in generation:
        written += piece
        assert b"".join(map(model.vocabulary.piece, generation.tokens)).decode(errors="replace").startswith(written)
    assert written == b"".join(map(model.vocabulary.piece, generation.tokens)).decode(errors="replace")


def test_a_new_generation_keeps_nothing_of_the_one_before(load: Callable[..., Model]) -> None:
    model = load(draft_max=3)
    first, other = prompts(model)[:2]
    expected = tokens(model, first, sampling=GREEDY, max_tokens=40)
    started = model.generate(other, sampling=GREEDY, max_tokens=40)
    next(started)
    assert tokens(model, first, sampling=GREEDY, max_tokens=40) == expected


def requests(model: Model) -> list[dict[str, object]]:
    """Five different requests."""
    return [
        {
            "prompt": prompt,
            "sampling": SamplingParams(temperature=i % 2, seed=i),
            "max_tokens": 20 + 9 * i,
            "ignore_eos": i % 3 > 0,
            "draft_pick": "greedy",  # what is drawn depends on how much is drafted
        }
        for i, prompt in enumerate(prompts(model)[::4][:5])
    ]


def test_the_same_seed_gives_the_same_text_alone_and_together(load: Callable[..., Model]) -> None:
    """Three slots: requests are admitted together, while others generate, and into a used slot."""
    alone = load(draft_max=3, n_ubatch=64)
    together = load(draft_max=3, n_ubatch=64, n_seq_max=3, kv_unified=False)
    before = together.stats.accepted
    made = [together.generate(**request, draft_max=3 - i % 4) for i, request in enumerate(requests(alone))]  # type: ignore[arg-type]
    for request, generation in zip(requests(alone), made, strict=True):
        list(generation)
        assert generation.tokens == tokens(alone, **request)  # type: ignore[arg-type]
    assert together.stats.accepted > before


def test_requests_share_the_passes_of_a_unified_cache(load: Callable[..., Model]) -> None:
    model = load(draft_max=3, n_ubatch=64, n_seq_max=3)
    stats, before = model.stats, model.session.counters
    made = [model.generate(**request) for request in requests(model)]  # type: ignore[arg-type]
    for generation in made:
        list(generation)
    after = model.session.counters
    assert after.n_trunk_passes - before.n_trunk_passes < (model.stats - stats).rounds / 1.5
    assert [len(generation.tokens) for generation in made if generation.finish_reason == "length"] != []
    for generation in made:
        assert generation.text == b"".join(map(model.vocabulary.piece, generation.tokens)).decode(errors="replace")


def test_bad_requests_are_refused(load: Callable[..., Model]) -> None:
    model = load(draft_max=3)
    with pytest.raises(InvalidParameter, match="prompt"):
        model.generate([])
    with pytest.raises(InvalidParameter, match="max_tokens"):
        model.generate("x", max_tokens=-2)
    for options in ({"draft_max": 33}, {"draft_max": -1}, {"type_k": "q9"}, {"n_ubatch": 0}, {"draft": "eagle"}):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            Model(**options)  # type: ignore[arg-type]


def test_closing_frees_the_context(embedded_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with logged("debug"):
        with Model(embedded_model) as model:
            assert contexts(capfd) == ONE_MADE
            assert model.session.mtp_memory == "shared"
        assert contexts(capfd) == ONE_FREED
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.generate("x")


@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("accept", ["match", "rejection"])
def test_what_is_blocked_is_whole_and_leaves_its_slot(
    load: Callable[..., Model], draft_max: int, options: dict[str, Any], accept: Any
) -> None:
    """A grammar at whose end all that may follow, which is the end of the text, is banned."""
    model = load()
    grammar = 'root ::= "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"'
    bans = dict.fromkeys(model.vocabulary.end_of_generation, -math.inf)
    for _ in range(2):
        generation = model.generate(
            "0, ", grammar=grammar, logit_bias=bans, draft_max=draft_max, accept=accept, max_tokens=60, **options
        )
        assert "".join(generation) == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
        assert (generation.finish_reason, generation.error) == ("blocked", None)
        assert generation.stats.generated_tokens == len(generation.tokens)
    assert tokens(model, "One, two,", max_tokens=5, temperature=0) == tokens(
        load(draft_max=0), "One, two,", max_tokens=5, temperature=0
    )
