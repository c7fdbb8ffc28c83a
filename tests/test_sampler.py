"""The chain of samplers against llama.cpp's own, its history, and its random generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from llama_chain import LlamaChain
from pymtp.binding.library import ffi
from pymtp.errors import InvalidParameter, NotFinite, PymtpError
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.chain import Sampler, _init
from pymtp.sampling.distribution import Distribution
from pymtp.sampling.params import DEFAULT_SAMPLERS, SamplingParams

LOGITS = np.random.default_rng(3).standard_normal(100).astype(np.float32)

PLAIN = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=1)
"""Nothing but the softmax."""

# the same examples in every run; without this line other ones each time
REPEATABLE = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most, width=32)


def often(usual: object, strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Half of the time, or more often, what is usual."""
    return st.just(usual) | strategy


ORDERS = st.permutations(DEFAULT_SAMPLERS).flatmap(lambda names: st.integers(1, 9).map(lambda n: tuple(names[:n])))
WINDOWS = st.just(-1) | st.integers(0, 80)
PENALTIES = often(0, numbers(0, 2) | numbers(-2, 2))
BIASES = st.just(-np.inf) | numbers(-5, 0) | numbers(-5, 5)

PARAMS = st.builds(
    SamplingParams,
    samplers=st.just(DEFAULT_SAMPLERS) | ORDERS,
    seed=st.integers(0, 2**32 - 2),
    temperature=often(1, st.just(0) | numbers(0.125, 4)),
    dynatemp_range=often(0, numbers(0.125, 2)),
    dynatemp_exponent=numbers(0, 3),
    top_k=st.just(0) | st.just(40) | st.integers(1, 80) | st.integers(1, 30000),
    top_p=often(1, numbers(0, 1)),
    min_p=often(0, numbers(0, 0.125) | numbers(0, 1)),
    typical_p=often(1, numbers(0, 1)),
    top_n_sigma=often(-1, st.just(-1) | numbers(-1, 4)),
    xtc_probability=often(0, numbers(0, 1)),
    xtc_threshold=numbers(2**-20, 1),
    min_keep=often(0, st.just(0) | st.integers(0, 20)),
    repeat_last_n=WINDOWS,
    repeat_penalty=often(1, numbers(1, 2) | numbers(0.5, 2)),
    presence_penalty=PENALTIES,
    frequency_penalty=PENALTIES,
    dry_multiplier=often(0, numbers(0, 5)),
    dry_base=numbers(1, 3) | numbers(1, 1000),
    dry_allowed_length=st.integers(0, 5),
    dry_penalty_last_n=WINDOWS,
    logit_bias=often({}, st.dictionaries(st.integers(0, 9), BIASES, max_size=5)),
)
"""All of the chain's parameters, over their ranges, in any order of the samplers."""


def logits_of(rng: np.random.Generator, n_vocab: int, scale: float, share_impossible: float) -> np.ndarray:
    """All different but for those that are -inf. Flat for a small scale, peaked for a large one."""
    apart = 1e-6 * np.arange(n_vocab)
    logits = rng.permutation((np.sort(rng.standard_normal(n_vocab)) + apart) * scale).astype(np.float32)
    logits[rng.random(n_vocab) < share_impossible] = -np.inf
    logits[rng.integers(n_vocab)] = scale  # one at least can be
    return logits


def text_of(rng: np.random.Generator, n_vocab: int, n_tokens: int) -> list[int]:
    """Tokens out of a few, in phrases that return."""
    words = rng.choice(n_vocab, min(n_vocab, 8), replace=False)
    phrases = [rng.choice(words, rng.integers(1, 7)).tolist() for _ in range(4)]
    text: list[int] = []
    while len(text) < n_tokens:
        text += phrases[rng.integers(4)]
    return text[:n_tokens]


