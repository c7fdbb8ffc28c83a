"""Drafts by lookup: the index, what the drafter makes of histories that come and go, and text that stays as it is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_session import FakeSession
from families import FAMILIES
from machine import HAS_GPU, needs_exact_texts
from pymtp import Model, SamplingParams
from pymtp.acceptance.interface import MATCH, Acceptance, Verified
from pymtp.acceptance.rejection import BLOCK_REJECTION, TOKENWISE_REJECTION
from pymtp.drafting.choice import longest_draft
from pymtp.drafting.interface import DraftRequest, checked
from pymtp.drafting.lookup import (
    MATCH_MAX,
    NO_MATCH,
    SHARED_TOKENS,
    EarlierTexts,
    LookupDrafter,
    LookupIndex,
    LookupMatch,
)
from pymtp.drafting.params import DraftParams
from pymtp.drafting.policy import PassCosts
from pymtp.errors import PymtpError
from pymtp.sampling.chain import Sampler
from random_gguf import write_glm4, write_glm4moe
from random_gguf.side_files import split_heads
from test_acceptance import Play, exact_texts, random_pair
from test_sampled_text import differ, first_tokens

GREEDY = SamplingParams(temperature=0)
EXACT: Any = {"n_threads": 1, "kv_unified": False, "n_ubatch": 48}
"""A text is bit for bit the same then, whatever else is in its passes: see docs/limits.md."""
COUNT = "one two three four. " * 20


#
# the index
#


def reference(history: Sequence[int], n: int, n_min: int) -> LookupMatch:
    """What followed the longest match, the latest of equals, by a search through the history."""
    best, n_best = 0, 0
    for end in range(len(history) - 1, 0, -1):  # the match ends before it
        n_same = 0
        while n_same < min(end, MATCH_MAX) and history[end - 1 - n_same] == history[-1 - n_same]:
            n_same += 1
        if n_same >= max(n_min, n_best + 1):
            best, n_best = end, n_same
    if not n_best:
        return LookupMatch([], 0)
    period = len(history) - best
    return LookupMatch([history[best + i % period] for i in range(n)], n_best)


def test_it_returns_what_followed_the_longest_match() -> None:
    rng, history, index = random.Random(1), [], LookupIndex(10_000)
    for _ in range(60):
        begin = rng.randrange(len(history) + 1)
        tokens = history[begin : begin + 20] if rng.random() < 0.5 else rng.choices(range(30), k=5)
        for i in range(0, len(tokens), 3):
            history += tokens[i : i + 3]
            index.append(tokens[i : i + 3])
            assert index.find(8) == reference(history, 8, 3)
            assert index.find(3) == LookupMatch(index.find(8).tokens[:3], index.find(8).n_matched)
    assert len(index) == len(history)


def test_a_store_of_ended_texts_is_searched_for_the_tokens_of_another() -> None:
    store = LookupIndex(1000)
    store.append([1, 2, 3, 4])
    store.end_history()
    store.append([5, 1, 2, 3, 6, 7])
    store.end_history()
    assert store.find(5, [9, 1, 2, 3]) == LookupMatch([6, 7], 3)  # the latest of equals
    assert store.find(5, [5, 1, 2, 3]) == LookupMatch([6, 7], 4)
    assert store.find(1, [5, 1, 2, 3]) == LookupMatch([6], 4)
    assert store.find(5, [2, 3, 4]) == store.find(5, [3, 4, 5]) == store.find(5, [4, 5, 1]) == LookupMatch([], 0)
    assert store.find(5, [2, 3]) == store.find(5, []) == store.find(0, [7, 7, 7]) == LookupMatch([], 0)
    store.clear()
    assert store.find(5, [9, 1, 2, 3]) == LookupMatch([], 0)
    assert len(store) == 0


def test_the_oldest_tokens_make_room_and_the_memory_is_bounded() -> None:
    index = LookupIndex(4096)
    small = index.n_bytes
    index.append([1, 2, 3, 4, 5])
    index.append(range(100, 4096))
    full = index.n_bytes
    assert small < 1000 < full <= 16 * 4096 + 1000
    assert index.find(2, [1, 2, 3]).tokens == [4, 5]
    index.append(range(5000, 10_000))
    assert index.find(2, [1, 2, 3]).tokens == []
    assert index.find(2, [5997, 5998, 5999]).tokens == [6000, 6001]
    assert (len(index), index.n_bytes) == (4096, full)


def test_values_out_of_range_are_refused() -> None:
    for n_max, n_min in ((0, 3), (2**30, 3), (10, 0), (10, 17)):
        with pytest.raises(PymtpError, match="are possible"):
            LookupIndex(n_max, n_min=n_min)
    index = LookupIndex(10)
    with pytest.raises(PymtpError, match="token -1 is not in the vocabulary of 4194304"):
        index.append([1, -1])
    assert len(index) == 0
    assert index.find(-1) == LookupMatch([], 0)


#
# the drafter
#


def test_a_slot_can_get_another_history_at_any_time() -> None:
    rng, index = random.Random(1), LookupIndex(10_000)
    history: list[int] = []
    for _ in range(300):
        kind = rng.randrange(6)
        if kind == 0:  # another text, maybe of the same length
            history = rng.choices(range(4), k=rng.choice([len(history), rng.randrange(100)]))
        elif kind == 1:  # one that begins like it, as in a conversation
            history = [*history[: rng.randrange(len(history) + 1)], *rng.choices(range(4), k=5)]
        elif kind == 2:  # a part of itself
            del history[rng.randrange(len(history) + 1) :]
        else:
            history += rng.choices(range(4), k=rng.randrange(9))
        index.follow(history)
        assert len(index) == len(history)
        fresh = LookupIndex(10_000)
        fresh.append(history)
        assert index.find(8) == fresh.find(8)


def draft_request(history: list[int], n_draft: int, slot: int = 0, stop: Sequence[int] = ()) -> DraftRequest:
    return DraftRequest(history, n_draft, slot, len(history) - 1, 1, Sampler(GREEDY, n_vocab=10), stop)  # type: ignore[arg-type]


def test_every_slot_drafts_from_its_own_history() -> None:
    drafter = LookupDrafter(FakeSession())  # type: ignore[arg-type]
    histories = [1, 2, 3, 4, 5, 1, 2, 3], [1, 2, 3, 6, 7, 1, 2, 3], [8, 1, 2, 3]
    for _ in range(2):
        requests = [draft_request(history, 3 - slot, slot) for slot, history in enumerate(histories)]
        assert [made.drafts for made in drafter.propose(requests)] == [[4, 5, 1], [6, 7], []]
    assert drafter.propose([draft_request(histories[0], 0)])[0].drafts == ()
    assert [made.drafts for made in drafter.propose([draft_request(histories[1], 2, slot=0)])] == [[6, 7]]
    assert 0 < drafter.n_bytes < 10_000


def test_earlier_texts_are_found_by_their_owner_alone() -> None:
    earlier = EarlierTexts()
    earlier.add("a", [1, 2, 3, 4, 5])
    earlier.add("a", [6, 7, 8, 1, 2, 3, 9])
    earlier.add("b", [1, 2, 3, 6])
    assert earlier.find("a", 4, [1, 2, 3]) == LookupMatch([9], 3)
    assert earlier.find("a", 4, [7, 8, 1, 2, 3]) == LookupMatch([9], 5)
    assert earlier.find("b", 4, [7, 8, 1, 2, 3]) == LookupMatch([6], 3)
    assert earlier.find("a", 4, [4, 5, 6]) == NO_MATCH  # no match crosses from one text to the next
    assert earlier.find("c", 4, [1, 2, 3]) == NO_MATCH


def test_the_memory_of_earlier_texts_is_bounded() -> None:
    n_max = 1 << 20
    earlier = EarlierTexts(n_max)
    for i in range(20):
        for _ in range(5):
            earlier.add(str(i % 8), range(1000 * i, 1000 * i + 50_000))
            assert 0 < earlier.n_bytes <= n_max
    assert earlier.find("3", 1, range(68_980, 68_990)).tokens == [68_990]  # the latest owner
    assert earlier.find("4", 1, range(61_990, 62_000)) == NO_MATCH  # of those that are left out


def test_of_a_long_text_the_end_is_kept() -> None:
    earlier = EarlierTexts()
    earlier.add("", range(100_000))
    first = 100_000 - SHARED_TOKENS
    assert earlier.find("", 1, range(first, first + 3)).tokens == [first + 3]
    assert earlier.find("", 1, range(first - 1, first + 2)) == NO_MATCH


def test_the_longer_match_is_drafted_be_it_in_an_earlier_text() -> None:
    earlier = EarlierTexts()
    earlier.add("a", [9, 1, 2, 3, 7, 7])
    drafter = LookupDrafter(FakeSession(), earlier)  # type: ignore[arg-type]
    history = [8, 1, 2, 3, 4, 5, 9, 1, 2, 3]
    for owner, expected in (("a", [7, 7]), ("b", [4, 5]), (None, [4, 5])):
        request = draft_request(history, 2)._replace(owner=owner)
        assert [made.drafts for made in drafter.propose([request])] == [expected]
    history = [8, 1, 2, 3, 4, 5, 8, 1, 2, 3]  # as long as in its own text, or longer there
    assert drafter.propose([draft_request(history, 2)._replace(owner="a")])[0].drafts == [4, 5]
    assert drafter.n_bytes > earlier.n_bytes > 0


@needs_exact_texts
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1, seed=3)])
def test_texts_that_have_ended_help_the_next_ones_of_the_same_owner(tmp_path: Path, sampling: SamplingParams) -> None:
    path = write_glm4moe(tmp_path / "tiny.gguf")
    prompt = random.Random(1).choices(range(500), k=30)

    def ask(model: Model, **options: Any) -> tuple[list[int], int]:
        made = model.generate(prompt, sampling=sampling, max_tokens=40, ignore_eos=True, **options)
        list(made)
        return made.tokens, made.stats.accepted

    with Model(path, draft="none", **EXACT) as model:
        text = ask(model)[0]
    with Model(path, draft="lookup", draft_max=8, draft_lookup="shared", **EXACT) as model:
        assert model.lookup_bytes() == 0
        alone = ask(model, draft_owner="a")
        assert ask(model, draft_owner="b") == alone  # finds nothing
        assert ask(model, draft_lookup="self", draft_owner="a") == alone
        again = ask(model, draft_owner="a")
        assert alone[0] == again[0] == text
        assert again[1] > max(25, alone[1])
        # a text that was not to be shared was not kept
        assert ask(model, draft_lookup="self", draft_owner="c") == ask(model, draft_owner="c") == alone
        assert ask(model, draft_owner="c") == again
        assert 0 < model.lookup_bytes() < 1 << 20
        # a seed promises the same text, whatever was asked before, although drafts change it
        if sampling.seed is not None:
            drawn = [ask(model, draft_owner="a", accept="rejection") for _ in range(2)]
            assert drawn[0] == drawn[1]
    with Model(path, draft="lookup", draft_max=8, **EXACT) as model:
        assert ask(model) == ask(model, draft_lookup="shared") == alone


def test_a_draft_is_as_long_as_the_match_at_most() -> None:
    drafter = LookupDrafter(FakeSession())  # type: ignore[arg-type]
    for history, drafts in (
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [4, 5, 6]),
        ([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3], [4, 5, 6, 7]),
    ):
        assert drafter.propose([draft_request(history, 6)])[0].drafts == drafts


def test_no_draft_follows_a_token_that_ends_the_sequence() -> None:
    drafter = LookupDrafter(FakeSession())  # type: ignore[arg-type]
    asked = [draft_request([1, 2, 3, 4, 5, 6, 1, 2, 3], 3, stop=[5])]
    (made,) = checked(drafter, asked, drafter.propose(asked), 10)
    assert made == (made.drafts, (), (), (), 0, 0)
    assert made.drafts == [4, 5]


#
# models
#


def without_heads(path: Path) -> Path:
    trunk = path.with_name("trunk.gguf")
    (path.parent / "heads").mkdir()
    split_heads(write_glm4moe(path), trunk, path.parent / "heads" / "heads.gguf")
    return trunk


MODELS: dict[str, Callable[[Path], Path]] = {
    "plain cache": FAMILIES["glm4moe"].write,
    "windows": FAMILIES["mimo2"].write,
    "hybrid": FAMILIES["qwen35"].write,
    "no heads": without_heads,
    "heads that cannot run": write_glm4,
}


@pytest.fixture
def drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and steps cost next to nothing, whatever the machine: so heads and lookup draft, and all that they can."""
    limit = property(lambda costs: 1000, lambda costs, n: None)
    monkeypatch.setattr(PassCosts, "n_rows_max", limit, raising=False)
    monkeypatch.setattr(PassCosts, "refresh", lambda _: None)
    monkeypatch.setattr(
        PassCosts, "table", lambda _, steps, n, n_max: [1 + 0.001 * (steps + k) for k in range(n_max + 1)]
    )


