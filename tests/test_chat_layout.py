"""What is read as a saved chat."""

from __future__ import annotations

from pathlib import Path

import pytest
from pymtp_cli.chat import files


@pytest.mark.parametrize("text", ["", "[]", '{"format": "pymtp chat"}', '{"messages": []}', "[" * 99999])
def test_what_is_no_chat_is_none(text: str, tmp_path: Path) -> None:
    assert files.read(text) is None
    (tmp_path / "file").write_text(text, encoding="utf-8")
    assert not files.is_chat(tmp_path / "file")