def check_equal(ours: Distribution, theirs: tuple[np.ndarray, np.ndarray]) -> None:
    """The order matters too: it decides what a seed draws."""
    np.testing.assert_array_equal(ours.tokens, theirs[0])
    np.testing.assert_allclose(ours.probs, theirs[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_examples", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_distributions_equal_those_of_llama_cpps_samplers_on_the_whole_vocabulary(n_examples: int) -> None:
    n_paths = np.zeros(2, int)

    @settings(REPEATABLE, max_examples=n_examples)
    @given(
        params=PARAMS,
        n_vocab=st.sampled_from([10, 60, 500, 3000, 3000, 20000, 20000]),
        n_history=st.integers(0, 120),
        scale=st.sampled_from([0.01, 1, 3, 10]),
        share_impossible=st.sampled_from([0, 0, 0.3]),
        seed=st.integers(0, 2**32 - 1),
    )
    @example(params=SamplingParams(), n_vocab=20000, n_history=60, scale=3, share_impossible=0, seed=1)
    @example(params=SamplingParams(), n_vocab=20000, n_history=0, scale=10, share_impossible=0.3, seed=2)
    @example(params=SamplingParams(top_k=20), n_vocab=3000, n_history=120, scale=3, share_impossible=0, seed=3)
    @example(params=SamplingParams(top_k=1), n_vocab=3000, n_history=30, scale=1, share_impossible=0, seed=4)
    def check(
        params: SamplingParams, n_vocab: int, n_history: int, scale: float, share_impossible: float, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        history = text_of(rng, n_vocab, n_history)
        theirs = LlamaChain(params, n_vocab)
        theirs.accept(*history)
        ours = Sampler(params, n_vocab=n_vocab, history=history)
        for _ in range(3):
            logits = logits_of(rng, n_vocab, scale, share_impossible)
            if history:  # tokens that repeat are likely
                logits[history[-8:]] += rng.random(len(history[-8:])).astype(np.float32) * 5
            assume(np.isfinite(np.delete(logits, [token for token, _ in params.logit_bias])).any())
            expected = theirs.apply(logits)
            assume(np.isfinite(expected[1]).all() and len(expected[1]))  # see test_a_temperature_close_to_0
            left = ours.distribution(logits)
            check_equal(left, expected)
            token = int(rng.choice(history or left.tokens))
            for chain in (theirs, ours):
                chain.accept(token)
        n_paths[int(0 < ours.n_candidates < n_vocab // 4)] += 3

    check()
    print("full and pruned:", n_paths)
    assert n_paths.min() > 10  # the first four examples; which others are drawn depends on the modules that are loaded


def drawn(chain: Sampler | LlamaChain, n_vocab: int, n_tokens: int = 300) -> list[int]:
    """What a chain samples from rows that are the same each time."""
    rng = np.random.default_rng(8)
    return [chain.sample(logits_of(rng, n_vocab, 2, 0.1)) for _ in range(n_tokens)]


CHAINS = {
    "default": {},
    "all that change logits": {
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "dry_multiplier": 0.8,
        "dry_allowed_length": 1,
        "top_n_sigma": 2.0,
        "typical_p": 0.9,
    },
    "XTC": {"xtc_probability": 0.5, "xtc_threshold": 0.05, "top_p": 1.0},
    "XTC first": {"xtc_probability": 0.3, "samplers": ("xtc", "top_k", "temperature")},
    "min-p first": {"top_k": 0, "top_p": 1.0},
    "nothing": {"samplers": ()},
    "dynamic temperature": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0},
    "adaptive-p": {"samplers": ("top_k", "temperature", "adaptive_p"), "adaptive_target": 0.3},
    "adaptive-p, min-p first": {"samplers": ("adaptive_p", "min_p", "temperature"), "adaptive_target": 0.5},
    "adaptive-p off": {"samplers": ("min_p", "adaptive_p")},
}


@pytest.mark.parametrize("n_vocab", [30, 3000])
@pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
def test_the_same_seed_draws_the_tokens_that_llama_cpp_draws(options: dict[str, object], n_vocab: int) -> None:
    params = SamplingParams(seed=42, temperature=1.1, **options)  # type: ignore[arg-type]
    tokens = drawn(Sampler(params, n_vocab=n_vocab), n_vocab)
    assert tokens == drawn(LlamaChain(params, n_vocab), n_vocab)
    assert len(set(tokens)) > 20
    assert tokens != drawn(Sampler(replace(params, seed=43), n_vocab=n_vocab), n_vocab)


def test_without_a_seed_xtc_does_not_depend_on_what_was_drawn() -> None:
    """With one, llama.cpp's XTC does: both have the same generator then."""
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    params = SamplingParams(samplers=("xtc",), xtc_probability=0.5, xtc_threshold=0.15)
    samplers = [Sampler(params, n_vocab=4) for _ in range(2000)]
    again = [sampler.sample(row) for sampler in samplers if sampler.sample(row) == 0]
    assert 0.1 < again.count(0) / len(again) < 0.3  # 0.4, where XTC leaves it: every other time


def test_without_a_seed_each_sampler_differs() -> None:
    params = SamplingParams(temperature=2)
    runs = {tuple(Sampler(params, n_vocab=100).sample(LOGITS) for _ in range(30)) for _ in range(3)}
    assert len(runs) == 3


def test_temperature_0_takes_the_most_likely_token_and_draws_nothing() -> None:
    sampler = Sampler(SamplingParams(temperature=0, xtc_probability=0.5, seed=1), n_vocab=100)
    assert [sampler.sample(LOGITS) for _ in range(5)] == [LOGITS.argmax()] * 5


def test_a_temperature_close_to_0_takes_the_most_likely_token() -> None:
    """The logits overflow, which makes llama.cpp's probabilities NaN."""
    params = SamplingParams(temperature=1, dynatemp_range=1, dynatemp_exponent=9, top_p=1, min_p=0)
    logits = LOGITS.copy()
    logits[7] = 60
    left = Sampler(params, n_vocab=100).distribution(logits)
    assert left.best[0] == 7
    assert left.prob(7) == 1


def test_xtc_keeps_the_last_possible_token() -> None:
    """With a threshold of 0, llama.cpp moves on to tokens whose logits are -inf."""
    params = SamplingParams(samplers=("xtc",), xtc_probability=1, xtc_threshold=0)
    logits = np.array([2, -np.inf, 1, 0, -np.inf], np.float32)
    assert Sampler(params, n_vocab=5).distribution(logits).tokens.tolist() == [3]


def test_sampled_frequencies_match_the_chains_probabilities() -> None:
    """top-k 4 of known probabilities at temperature 1, against exact values (chi-square, p = 0.001)."""
    probs = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    sampler = Sampler(SamplingParams(temperature=1, top_k=4, top_p=1, min_p=0, seed=11), n_vocab=5)
    n = 4000
    counts = np.bincount([sampler.sample(np.log(probs).astype(np.float32)) for _ in range(n)], minlength=5)
    expected = probs[:4] / probs[:4].sum() * n
    assert counts[4] == 0
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.27


@pytest.mark.parametrize("options", [{}, {"xtc_probability": 0.5}, {"repeat_penalty": 1.3, "dry_multiplier": 1}])
def test_drafts_do_not_change_what_the_target_samples(options: dict[str, float]) -> None:
    params = SamplingParams(temperature=1.5, seed=1, **options)  # type: ignore[arg-type]
    plain, drafting = (Sampler(params, n_vocab=100) for _ in range(2))
    rng = np.random.default_rng(5)
    for n_draft in [1, 3, 0, 2] * 10:
        for _ in range(n_draft):
            drafting.assume(drafting.draft_distribution(rng.standard_normal(100)).best[0])
        drafting.forget()
        assert drafting.sample(LOGITS) == plain.sample(LOGITS)


def test_drafts_pass_the_same_chain_as_the_target() -> None:
    """Penalties, DRY and XTC included: from the target's own logits, drafts get its distributions."""
    params = SamplingParams(seed=3, xtc_probability=0.5, repeat_penalty=1.3, dry_multiplier=1, dry_allowed_length=1)
    sampler = Sampler(params, n_vocab=100, history=[1, 2, 3, 1, 2])
    rng = np.random.default_rng(6)
    n_excluded = 0
    for _ in range(20):
        rows = (3 * rng.standard_normal((4, 100))).astype(np.float32)
        drafts = []
        for row in rows:
            drafts.append(sampler.draft_distribution(row))
            sampler.assume(drafts[-1].best[0])
        sampler.forget()
        for row, draft in zip(rows, drafts, strict=True):
            target = sampler.distribution(row)
            np.testing.assert_array_equal(draft.tokens, target.tokens)
            np.testing.assert_array_equal(draft.probs, target.probs)
            n_excluded += row.argmax() not in target.tokens
            sampler.accept(draft.best[0])
    assert n_excluded > 20


def test_what_xtc_draws_depends_only_on_the_position() -> None:
    """Not on rows that were not accepted, so the text is the same in rounds of any length."""
    params = replace(PLAIN, samplers=("xtc",), xtc_probability=0.5, xtc_threshold=0.02)
    one_by_one, in_blocks = (Sampler(params, n_vocab=100) for _ in range(2))
    targets = []
    for _ in range(60):
        targets.append(len(one_by_one.distribution(LOGITS).tokens))
        one_by_one.accept(5)
    position = 0
    while position < 55:
        n_rows, n_kept = position % 4 + 1, position % 3 % (position % 4 + 1)
        for i in range(n_rows):
            assert len(in_blocks.distribution(LOGITS).tokens) == targets[position + i]
            in_blocks.assume(5)
        in_blocks.forget()
        in_blocks.accept(*[5] * n_kept)
        in_blocks.accept(5)
        position += n_kept + 1
    assert len(set(targets)) == 2


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_banned_tokens_are_neither_drafted_nor_sampled(temperature: float) -> None:
    top = np.argsort(LOGITS)[::-1]
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), n_vocab=100, banned=top[:3].tolist())
    assert sampler.draft_ban == tuple(sorted(top[:3]))
    assert sampler.draft_distribution(LOGITS).best[0] == top[3]
    assert not {sampler.sample(LOGITS) for _ in range(200)} & set(top[:3].tolist())


def test_tokens_that_the_vocabulary_suppresses_are_banned() -> None:
    class Hundred:
        size, native, suppressed = 100, ffi.NULL, [int(LOGITS.argmax()), 4]

    sampler = Sampler(SamplingParams(temperature=0), Hundred(), banned=[2])  # type: ignore[arg-type]
    assert sampler.draft_ban == tuple(sorted({2, 4, int(LOGITS.argmax())}))
    assert sampler.sample(LOGITS) == np.argsort(LOGITS)[-2]


def test_drafts_from_a_part_of_the_vocabulary_pass_the_same_chain() -> None:
    params = SamplingParams(temperature=1, repeat_penalty=1.5, logit_bias={3: -1, 70: -np.inf}, top_k=5)
    sampler = Sampler(params, n_vocab=100, history=[1, 2, 60])
    everything = np.where(np.arange(100) < 50, LOGITS, -np.inf)
    part, whole = sampler.draft_distribution(LOGITS[:50]), sampler.draft_distribution(everything)
    np.testing.assert_array_equal(part.tokens, whole.tokens)
    np.testing.assert_array_equal(part.probs, whole.probs)


def test_there_is_no_draft_if_a_part_of_the_vocabulary_has_no_allowed_token() -> None:
    sampler = Sampler(PLAIN, n_vocab=100, banned=range(10))
    assert sampler.draft_distribution(LOGITS[:10]).tokens.tolist() == []
    assert sampler.draft_distribution(LOGITS[:11]).tokens.tolist() == [10]


def test_greedy_drafts_follow_the_raw_logits_unless_a_sampler_changes_the_top_token() -> None:
    assert Sampler(SamplingParams(), n_vocab=100).draft_ban == ()
    assert Sampler(SamplingParams(repeat_penalty=1.1), n_vocab=100).draft_ban is None


def test_n_candidates_top_logits_are_enough() -> None:
    n_vocab = 5000
    rng = np.random.default_rng(4)
    params = SamplingParams(repeat_penalty=1.3, dry_multiplier=1, logit_bias={1: -2, 2: -np.inf}, seed=1)
    sampler = Sampler(params, n_vocab=n_vocab, history=rng.integers(0, 40, 100).tolist())
    n = sampler.n_candidates
    assert 40 < n < n_vocab / 4
    for _ in range(50):
        row = logits_of(rng, n_vocab, 3, 0)
        row[:40] += 4
        row[-1] = -100
        cut = np.where(row >= np.sort(row)[-n], row, -np.inf).astype(np.float32)
        row[-1] = np.copysign(np.nan, -1)  # below all others: whoever looks at the whole row refuses it
        check_equal(sampler.distribution(cut), (lambda left: (left.tokens, left.probs))(sampler.distribution(row)))
        sampler.sample(row)
    with pytest.raises(NotFinite):
        Sampler(SamplingParams(samplers=()), n_vocab=n_vocab).sample(row)
    assert Sampler(replace(params, top_n_sigma=1.0), n_vocab=n_vocab).n_candidates == 0


def test_the_most_likely_token_takes_one_candidate() -> None:
    assert Sampler(SamplingParams(temperature=0), n_vocab=5000).n_candidates == 1
    assert Sampler(SamplingParams(temperature=0, typical_p=0.5), n_vocab=5000).n_candidates == 40


def test_rows_are_sampled_up_to_the_first_token_that_is_not_its_draft() -> None:
    rows = list(logits_of(np.random.default_rng(2), 4 * 100, 1, 0).reshape(4, 100))
    plain, drafted = (Sampler(SamplingParams(seed=3), n_vocab=100) for _ in range(2))
    tokens = [plain.sample(row) for row in rows]
    assert drafted.sample_until_other(rows[:3], [tokens[0], tokens[1] ^ 1]) == (tokens[:2], False)
    assert drafted.sample_until_other(rows[2:], tokens[2:]) == (tokens[2:], False)


def test_invalid_calls_of_a_sampler_are_refused() -> None:
    sampler = Sampler(PLAIN, n_vocab=100)
    for token in (-1, 100):
        with pytest.raises(PymtpError, match=f"token {token} is not in the vocabulary"):
            sampler.accept(token)
        with pytest.raises(PymtpError, match=f"token {token} is not in the vocabulary"):
            sampler.assume(token)
    for n in (0, 101):
        with pytest.raises(PymtpError, match=f"{n} logits for a vocabulary of 100"):
            sampler.sample(np.zeros(n, np.float32))
    with pytest.raises(PymtpError, match="mirostat and adaptive-p have no distribution"):
        Sampler(SamplingParams(mirostat=2), n_vocab=100).distribution(LOGITS)
    with pytest.raises(InvalidParameter, match="logit_bias must be token ids below 100, not 100"):
        Sampler(SamplingParams(logit_bias={100: 1.0}), n_vocab=100)


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["accept", "accept", "assume", "assume", "forget"]), st.lists(st.integers(0, 4), max_size=6)
    ),
    max_size=30,
)


