"""Which part of the vocabulary drafts are taken from, without a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymtp.drafting.draft_vocab import read_draft_vocab
from pymtp.errors import InvalidParameter


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
