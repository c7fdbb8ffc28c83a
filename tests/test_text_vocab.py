"""Drafts from the first tokens of a vocabulary and those that texts have had: the list that changes, and the texts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from machine import needs_exact_texts, needs_no_gpu
from pymtp import Model, embedded
from pymtp.drafting import text_vocab
from pymtp.drafting.text_vocab import TextVocab
from pymtp.errors import BackendError
from pymtp.gguf.facts import model_facts
from random_gguf import write_glm4moe
from random_gguf.side_files import split_heads
from test_padding import PADDING, make_padding

N_FIRST, N_RECENT = 1024, 256
MATRIX = np.arange(8192, dtype=np.uint8)[:, None]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that fit the embedded model, whose output matrix is a small part of it."""
    monkeypatch.setattr(text_vocab, "N_FIRST", N_FIRST)
    monkeypatch.setattr(text_vocab, "N_RECENT", N_RECENT)
    monkeypatch.setattr(text_vocab, "SAVED", 0.0)


class ListedSession:
    """What a session does with a list of tokens, and rows that come with them."""

    n_draftable = 8192

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.has_memory = True

    @property
    def n_draft_vocab(self) -> int:
        return len(self.tokens) or 8192

    def limit_drafts(self, n: int | None) -> None:
        self.tokens = []

    def limit_drafts_to(self, tokens: list[int], matrices: Sequence[Any]) -> None:
        if not self.has_memory:
            raise BackendError("failed to allocate mtp_output")
        self.tokens = list(tokens)
        np.testing.assert_array_equal(matrices[0], MATRIX[tokens])

    def replace_drafts(self, rows: Sequence[int], tokens: Sequence[int], matrices: Sequence[Any]) -> None:
        np.testing.assert_array_equal(matrices[0], MATRIX[list(tokens)])
        for row, token in zip(rows, tokens, strict=True):
            self.tokens[row] = token


def test_the_list_has_the_first_tokens_and_the_latest_others() -> None:
    rng = random.Random(1)
    session = ListedSession()
    vocab = TextVocab(session, [MATRIX])  # type: ignore[arg-type]
    latest = list(range(N_FIRST, N_FIRST + N_RECENT))
    for i in range(60):
        some = [rng.randrange(8192) for _ in range(rng.choice((0, 1, 3, 40, 700)))]
        vocab.set_limited(rng.random() < 0.8)
        vocab.note(some)
        for token in (token for token in dict.fromkeys(some) if token >= N_FIRST):
            if token in latest:
                latest.remove(token)
            latest.append(token)
        latest = latest[-N_RECENT:]
        assert sorted(session.tokens) == (sorted([*range(N_FIRST), *latest]) if vocab.is_limited else []), i


def test_without_memory_for_a_list_drafts_come_from_all() -> None:
    session = ListedSession()
    session.has_memory = False
    vocab = TextVocab(session, [MATRIX])  # type: ignore[arg-type]
    vocab.note([5000])
    assert session.tokens == []
    session.has_memory = True
    vocab.set_limited(True)
    assert 5000 in session.tokens


def test_it_is_for_models_whose_drafts_read_much_of_an_output_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    info = model_facts(embedded.model_path())
    output, others = info.tensors["output.weight"].size_bytes, ("token_embd.", "blk.16.")  # blk.16: the head
    read = sum(tensor.size_bytes for name, tensor in info.tensors.items() if not name.startswith(others))
    part = 3 * output * (1 - (N_FIRST + N_RECENT) / 8192) / read
    for saved, expected in ((part * 0.99, True), (part * 1.01, False)):
        monkeypatch.setattr(text_vocab, "SAVED", saved)
        assert text_vocab.pays(info) is expected
    monkeypatch.setattr(text_vocab, "SAVED", 0.0)
    monkeypatch.setattr(text_vocab, "N_FIRST", 4000)  # with the others more than half of the vocabulary
    assert not text_vocab.pays(info)


def test_heads_in_a_file_of_their_own_are_not_counted_as_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_vocab, "N_FIRST", 128)
    monkeypatch.setattr(text_vocab, "N_RECENT", 32)
    whole, trunk, heads = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "heads"))
    split_heads(write_glm4moe(whole), trunk, heads)
    for saved in np.linspace(0, 2, 100):
        monkeypatch.setattr(text_vocab, "SAVED", saved)
        assert text_vocab.pays(model_facts(whole)) == text_vocab.pays(model_facts(trunk, heads)), saved