def check_history(
    params: SamplingParams, steps: list[tuple[str, list[int]]], vocabulary: Vocabulary | None = None
) -> None:
    """A sampler that tokens were pushed to and taken from has what a fresh one has."""
    n_vocab = vocabulary.size if vocabulary else 40
    sampler = Sampler(params, vocabulary, n_vocab=n_vocab)
    row = logits_of(np.random.default_rng(1), n_vocab, 3, 0)
    accepted: list[int] = []
    assumed: list[int] = []
    for what, tokens in steps:
        if what == "forget":
            sampler.forget()
            assumed = []
        elif what == "accept":
            sampler.accept(*tokens)
            accepted, assumed = accepted + tokens, []
        else:
            for token in tokens:
                sampler.assume(token)
            assumed += tokens
        left = sampler.distribution(row)
        fresh = Sampler(params, vocabulary, n_vocab=n_vocab, history=accepted + assumed).distribution(row)
        np.testing.assert_array_equal(left.tokens, fresh.tokens)
        np.testing.assert_array_equal(left.probs, fresh.probs)


@settings(REPEATABLE, max_examples=150)
@given(
    params=st.builds(
        SamplingParams,
        repeat_last_n=st.integers(-1, 12),
        repeat_penalty=numbers(1, 2),
        frequency_penalty=numbers(0, 1),
        dry_multiplier=st.just(1),
        dry_allowed_length=st.integers(0, 4),
        dry_penalty_last_n=st.integers(-1, 30),
    ),
    steps=HISTORIES,
)
def test_tokens_that_are_undone_leave_no_trace(params: SamplingParams, steps: list[tuple[str, list[int]]]) -> None:
    check_history(params, steps)


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    """Of the embedded model, without its weights."""
    from pymtp.embedded import model_path

    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(model_path()).encode(), params)
    vocabulary = Vocabulary(model, None)
    yield vocabulary
    vocabulary.close()
    llama_cpp.llama_model_free(model)