ARMS: dict[str, dict[str, Any]] = {
    "plain": {"draft": "none"},
    "lookup, 8": {"draft": "lookup", "draft_max": 8},
    "lookup": {"draft": "lookup"},
    "auto": {"draft": "auto"},
    "heads": {"draft": "auto", "draft_lookup": "off"},
}


@needs_exact_texts
@pytest.mark.usefixtures("drafts_pay")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "windows" else ()) for kind in MODELS]
)
def test_greedy_text_of_any_model_equals_plain_decoding(tmp_path: Path, kind: str) -> None:
    """More texts than slots, of different lengths. Of three tokens, so that there are matches, right and wrong ones."""
    sampling = SamplingParams(temperature=0, logit_bias={5: 100, 6: 100, 7: 100})
    path = MODELS[kind](tmp_path / "tiny.gguf")
    rng = random.Random(1)
    prompts = [[7] * 20, [1, 2, 3, 4] * 8, rng.choices([5, 6, 7], k=70), [5, 6, 7] * 9, [1, 2, 3], [9, 8] * 30]
    texts = {}
    for name, options in ARMS.items():
        with Model(path, n_seq_max=2, n_ctx=256, **options, **EXACT) as model:
            made = [
                model.generate(prompt, sampling=sampling, max_tokens=16 + 5 * i, ignore_eos=True)
                for i, prompt in enumerate(prompts)
            ]
            for generation in made:
                list(generation)
            texts[name] = [generation.tokens for generation in made]
            stats = model.stats
            has_heads = model.session.n_heads > 0
        assert texts[name] == texts["plain"]
        if name == "plain" or (name == "heads" and not has_heads):
            assert stats.drafted == 0
        else:
            assert stats.drafted > stats.accepted > 0, name


