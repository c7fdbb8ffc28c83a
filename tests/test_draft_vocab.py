"""Which part of the vocabulary drafts are taken from, without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pymtp.drafting.draft_vocab import AutoDraftVocab, read_draft_vocab
from pymtp.errors import InvalidParameter

N_VOCAB = 8192


def limit_after(share_frequent: float, vocab: AutoDraftVocab | None = None) -> int:
    """The limit after a text of which this share are tokens below 2048, and the others are above 4096."""
    rng = np.random.default_rng(1)
    vocab = vocab or AutoDraftVocab(N_VOCAB)
    for _ in range(2000):
        frequent = rng.random() < share_frequent
        vocab.note_tokens([int(rng.integers(1024, 2048) if frequent else rng.integers(4096, N_VOCAB))])
    return vocab.limit


def test_a_limit_is_set_where_nearly_all_tokens_are_below_it() -> None:
    assert AutoDraftVocab(N_VOCAB).limit == N_VOCAB
    assert limit_after(1.0) == 2048
    assert limit_after(0.997) == 2048
    assert limit_after(0.9) == N_VOCAB


def test_the_limit_follows_the_text() -> None:
    vocab = AutoDraftVocab(N_VOCAB)
    assert limit_after(1.0, vocab) == 2048
    assert limit_after(0.3, vocab) == N_VOCAB
    assert limit_after(1.0, vocab) == 2048


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
