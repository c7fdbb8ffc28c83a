"""Text with drafts on the embedded model, with the whole chain: the text of plain decoding, or its distribution."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from machine import needs_exact_texts
from pymtp import Chunk, Generation, Model, SamplingParams
from pymtp.drafting.mtp import MtpDrafter
from pymtp.engine.session import Session
from pymtp.sampling.chain import Sampler
from pymtp.sampling.logprobs import TokenLogprobs, token_logprobs
from pymtp.serving.make_sequence import ModelTraits, make_sequence
from pymtp.serving.params import GenerationParams
from pymtp.serving.passes import run_round

pytestmark = [pytest.mark.model, needs_exact_texts]

APPLES = "Tom has 3 apples and buys 4 more. How many apples does he have?"
SEA = "Tell me about the sea."

REPETITIONS = {"repeat_penalty": 1.2, "repeat_last_n": 48, "presence_penalty": 0.2, "dry_multiplier": 0.8}
"""What looks at the history."""


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[..., Model]]:
    """Loads the embedded model once for each set of options; `draft_max=0` decodes plainly."""
    models: dict[tuple[object, ...], Model] = {}

    def load(**options: Any) -> Model:
        key = tuple(sorted(options.items()))
        if key not in models:
            models[key] = Model(n_ctx=512, n_threads=1, **options)
        return models[key]

    yield load
    for model in models.values():
        model.close()


def chat(model: Model, question: str, answer: str = "") -> str:
    return model.chat_prompt([{"role": "user", "content": question}]) + answer


def generate(model: Model, prompt: str | Sequence[int], **options: Any) -> Generation:
    """A text that is made to its end."""
    generation = model.generate(prompt, **options)
    list(generation)
    return generation


@pytest.mark.parametrize("n_draft", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_greedy_text_with_penalties_and_dry_equals_plain_decoding(load: Callable[..., Model], n_draft: int) -> None:
    sampling = SamplingParams(temperature=0, **REPETITIONS)  # type: ignore[arg-type]
    n_accepted = 0
    for prompt in (chat(load(draft_max=0), APPLES), chat(load(draft_max=0), SEA), "import os\nimport sys\n\ndef main("):
        options = {"sampling": sampling, "max_tokens": 50, "ignore_eos": True}
        plain = generate(load(draft_max=0), prompt, **options)
        drafting = generate(load(draft_max=n_draft), prompt, **options)
        assert drafting.tokens == plain.tokens
        n_accepted += drafting.stats.accepted
    without = generate(
        load(draft_max=0), prompt, sampling=SamplingParams(temperature=0), max_tokens=50, ignore_eos=True
    )
    assert without.tokens != plain.tokens
    assert n_accepted > 25


CHAINS = {
    "default": {"temperature": 1.0},
    "history": {"temperature": 1.0, **REPETITIONS},
    "XTC": {"temperature": 1.0, "xtc_probability": 0.5, "min_p": 0.02},
    "typical": {"temperature": 1.2, "typical_p": 0.9, "top_k": 0, "dynatemp_range": 0.3},
}


@pytest.mark.parametrize("n_draft", [1, 2, 3])
@pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
def test_the_same_seed_gives_the_plain_text_with_greedy_drafts(
    load: Callable[..., Model], options: dict[str, Any], n_draft: int
) -> None:
    request = {"sampling": SamplingParams(seed=7, **options), "max_tokens": 60, "ignore_eos": True}
    plain = generate(load(draft_max=0), chat(load(draft_max=0), SEA), **request)
    drafting = generate(load(draft_max=n_draft), chat(load(draft_max=0), SEA), draft_pick="greedy", **request)
    assert drafting.tokens == plain.tokens
    assert drafting.stats.accepted > 5


def test_the_same_seed_gives_the_plain_text_with_an_adaptive_length(load: Callable[..., Model]) -> None:
    options = {"sampling": SamplingParams(temperature=1, seed=7), "max_tokens": 60, "ignore_eos": True}
    plain = generate(load(draft_max=0), chat(load(draft_max=0), SEA), **options)
    adapting = [generate(load(draft_max="auto"), chat(load(draft_max=0), SEA), **options) for _ in range(3)]
    assert all(each.tokens == plain.tokens for each in adapting)
    assert sum(each.stats.drafted for each in adapting) > 0


@pytest.mark.parametrize("draft_pick", ["greedy", "sample", "auto"])
def test_the_same_seed_repeats_the_text_and_another_seed_does_not(load: Callable[..., Model], draft_pick: str) -> None:
    model = load(draft_max=3)
    texts = [
        generate(
            model,
            chat(model, SEA),
            sampling=SamplingParams(temperature=1, seed=seed),
            max_tokens=40,
            draft_pick=draft_pick,
        ).text
        for seed in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_each_request_of_a_batch_has_its_own_random_generators(load: Callable[..., Model]) -> None:
    """The same requests alone and together, with drawn drafts, and equal and different seeds."""
    alone, together = load(draft_max=3), load(draft_max=3, n_seq_max=3, kv_unified=False)
    prompt = chat(alone, SEA)
    sampling = [SamplingParams(temperature=1, seed=seed, xtc_probability=0.3) for seed in (1, 1, 2)]
    expected = [generate(alone, prompt, sampling=one, max_tokens=30, draft_pick="sample").tokens for one in sampling]
    made = [together.generate(prompt, sampling=one, max_tokens=30, draft_pick="sample") for one in sampling]
    for generation in made:
        list(generation)
    assert [generation.tokens for generation in made] == expected
    assert expected[0] == expected[1] != expected[2]


FILTERED = SamplingParams(
    temperature=1,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    dry_allowed_length=1,
    **REPETITIONS,  # type: ignore[arg-type]
)


def first_tokens(
    model: Model, seeds: range, sampling: SamplingParams = FILTERED, **options: Any
) -> Counter[tuple[int, ...]]:
    """The first four tokens of texts, each token as one of three classes."""
    prompt = model.vocabulary.tokenize("the sea and the sea and")
    options |= {"max_tokens": 4, "ignore_eos": True}
    made = [model.generate(prompt, sampling=replace(sampling, seed=seed), **options) for seed in seeds]
    for generation in made:
        list(generation)
    return Counter(tuple(token % 3 for token in generation.tokens) for generation in made)


def differ(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> bool:
    """Whether two samples of the same size are of different distributions (chi-square, p = 0.0001)."""
    cells = [cell for cell in one | other if one[cell] + other[cell] >= 10]
    squares = [(one[cell] - other[cell]) ** 2 / (one[cell] + other[cell]) for cell in cells]
    df = len(cells)
    return bool(sum(squares) > df * (1 - 2 / (9 * df) + 3.72 * np.sqrt(2 / (9 * df))) ** 3)


@pytest.mark.slow
def test_the_first_tokens_are_distributed_as_in_plain_decoding(load: Callable[..., Model]) -> None:
    plain, drafting = load(draft_max=0, n_seq_max=16), load(draft_max=3, n_seq_max=16)
    n_texts = 2000
    expected = first_tokens(plain, range(n_texts))
    for i, accept in enumerate(("rejection", "rejection-tokenwise"), 1):
        seeds = range(i * n_texts, (i + 1) * n_texts)
        assert not differ(first_tokens(drafting, seeds, draft_pick="sample", accept=accept), expected)
    # what the check has to see: another chain
    forgetful = replace(FILTERED, dry_multiplier=0, repeat_penalty=1, presence_penalty=0)
    assert differ(first_tokens(plain, range(n_texts), forgetful), expected)


@pytest.mark.parametrize("n_reduced", [0, 25])
@pytest.mark.parametrize("limit", ["all", 4000, "listed"])
def test_sampling_from_a_row_equals_sampling_from_its_logits(
    load: Callable[..., Model], n_reduced: int, limit: int | str
) -> None:
    """Also if only candidates are fetched, and if drafts are limited to a part of the vocabulary."""
    listed = np.random.default_rng(1).choice(8192, 3000, replace=False).tolist()
    model = load(draft_max=3, draft_vocab=tuple(listed) if limit == "listed" else limit)
    session = model.session
    session.truncate(0)
    session.reduce_logits(n_reduced, also_on_host=True)
    prompt = model.vocabulary.tokenize(chat(model, SEA))
    session.decode([Chunk(prompt[:-1], 0, feed=True)])
    for options in (
        {"top_k": 10},
        {"top_k": 10, "repeat_penalty": 1.3, "repeat_last_n": 8},
        {"top_k": 0, "top_n_sigma": 1},
    ):
        sampler = Sampler(SamplingParams(temperature=1, **options), model.vocabulary, history=prompt)  # type: ignore[arg-type]
        session.decode([Chunk([prompt[-1], 300, 301], len(prompt) - 1, logits="all")])
        rows = [sampler.distribution(row) for row in session.rows()]
        expected = [sampler.distribution(row) for row in session.logits]
        session.truncate(len(prompt) - 1)
        session.draft(0, 3, [Chunk(prompt[-1:], len(prompt) - 1)])
        rows += [sampler.draft_distribution(row) for row in session.draft_rows()]
        expected += [sampler.draft_distribution(row) for row in session.draft_logits]
        assert len(rows) == 4
        for got, want in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(got.tokens, want.tokens)
            np.testing.assert_array_equal(got.probs, want.probs)
        if limit == "listed":
            assert set(rows[3].tokens) <= set(listed)
    session.reduce_logits(0)
    session.truncate(0)


def close(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    """Whether the same tokens have the same log-probabilities, but for the order of equal ones."""
    values = [[logprob for _, logprob in top] for top in (one, other)]
    return np.allclose(*values, atol=1e-4) and {i for i, p in one[:-1]} <= {i for i, p in other}


def plain_logprobs(
    model: Model, prompt: list[int], tokens: list[int], params: SamplingParams, n: int
) -> list[TokenLogprobs]:
    """Those of plain decoding, which emits `tokens`."""
    sampler = Sampler(params, model.vocabulary, history=prompt)
    session = model.session
    session.truncate(0)
    session.decode([Chunk(prompt, 0)])
    out = []
    for i, token in enumerate(tokens):
        row = session.logits[0].copy()
        out.append(token_logprobs(row, sampler.distribution(row), token, n))
        sampler.accept(token)
        session.decode([Chunk([token], len(prompt) + i)])
    session.truncate(0)
    return out


@pytest.mark.parametrize("draft_pick", ["greedy", "sample", "auto"])
def test_logprobs_of_drafted_and_other_tokens_equal_those_of_plain_decoding(
    load: Callable[..., Model], draft_pick: str
) -> None:
    plain, drafting = load(draft_max=0), load(draft_max=3)
    params = SamplingParams(temperature=1, seed=4, **REPETITIONS)  # type: ignore[arg-type]
    prompt = plain.vocabulary.tokenize(chat(plain, SEA))
    made = generate(drafting, prompt, sampling=params, max_tokens=50, logprobs=5, draft_pick=draft_pick)
    expected = plain_logprobs(plain, prompt, made.tokens, params, 5)
    assert made.stats.accepted >= 5
    assert len(made.logprobs) == len(made.tokens)
    for got, want in zip(made.logprobs, expected, strict=True):
        assert got.token == want.token
        assert got.logprob == pytest.approx(want.logprob, abs=1e-4)
        assert got.chain_logprob == pytest.approx(want.chain_logprob, abs=1e-4)
        assert close(got.top, want.top)
        assert close(got.chain_top, want.chain_top)
    if draft_pick == "greedy":
        again = generate(plain, prompt, sampling=params, max_tokens=50, logprobs=5)
        assert again.tokens == made.tokens
        assert [each.chain_logprob for each in again.logprobs] == [each.chain_logprob for each in made.logprobs]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "is_ripe": {"type": "boolean"},
        "kind": {"enum": ["fruit", "tool"]},
    },
    "required": ["name", "is_ripe", "kind"],
    "additionalProperties": False,
}


def check_json(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["name", "is_ripe", "kind"]
    assert isinstance(value["is_ripe"], bool)
    assert len(value["name"]) <= 12
    assert value["kind"] in ("fruit", "tool")


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("draft_pick", "accept"),
    [("greedy", "auto"), ("sample", "auto"), ("sample", "rejection-tokenwise"), ("auto", "auto")],
)
def test_drafts_follow_a_schema_with_penalties_and_logprobs(
    load: Callable[..., Model], draft_pick: str, accept: str, temperature: float
) -> None:
    model = load(draft_max=3)
    drafted = accepted = 0
    for seed in range(2):
        params = SamplingParams(temperature=temperature, seed=seed, **REPETITIONS)  # type: ignore[arg-type]
        made = generate(
            model,
            chat(model, APPLES),
            sampling=params,
            json_schema=SCHEMA,
            draft_pick=draft_pick,
            accept=accept,
            max_tokens=150,
            logprobs=2,
        )
        assert made.finish_reason == "eog"
        check_json(made.text)
        assert len(made.logprobs) == len(made.tokens)
        assert all(each.chain_logprob > -np.inf for each in made.logprobs)
        drafted += made.stats.drafted
        accepted += made.stats.accepted
    # what the grammar leaves no choice about is drafted, and kept
    assert drafted > accepted > 10


@pytest.mark.parametrize("draft_pick", ["greedy", "sample"])
def test_a_draft_vocab_without_tokens_of_the_grammar_drafts_nothing(
    load: Callable[..., Model], draft_pick: str
) -> None:
    model = load(draft_max=3, draft_vocab=tuple(range(7000, 7100)))
    options = {"sampling": SamplingParams(temperature=1, seed=1), "draft_pick": draft_pick, "max_tokens": 20}
    made = generate(model, chat(model, APPLES), json_schema={"enum": ["apple", "pear"]}, **options)
    assert json.loads(made.text) in ("apple", "pear")
    assert made.stats.drafted == 0


@pytest.mark.parametrize("n_draft", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("temperature", [0, 1])
def test_constrained_text_with_greedy_drafts_equals_plain_decoding(
    load: Callable[..., Model], temperature: float, n_draft: int
) -> None:
    grammar = 'root ::= "The " [a-z ]{5,40} ("." | "!") ("\\n" [a-z]+ ":" [0-9]{1,3}){2,4}'
    options = {
        "sampling": SamplingParams(temperature=temperature, seed=9, xtc_probability=0.3, top_k=20),
        "grammar": grammar,
        "max_tokens": 120,
    }
    plain = generate(load(draft_max=0), chat(load(draft_max=0), SEA), **options)
    drafting = generate(load(draft_max=n_draft), chat(load(draft_max=0), SEA), draft_pick="greedy", **options)
    assert drafting.tokens == plain.tokens
    assert drafting.stats.accepted > 0


@pytest.mark.parametrize(
    ("draft_pick", "accept"),
    [
        ("greedy", "auto"),
        *(pytest.param("sample", accept, marks=pytest.mark.slow) for accept in ("auto", "rejection")),
    ],
)
def test_a_grammar_applies_after_thinking_that_the_prompt_leaves_open(
    load: Callable[..., Model], draft_pick: str, accept: str
) -> None:
    model = load(draft_max=3)
    n_done = 0
    for seed in range(4):
        made = generate(
            model,
            chat(model, APPLES, "<think>\n"),
            sampling=SamplingParams(temperature=0.8, seed=seed),
            json_schema=SCHEMA,
            draft_pick=draft_pick,
            accept=accept,
            max_tokens=250,
        )
        thought, end, answer = made.text.partition("</think>")
        assert made.stats.drafted > 10
        if made.finish_reason == "eog" and end:
            assert "=" in thought
            check_json(answer)
            n_done += 1
    assert n_done >= 2


def test_given_thinking_tags_delimit_the_thinking(load: Callable[..., Model]) -> None:
    """The model does not know these tags: they span tokens that also hold other text."""
    model = load(draft_max=3)
    texts = [
        generate(
            model,
            "(thinks) The sea is blue. It was",
            sampling=SamplingParams(temperature=0.8, seed=seed),
            grammar='root ::= " <" [a-z]{1,10} ">"',
            thinking_tags=("(thinks)", ", "),
            draft_pick="sample",
            max_tokens=200,
        ).text
        for seed in range(5)
    ]
    over = [text for text in texts if ", " in text]
    assert len(over) > 1
    assert all(re.fullmatch(r".+, \S* <[a-z]{1,10}>", text, re.DOTALL) and text.count(", ") == 1 for text in over)


def test_a_stop_string_inside_an_accepted_block_cuts_tokens_and_cache(load: Callable[..., Model]) -> None:
    """The session then holds exactly the cut tokens, and drafts what a fresh session drafts."""
    model = load(draft_max=3)
    vocabulary = model.vocabulary
    prompt = vocabulary.tokenize("def main(argv):\n    import os\n    import sys\n    import")
    params = GenerationParams(sampling=SamplingParams(temperature=0), ignore_eos=True)
    whole = generate(model, prompt, params=params, max_tokens=60)
    assert whole.stats.accepted > 20

    session = model.session
    n_inside = 0
    for n_kept in range(3, 30, 3):
        session.truncate(0)
        drafter = MtpDrafter(session)
        one = make_sequence(list(prompt), params, ModelTraits(vocabulary, MtpDrafter.traits, session.n_ctx, 3))
        emitted: list[int] = []

        def cut(tokens: Sequence[int], emitted: list[int] = emitted, n_kept: int = n_kept) -> int | None:
            n_left = n_kept - len(emitted)
            emitted += tokens[:n_left]
            return n_left if n_left <= len(tokens) else None

        one.cut = cut
        while not one.finish_reason:
            (played,) = run_round(session, drafter, [one.share(0, session.n_ubatch)], 1, list)
            one.advance(played)
        assert one.finish_reason == "stop"
        assert one.history == [*prompt, *whole.tokens[:n_kept]]
        n_inside += played.n_accepted == len(played.tokens)
        if played.proposal.n_heads:
            check_state(session, one.history, one.n_decoded, load(draft_max=3, n_seq_max=1, n_batch=512).session)
    assert n_inside > 2
    session.truncate(0)


def check_state(session: Session, history: list[int], n_decoded: int, fresh: Session) -> None:
    """The session holds all but the last token of `history`, for the trunk and the heads."""
    last = [Chunk(history[n_decoded:], n_decoded)]
    assert n_decoded == len(history) - 1
    fresh.truncate(0)
    fresh.decode([Chunk(history[:-1], 0, feed=True)])
    assert session.draft_tokens(last, 3) == fresh.draft_tokens(last, 3)
    session.decode(last)
    fresh.decode(last)
    np.testing.assert_array_equal(session.logits, fresh.logits)


@pytest.mark.parametrize("draft_max", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1)), 3])
def test_a_stop_string_ends_the_text_at_the_right_character(load: Callable[..., Model], draft_max: int) -> None:
    model = load(draft_max=draft_max)
    options = {"sampling": SamplingParams(temperature=0), "max_tokens": 60, "ignore_eos": True}
    whole = generate(load(draft_max=0), chat(model, SEA), **options)
    for at in range(10, 120, 18):
        stop = whole.text[at : at + 4]
        made = generate(model, chat(model, SEA), stop=stop, **options)
        assert made.text == whole.text[: whole.text.index(stop)]
        assert made.tokens == whole.tokens[: len(made.tokens)]
        assert made.finish_reason == "stop"
        said = b"".join(map(model.vocabulary.piece, made.tokens)).decode(errors="replace")
        assert stop in said
        assert stop not in b"".join(map(model.vocabulary.piece, made.tokens[:-1])).decode(errors="replace")