@needs_exact_texts
@pytest.mark.model
@pytest.mark.usefixtures("drafts_pay")
def test_greedy_text_of_the_embedded_model_equals_plain_decoding() -> None:
    texts = []
    prompts = [COUNT, "import os\nimport sys\n\ndef main(", "one two three four five six. " * 3]
    for options in (ARMS["plain"], ARMS["lookup"], ARMS["auto"]):
        with Model(n_seq_max=3, n_ctx=512, **options, **EXACT) as model:
            made = [
                model.generate(prompt, sampling=sampling, max_tokens=20 + 10 * i, ignore_eos=True)
                for i, prompt in enumerate(prompts)
                for sampling in (GREEDY, SamplingParams(temperature=1, seed=7))  # the same seed, the same text
            ]
            for generation in made:
                list(generation)
            texts.append([generation.tokens for generation in made])
            n_accepted = model.stats.accepted
    assert texts[0] == texts[1] == texts[2]
    assert n_accepted > 50


@pytest.mark.model
@pytest.mark.parametrize("draft", ["auto", "lookup"])
def test_a_request_can_do_without_lookup(monkeypatch: pytest.MonkeyPatch, draft: Any) -> None:
    asked: Any = {"max_tokens": 16, "temperature": 0}
    with Model(draft=draft, n_ctx=256, n_threads=1) as model:
        text = "".join(model.generate(COUNT, **asked))
        monkeypatch.setattr(LookupDrafter, "find", lambda *_: pytest.fail("it has looked"))
        alone = model.generate(COUNT, draft_lookup="off", **asked)
        assert "".join(alone) == text
        assert alone.stats.drafted == 0 or draft == "auto"