BREAKERS = [
    ("\n", ":", '"', "*"),
    (),
    (". The", "he said", ",", "ing "),
    ("the sea was", " sea", "a long breaker that is cut behind forty bytes, and there it ends"),
    ("aaa", "aa", "ab", "é"),
]


@pytest.mark.model
@pytest.mark.parametrize("breakers", BREAKERS, ids=str)
def test_dry_breakers_end_repetitions_where_llama_cpp_does(vocabulary: Vocabulary, breakers: tuple[str, ...]) -> None:
    words = vocabulary.tokenize(
        'the sea was calm. The sea was: "calm", he said. aaab aaaab aab\n* the sea was rising and falling. The sé, '
        "a long breaker that is cut behind forty bytes, and there it ends"
    )
    rng = random.Random(1)
    n_penalised = 0
    for i in range(60):
        phrases = [words[at : at + rng.randrange(1, 12)] for at in (rng.randrange(len(words)) for _ in range(4))]
        history = [token for _ in range(rng.randrange(12)) for token in rng.choice(phrases)]
        params = SamplingParams(
            samplers=("dry", "temperature"),
            temperature=1,
            dry_multiplier=1,
            dry_base=1.3,
            dry_allowed_length=i % 5,
            dry_penalty_last_n=(-1, 20, 64)[i % 3],
            dry_sequence_breakers=breakers,
        )
        theirs = LlamaChain(params, vocabulary.size, vocabulary.native)
        theirs.accept(*history)
        logits = np.zeros(vocabulary.size, np.float32)
        left = Sampler(params, vocabulary, history=history).distribution(logits)
        check_equal(left, theirs.apply(logits))
        n_penalised += len(np.unique(left.probs)) > 1
    assert n_penalised > 20


