"""How chat lays answers out: words at the edge of a terminal, Markdown that arrives in pieces, saved chats."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.chat import files
from pymtp_cli.chat.markdown import MarkdownView, split_first
from rich.console import Console
from rich.markdown import Markdown

TEXT = """# A title

A *first* paragraph that is long enough to be wrapped at the edge of the terminal, twice at least if it is narrow.
It has two lines.

- one
- two
  - nested

```python
def f(x):

    return x
```
After the code.

| a | b |
|---|---|
| 1 | 2 |

1. first
2. second
"""


def pieces_of(text: str, seed: int) -> list[str]:
    sizes, pieces = random.Random(seed), []
    while text:
        n = sizes.randint(1, 9)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


@pytest.mark.parametrize(
    ("text", "blocks", "rest"),
    [
        ("one", [], "one"),
        ("one\n", [], "one\n"),
        ("one\n\ntw", ["one\n"], "tw"),
        ("one\n```py\nx\n\ny", ["one"], "```py\nx\n\ny"),
        ("```py\nx\n\ny\n```\n", ["```py\nx\n\ny\n```"], ""),
        ("````\n```\n\n```\nx", [], "````\n```\n\n```\nx"),
        ("~~~\na\n~~~\nb\n\nc", ["~~~\na\n~~~", "b\n"], "c"),
    ],
)
def test_blocks_end_at_empty_lines_and_closed_fences(text: str, blocks: list[str], rest: str) -> None:
    found = []
    while cut := split_first(text, 50):
        block, text, is_cut = cut
        found.append(block)
        assert not is_cut
    assert (found, text) == (blocks, rest)


def test_a_fence_that_outgrows_the_screen_is_cut_into_fences() -> None:
    lines = [f"line{i}" for i in range(9)]
    cut = split_first("\n".join(["```py", *lines, "li"]), 5)
    assert cut == ("\n".join(["```py", *lines, "```"]), "```py\nli", True)


@pytest.mark.parametrize("columns", [30, 80])
def test_markdown_in_pieces_looks_like_markdown_at_once(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(pieces: list[str]) -> list[str]:
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=False, width=columns, height=50)
        monkeypatch.setattr("pymtp_cli.chat.markdown.Console", lambda **_: console)
        view = MarkdownView()
        for piece in pieces:
            view.push(piece)
        view.close()
        return [line.rstrip() for line in stream.getvalue().splitlines()]

    at_once = shown([TEXT])
    for seed in range(5):
        assert shown(pieces_of(TEXT, seed)) == at_once
    whole = io.StringIO()
    Console(file=whole, width=columns).print(Markdown(TEXT))
    assert [line for line in at_once if line] == [line.strip(" ") and line.rstrip() for line in _of(whole)]
    assert not any(a == b == "" for a, b in zip(at_once, at_once[1:], strict=False))


def _of(stream: Any) -> list[str]:
    # rich indents code by one column
    lines = [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]
    return [line[1:] if line.startswith((" def f", "     return")) else line for line in lines]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "pymtp chat"}', '{"messages": []}', "[" * 99999])
def test_what_is_no_chat_is_none(text: str, tmp_path: Path) -> None:
    assert files.read(text) is None
    (tmp_path / "file").write_text(text, encoding="utf-8")
    assert not files.is_chat(tmp_path / "file")