@pytest.mark.model
@pytest.mark.usefixtures("drafts_pay")
def test_text_that_repeats_itself_has_many_drafts_accepted() -> None:
    with Model(draft="lookup", n_ctx=512, n_threads=1) as model:
        assert model.draft_max == "auto"
        for draft_max in ("auto", None, 8):
            generation = model.generate(COUNT, sampling=GREEDY, max_tokens=60, ignore_eos=True, draft_max=draft_max)  # type: ignore[arg-type]
            list(generation)
            stats = generation.stats
            assert stats.accepted / stats.rounds > (1.2 if HAS_GPU else 1.5)  # a GPU's text repeats less
            assert stats.acceptance_rate is not None
            assert stats.acceptance_rate > (0.5 if HAS_GPU else 0.7)
            assert generation.acceptance == "match"
        for draft_max, most in ((2, 2), (0, 0), (20, 15)):
            generation = model.generate(COUNT, sampling=GREEDY, max_tokens=30, ignore_eos=True, draft_max=draft_max)
            list(generation)
            assert generation.stats.drafted <= most * generation.stats.rounds
            assert (generation.stats.drafted > 0) == (most > 0)


@pytest.mark.model
@pytest.mark.usefixtures("drafts_pay")
@pytest.mark.parametrize("options", [{"draft": "lookup", "draft_max": 3}, {}], ids=["lookup", "auto"])
@pytest.mark.parametrize("accept", ["auto", "match", "rejection", "rejection-tokenwise"])
def test_drafts_that_a_grammar_forbids_are_rejected(options: Any, accept: Any) -> None:
    with Model(n_ctx=256, n_threads=1, **options) as model:
        prompt = "one 1 a one 1 b one 2 c one 4 z one 1 a one 1 b one"
        grammar = 'root ::= ("one " [0-9] " " [a-c] " "){8}'
        for temperature in (0, 1):
            generation = model.generate(
                prompt, temperature=temperature, seed=2, grammar=grammar, accept=accept, max_tokens=40
            )
            text = "".join(generation)
            assert generation.error is None
            assert re.fullmatch(r"(one \d [a-c] )*(one?|one |one \d|one \d |one \d [a-c]|o)?", text), text
            assert generation.stats.drafted > generation.stats.accepted > 0


