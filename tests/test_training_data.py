"""What a head is trained on: texts and prompts of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymtp.errors import ModelError
from pymtp.training.collect import Source


class Bytes:
    """A model whose tokens are bytes."""

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        if messages[0]["role"] == "system":
            raise ModelError("the template fails")
        return messages[-1]["content"]


def source(*data: Path) -> Any:
    return Source(Bytes(), data, 1)  # type: ignore[arg-type]


def test_the_first_and_the_last_line_are_read_too_and_lines_without_an_end(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.txt", "three.txt", "long.txt", "one.jsonl")]
    contents = "one line", "a 1\nb 2\nc 3\n", "0123456789" * 1000, json.dumps({"more": "x" * 9000, "prompt": "Hello"})
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    one, three, long, prompts = map(source, paths)
    assert {bytes(one.text()) for _ in range(20)} == {b"one line"}
    assert {bytes(three.text())[:3] for _ in range(50)} == {b"a 1", b"b 2", b"c 3"}
    assert min(len(long.text()) for _ in range(20)) > 100
    assert prompts.prompt() == (list(b"Hello"), [])


def test_data_without_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").touch()
    for path in (tmp_path / "folder", tmp_path / "empty.txt"):
        with pytest.raises(ModelError, match=f"{path.name}: no such file, or nothing in it; name texts"):
            source(path)
    with pytest.raises(ModelError, match="cannot read .*: File name too long; check names and permissions"):
        source(tmp_path / "text.txt", tmp_path / ("x" * 300))


def test_a_line_that_the_template_refuses_is_left_out(tmp_path: Path) -> None:
    path, user = tmp_path / "chats.jsonl", {"role": "user", "content": "Hello"}
    refused = json.dumps({"messages": [{"role": "system", "content": "Be kind."}, user]}) + "\n"
    path.write_text(refused * 3 + json.dumps({"messages": [user]}))
    assert source(path).prompt() == (list(b"Hello"), [])
    path.write_text(refused)
    with pytest.raises(ModelError, match=r"chats.jsonl: 1000 bad lines \(the template fails\); a line is"):
        source(path).prompt()