@pytest.mark.model
@settings(REPEATABLE, max_examples=40)
@given(breakers=st.sampled_from(BREAKERS), steps=HISTORIES)
def test_breakers_that_are_undone_leave_no_trace(
    vocabulary: Vocabulary, breakers: tuple[str, ...], steps: list[tuple[str, list[int]]]
) -> None:
    words = vocabulary.tokenize("the sea was. The aaab:")
    params = SamplingParams(
        dry_multiplier=1, dry_allowed_length=1, dry_penalty_last_n=-1, dry_sequence_breakers=breakers
    )
    check_history(params, [(what, [words[token] for token in tokens]) for what, tokens in steps], vocabulary)


@pytest.mark.model
def test_breakers_are_looked_for_once(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []

    def counted(params: SamplingParams, *arguments: Any, **more: Any) -> Any:
        made.append(params.samplers)
        return _init(params, *arguments, **more)

    monkeypatch.setattr("pymtp.sampling.chain._init", counted)
    params = SamplingParams(dry_multiplier=0.7, dry_sequence_breakers=("looked for",))
    for seed in (1, 2):
        Sampler(replace(params, seed=seed), vocabulary)
    for without in ({"dry_multiplier": 0}, {"dry_multiplier": 1e-46}, {"mirostat": 1}, {"dry_penalty_last_n": 0}):
        Sampler(replace(params, **without), vocabulary)
    assert made == [("dry",), *[params.samplers] * 6]


@pytest.mark.model
def test_infill_equals_llama_cpps(vocabulary: Vocabulary) -> None:
    params = SamplingParams(samplers=("top_k", "top_p", "infill"), top_k=30, seed=5)
    theirs = LlamaChain(params, vocabulary.size, vocabulary.native)
    ours = Sampler(params, vocabulary)
    rng = np.random.default_rng(2)
    for _ in range(40):
        logits = logits_of(rng, vocabulary.size, 3, 0)
        left, probs = theirs.apply(logits)
        check_equal(ours.distribution(logits), (left, probs))


@pytest.mark.model
@pytest.mark.parametrize(
    "options",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ({}, {"top_k": 3})), {"top_p": 0.8, "temperature": 1.5}],
    ids=str,
)
def test_with_a_grammar_the_distribution_matches_what_is_sampled(
    vocabulary: Vocabulary, options: dict[str, float]
) -> None:
    """If the grammar refuses a token, another one is drawn, as in llama.cpp (chi-square, p = 0.0001)."""
    letters = [vocabulary.tokenize(letter)[0] for letter in "abcdef"]
    logits = np.full(vocabulary.size, -np.inf, np.float32)
    logits[letters] = [2, 1, 1.5, 0.5, 0, -0.5]
    params = replace(PLAIN, **options)

    def sampler(seed: int) -> Sampler:
        return Sampler(replace(params, seed=seed), vocabulary, grammar="root ::= [bdf]+")

    left = sampler(0).distribution(logits)
    assert left.probs.sum() == pytest.approx(1)
    assert set(left.tokens) <= {letters[1], letters[3], letters[5]}
    n = 1000
    counts = np.bincount([sampler(seed).sample(logits) for seed in range(n)], minlength=vocabulary.size)[left.tokens]
    assert counts.sum() == n
    assert ((counts - left.probs * n) ** 2 / (left.probs * n)).sum() < 21.1
    drafted = sampler(0).draft_distribution(logits)
    assert set(drafted.tokens) <= set(left.tokens)
    assert drafted.probs.sum() == pytest.approx(1)