class LookupPlay(Play):
    """Texts whose drafts come from an index of a prompt and of what follows it."""

    PROMPT = (0, 1, 0, 2, 1, 0, 0, 1, 2, 2, 0)

    def _round(self, sampler: Sampler, last: int) -> list[int]:
        if sampler is not getattr(self, "_sampler", None):
            self._sampler, self._history = sampler, list(self.PROMPT)
            self._index = LookupIndex(100, n_min=1)
            self._index.append(self._history)
        drafts = self._index.find(self._n_draft).tokens
        rows = [self._pair.target[token] for token in [last, *drafts]]
        verdict = self._accept(sampler, Verified(rows, drafts))
        self._index.append(verdict.tokens)
        self.n_accepted.append(verdict.n_accepted)
        return verdict.tokens


@pytest.mark.parametrize("accept", [MATCH, TOKENWISE_REJECTION, BLOCK_REJECTION], ids=lambda each: each.name)
@pytest.mark.parametrize("n_draft", [1, 4])
def test_tokens_are_distributed_as_in_plain_decoding(accept: Acceptance, n_draft: int) -> None:
    pair = random_pair(3)
    play = LookupPlay(accept, pair, n_draft, draws=False)
    assert play.is_as(exact_texts(pair))
    assert play.mean_accepted > 0.2
    # what the check has to see
    assert not play.is_as(exact_texts(random_pair(3, seed=2)))


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("drafts_pay")
@pytest.mark.parametrize("draft", ["lookup", "auto"])
def test_the_first_tokens_of_texts_are_distributed_as_in_plain_decoding(draft: Any) -> None:
    """Without penalties, which leave nothing of what lookup drafts."""
    n_texts, sampling = 2000, SamplingParams(temperature=1, top_k=40, top_p=0.95, min_p=0.05)
    with Model(draft="none", n_seq_max=16, n_ctx=512, n_threads=1) as plain:
        expected = first_tokens(plain, range(n_texts), sampling)
    with Model(draft=draft, n_seq_max=16, n_ctx=512, n_threads=1) as model:
        for i, accept in enumerate(("rejection", "rejection-tokenwise"), 1):
            seeds = range(i * n_texts, (i + 1) * n_texts)
            assert not differ(first_tokens(model, seeds, sampling, accept=accept), expected)
        assert model.stats.drafted > model.stats.accepted > 0


def test_lookup_is_chosen_whatever_heads_there_are(tmp_path: Path) -> None:
    path = write_glm4moe(tmp_path / "tiny.gguf")
    for draft_max, n_draft in (("auto", 15), (3, 3)):
        with Model(path, draft="lookup", draft_max=draft_max, n_ctx=64, n_threads=1) as model:  # type: ignore[arg-type]
            assert (model.draft_max, model.session.n_draft_max) == (draft_max, n_draft)
            assert (model.session.n_heads, model.draft_note) == (0, None)
    with Model(path, draft="lookup", draft_max=0, n_ctx=64, n_threads=1) as model:
        assert (model.draft_max, model.draft_note) == (0, None)


def test_the_longest_draft_of_each_kind() -> None:
    assert longest_draft(DraftParams(draft="lookup")) == longest_draft(DraftParams(draft=LookupDrafter)) == 15
    assert longest_draft(DraftParams(draft="lookup", draft_max=20)) == 20
    assert longest_draft(DraftParams()) == 15
