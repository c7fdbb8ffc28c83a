"""Which part of the vocabulary drafts are taken from, without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pymtp.drafting.draft_vocab import REVIEW, AutoDraftVocab, read_draft_vocab
from pymtp.errors import InvalidParameter

N_VOCAB = 8192


def play(vocab: AutoDraftVocab, share_frequent: float, n_rounds: int, *, output_ms: float, rest_ms: float = 0.1) -> int:
    """Rounds of a text of which this share are tokens below 2048. A step: the whole output matrix, and the rest."""
    rng = np.random.default_rng(1)
    for _ in range(n_rounds):
        frequent = rng.random() < share_frequent
        token = int(rng.integers(0, 2048) if frequent else rng.integers(4096, N_VOCAB))
        vocab.note_tokens([token])
        kept = 0.8 if token < vocab.limit else 0.0
        vocab.note_round(1, kept, draft_ms=rest_ms + output_ms * vocab.limit / N_VOCAB, other_ms=1.0)
        vocab.review()
    return vocab.limit


def test_a_limit_is_set_where_it_saves_more_than_it_loses() -> None:
    assert play(AutoDraftVocab(N_VOCAB), 0.99, 400, output_ms=0.5) == 2048
    assert play(AutoDraftVocab(N_VOCAB), 0.5, 400, output_ms=0.5) == N_VOCAB


def test_a_limit_that_does_not_pay_is_dropped() -> None:
    """Before it is measured, the output matrix is estimated at half of a step."""
    vocab = AutoDraftVocab(N_VOCAB)
    vocab.note_tokens([1] * 500)
    for _ in range(REVIEW):
        vocab.note_round(1, 0.8, draft_ms=0.5, other_ms=1)
    assert vocab.review() < N_VOCAB
    assert play(vocab, 0.9, 600, output_ms=0.001, rest_ms=0.5) == N_VOCAB


def test_the_limit_follows_the_text() -> None:
    vocab = AutoDraftVocab(N_VOCAB)
    assert play(vocab, 0.99, 300, output_ms=0.5) < N_VOCAB
    assert play(vocab, 0.3, 600, output_ms=0.5) == N_VOCAB


def test_a_small_vocabulary_stays_whole() -> None:
    assert AutoDraftVocab(1500).limits == [1500]


@pytest.mark.parametrize("text", ["[3, 1, 2]", "3 1\n2\n"])
def test_token_ids_are_read_from_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text, "utf-8")
    assert read_draft_vocab(file) == [3, 1, 2]


@pytest.mark.parametrize("text", ["", "[]", "1 2 x", '["a"]', "[1, 2", '{"a": 1}'])
def test_a_file_without_token_ids_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text, "utf-8")
    with pytest.raises(InvalidParameter, match="draft_vocab must be a file of token ids .*, which .*tokens is not"):
        read_draft_vocab(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="or a file of token ids .No such file or directory: .*nowhere"):
        read_draft_vocab(tmp_path / "nowhere")


def test_a_file_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="it is longer than 64 MiB"):
        read_draft_vocab("/dev/zero")