def listed(model: Model) -> set[int]:
    tokens = model.call(lambda: model.session._draft_tokens)
    return set() if tokens is None else set(tokens.tolist())


@pytest.fixture
def models() -> Iterator[SimpleNamespace]:
    with Model(n_ctx=256, n_threads=1) as auto, Model(n_ctx=256, n_threads=1, draft_vocab="all") as whole:
        yield SimpleNamespace(auto=auto, whole=whole)


@needs_exact_texts
@pytest.mark.model
def test_texts_are_the_same_and_what_they_have_had_is_drafted(models: SimpleNamespace) -> None:
    prompt = "Once upon a time, an astronomer in Heidelberg"
    before = listed(models.auto)
    texts = [
        "".join(model.generate(prompt, temperature=0, max_tokens=60, draft_max=3, ignore_eos=True))
        for model in (models.auto, models.whole)
    ]
    assert texts[0] == texts[1]
    had = {token for token in models.auto.vocabulary.tokenize(prompt + texts[0]) if token >= N_FIRST}
    assert had - before
    assert had <= listed(models.auto)
    assert listed(models.whole) == set()


@pytest.mark.model
def test_a_limit_that_is_set_by_hand_fails_no_text(models: SimpleNamespace) -> None:
    models.auto.call(lambda: models.auto.session.limit_drafts(None))
    for _ in range(2):
        "".join(models.auto.generate("Once upon a time, an astronomer in Heidelberg", max_tokens=5))
    assert len(listed(models.auto)) == N_FIRST + N_RECENT


@pytest.mark.model
@pytest.mark.parametrize("split_mode", ["none", pytest.param("row", marks=needs_no_gpu)])
def test_a_matrix_that_devices_share_by_rows_is_drafted_from_whole(split_mode: Literal["none", "row"]) -> None:
    with Model(n_ctx=64, n_threads=1, split_mode=split_mode) as model:
        assert len(listed(model)) == (0 if split_mode == "row" else N_FIRST + N_RECENT)


@needs_exact_texts
@pytest.mark.model
def test_what_came_before_changes_no_text_that_a_seed_stands_for(models: SimpleNamespace) -> None:
    options: dict[str, Any] = {"seed": 5, "draft_pick": "sample", "draft_max": 3, "max_tokens": 40, "ignore_eos": True}
    "".join(models.auto.generate("Something else, with other words", max_tokens=20))
    drawn = models.auto.generate("Once upon a time", **options)
    text = next(drawn)
    assert models.auto.call(lambda: models.auto.session.n_draft_vocab) == 8192
    text += "".join(drawn)
    assert text == "".join(models.whole.generate("Once upon a time", **options))
    "".join(models.auto.generate("And then", max_tokens=5))
    assert len(listed(models.auto)) == N_FIRST + N_RECENT


def test_padding_of_the_vocabulary_is_not_drafted_though_a_prompt_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_vocab, "N_FIRST", 128)
    monkeypatch.setattr(text_vocab, "N_RECENT", 32)
    path = make_padding(write_glm4moe(tmp_path / "tiny.gguf"))
    with Model(path, n_ctx=64, n_threads=1, draft_max=3) as model:
        for seed in (None, 1, None):  # limited, of all, limited again
            assert "".join(model.generate([200, min(PADDING)], seed=seed, draft_pick="sample", max_tokens=4))
        assert len(listed(model)) == 160
        assert 200 in listed(model)
        assert not PADDING & listed(model)


@needs_exact_texts
@pytest.mark.model
def test_texts_in_company_are_those_of_each_alone() -> None:
    """They begin with different prompts, end one after another, and for one of them drafts are not limited."""
    prompts = ["Once upon a time", "def read_lines(path):", "An astronomer in Heidelberg", "And then"]
    drawn = {"seed": 5, "draft_pick": "sample", "temperature": 1.0}
    options: list[dict[str, Any]] = [{"temperature": 0}, drawn, {"temperature": 0}, {"temperature": 0}]
    texts = []
    for n_seq_max, vocab in ((3, "auto"), (1, "all")):
        with Model(n_ctx=256, n_threads=1, n_seq_max=n_seq_max, draft_vocab=vocab, draft_max=3) as model:  # type: ignore[arg-type]
            begun = [
                model.generate(prompt, max_tokens=50 - 12 * i, ignore_eos=True, **option)
                for i, (prompt, option) in enumerate(zip(prompts, options, strict=True))
            ]
            texts.append(["".join(generation) for generation in begun])
            if vocab == "auto":
                assert len(listed(model)) == N_FIRST + N_RECENT
    assert texts[0] == texts[1]