@pytest.mark.model
def test_a_grammar_advances_with_accepted_tokens_and_undoes_assumed_ones(vocabulary: Vocabulary) -> None:
    a, b, c = (vocabulary.tokenize(letter)[0] for letter in "abc")
    logits = np.full(vocabulary.size, -np.inf, np.float32)
    logits[[a, b, c]] = 0
    sampler = Sampler(PLAIN, vocabulary, grammar='root ::= "a" "b" "c"')

    def allowed() -> set[int]:
        return set(sampler.distribution(logits).tokens.tolist())

    assert allowed() == {a}
    sampler.assume(a)
    assert allowed() == {b}
    sampler.assume(b)
    assert allowed() == {c}
    sampler.forget()
    assert allowed() == {a}
    sampler.assume(a)
    sampler.accept(a)
    assert allowed() == {b}
    with pytest.raises(PymtpError, match=f"the grammar does not allow token {c}"):
        sampler.accept(c)
    with pytest.raises(PymtpError, match=f"the grammar does not allow token {c}"):
        sampler.assume(c)
    assert allowed() == {b}


@pytest.mark.model
def test_a_grammar_can_start_after_a_later_token(vocabulary: Vocabulary) -> None:
    a, b, c = (vocabulary.tokenize(letter)[0] for letter in "abc")
    logits = np.full(vocabulary.size, -np.inf, np.float32)
    logits[[a, b, c]] = 0
    sampler = Sampler(
        PLAIN, vocabulary, history=[c], grammar='root ::= "a" "b"', grammar_starts=lambda token: token == c
    )
    assert sampler.awaits_grammar
    assert len(sampler.distribution(logits).tokens) == 3
    sampler.accept(b, b, c, a)
    assert not sampler.awaits_grammar
    assert sampler.distribution(logits).tokens.tolist() == [b]


NOT_FINITE = {
    "NaN": np.full(5000, np.nan),
    "negative NaN": np.full(5000, -np.nan),  # what processors make of inf - inf
    "infinite": np.where(np.arange(5000) == 77, np.inf, 0),
    "no token": np.full(5000, -np.inf),
}


@pytest.mark.parametrize("what", NOT_FINITE)
@pytest.mark.parametrize(
    "params", [PLAIN, SamplingParams(seed=1), SamplingParams(temperature=0), SamplingParams(mirostat=2)]
)
def test_no_token_is_drawn_from_logits_that_are_no_numbers(what: str, params: SamplingParams) -> None:
    row = NOT_FINITE[what].astype(np.float32)
    sampler, same = Sampler(params, n_vocab=len(row)), Sampler(params, n_vocab=len(row))
    with pytest.raises(NotFinite, match="not finite"):
        sampler.sample(row)
    if not params.mirostat:
        with pytest.raises(NotFinite, match="not finite"):
            sampler.distribution(row)
    # tokens that cannot be are no fault, and nothing of the failure stays
    good = np.where(np.arange(5000) % 7 == 3, np.linspace(0, 5, 5000), -np.inf).astype(np.float32)
    seeded = [each.sample(good) for each in (sampler, same)]
    if params.seed is not None or params.temperature == 0:
        assert seeded[0] == seeded[1]
    assert seeded[0] % 7 == 3
