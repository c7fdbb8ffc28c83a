"""The parts of `pymtp run` and `chat`, without a model: thinking, typed values, the status line, input, completion."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from pymtp_cli.answer import Part, parts_of
from pymtp_cli.chat.reader import PipeReader
from pymtp_cli.chat.screen import Screen, status_line
from pymtp_cli.chat.state import as_typed, names, with_value
from pymtp_cli.interrupt import Interrupt
from pymtp_cli.output import CommandError, Output

from pymtp import ChatTemplate
from pymtp.errors import InvalidParameter
from pymtp.serving.statistics import Stats
from test_answer_rules import THINKING


class Pieces:
    """An answer to a chat in these pieces, of which every second one is an accepted draft."""

    def __init__(self, pieces: list[str], template: str | None, *, finish_reason: str | None = "eog") -> None:
        chat = ChatTemplate(None, template).render([{"role": "user", "content": "Hello"}]) if template else None
        self.params, self.finish_reason = SimpleNamespace(chat=chat), finish_reason
        self.pieces, self.text, self.is_closed = pieces, "", False

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            self.text += piece
            yield piece

    def parts(self, begin: int, end: int) -> list[tuple[str, bool]]:
        chars = [(char, i % 2 == 1) for i, piece in enumerate(self.pieces) for char in piece][begin:end]
        return [("".join(char for char, _ in group), kind) for kind, group in groupby(chars, lambda one: one[1])]

    def close(self) -> None:
        self.is_closed = True


def split(text: str, template: str | None, sizes: random.Random | None = None) -> list[tuple[str, bool]]:
    """All parts of `text`, which comes in pieces of one to five characters, neighbours of a kind joined."""
    pieces, at = [], 0
    while at < len(text):
        pieces.append(text[at : at + (sizes.randint(1, 5) if sizes else len(text))])
        at += len(pieces[-1])
    answer: Any = Pieces(pieces, template, finish_reason="length")
    found = [(part.text, part.is_thinking) for part in parts_of(answer, Interrupt())]
    assert answer.is_closed
    return [("".join(text for text, _ in group), kind) for kind, group in groupby(found, lambda part: part[1])]


THINKS = THINKING.replace("<think>{% if enable_thinking is false %}</think>{% endif %}\n", "")
"""A template whose prompts do not open the thinking: the model does."""


@pytest.mark.parametrize(
    ("text", "template", "parts"),
    [
        ("Hello", None, [("Hello", False)]),
        ("Tags are <think> and </think>.", None, [("Tags are <think> and </think>.", False)]),
        ("hm</think>Yes.", THINKING, [("hm", True), ("Yes.", False)]),
        ("hm, no end", THINKING, [("hm, no end", True)]),
        ("never ends </thi", THINKING, [("never ends ", True)]),
        ("Hello", THINKS, [("Hello", False)]),
        ("<think>hm</think>Yes.", THINKS, [("hm", True), ("Yes.", False)]),
        ("<think>\nhm\n</think>\n\nYes.", THINKS, [("\nhm\n", True), ("\n\nYes.", False)]),
        ("<thin air", THINKS, [("<thin air", False)]),
        ("No <think> and </think>.", THINKS, [("No <think> and </think>.", False)]),
    ],
)
def test_thinking_is_split_from_the_answer_however_the_text_is_cut(
    text: str, template: str | None, parts: list[tuple[str, bool]]
) -> None:
    assert split(text, template) == parts
    for seed in range(20):
        assert split(text, template, random.Random(seed)) == parts


def test_drafts_are_found_in_the_text_after_the_thinking() -> None:
    answer: Any = Pieces(["<think>", "a b", "</think>", "a ", "b"], THINKS)
    parts = list(parts_of(answer, Interrupt(), with_drafts=True))
    assert [one for part in parts if not part.is_thinking for one in part.drafts] == [("a ", True), ("b", False)]
    assert [style for part in parts if part.is_thinking for _, style in part.styled] == ["\x1b[2m"]


@dataclass(frozen=True)
class Params:
    temperature: float = 0.8
    top_k: int = 40
    seed: int | None = None
    is_on: bool = False
    words: tuple[str, ...] = ()
    pairs: Mapping[int, float] | tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise InvalidParameter("top_k", "0 or more", value=self.top_k)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.5", 0.5),
        ("top_k", "7", 7),
        ("seed", "3", 3),
        ("seed", "none", None),
        ("seed", "random", None),
        ("is_on", "on", True),
        ("is_on", "False", False),
        ("words", "a, b", ("a", "b")),
        ("words", "a;b", ("a", "b")),
        ("words", "none", ()),
    ],
)
def test_a_typed_value_gets_the_declared_type(name: str, text: str, value: object) -> None:
    got = getattr(with_value(Params(), name, text), name)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("temperature", "hot", "temperature must be a number, not 'hot'"),
        ("top_k", "1.5", "top_k must be an integer, not '1.5'"),
        ("top_k", "-1", "top_k must be 0 or more, not -1"),
        ("seed", "x", "seed must be an integer, not 'x'"),
        ("is_on", "maybe", "is_on must be one of on, true, off, false, not 'maybe'"),
        ("pairs", "1:2", "pairs must be set by a flag when the program starts: it cannot be typed here"),
    ],
)
def test_an_invalid_value_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        with_value(Params(), name, text)
    assert str(caught.value) == message


def test_every_sampling_parameter_can_be_set_to_its_current_value() -> None:
    from pymtp import SamplingParams

    params = SamplingParams()
    for name in names(params):
        value = getattr(params, name)
        if name != "logit_bias":
            assert with_value(params, name, as_typed(value)) == params


def answer(*, drafted: bool = True, finish_reason: str | None = "eog") -> Any:
    stats = Stats(prompt_tokens=20, generated_tokens=52, generation_s=0.2)
    for i in range(30):
        stats.add_round(3 if drafted else 0, i % 4 if drafted else 0)
    return SimpleNamespace(stats=stats, n_cached=100, n_prompt=120, finish_reason=finish_reason)


def test_the_status_line_fits_its_terminal() -> None:
    everything = "[260 tok/s, 52 tokens, drafts 43 of 90 accepted, prompt 20 + 100 cached, 2.43 tokens per round]"
    assert status_line(answer(), 120) == everything
    assert status_line(answer(), 60) == "[260 tok/s, 52 tokens, drafts 43 of 90 accepted]"
    assert status_line(answer(), 5) == "[260 tok/s]"
    assert status_line(answer(drafted=False), 40) == "[260 tok/s, 52 tokens]"
    nothing = SimpleNamespace(stats=Stats(), n_cached=0, n_prompt=9, finish_reason="eog")
    assert status_line(nothing, 40) == "[0 tokens, prompt 9 + 0 cached]"


def test_the_status_line_says_of_a_text_that_it_was_cut() -> None:
    assert "52 tokens (-n)," in status_line(answer(finish_reason="length"), 120)
    assert "52 tokens (interrupted)," in status_line(answer(finish_reason=None), 120)


def messages(data: bytes) -> list[str]:
    reader, found = PipeReader(io.BytesIO(data)), []
    with pytest.raises(EOFError):
        while True:
            found.append(reader.read())
    return found


def test_a_line_from_a_pipe_is_a_message() -> None:
    assert messages("one\n\n  two \r\n日本\n".encode()) == ["one", "two", "日本"]
    assert messages(b"no newline") == ["no newline"]
    assert messages(b"a\\\nb\\\n\\\nc\nd\n") == ["a\nb\n\nc", "d"]
    assert messages(b"open\\") == ["open"]
    assert messages(b"") == []


def test_a_pipe_that_is_not_utf8_says_so() -> None:
    with pytest.raises(CommandError, match="stdin is not valid UTF-8"):
        PipeReader(io.BytesIO(b"caf\xe9\n")).read()


def test_an_answer_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> None:
    screen = Screen(Output())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    screen.part(Part("a\x1b[2J\x07\x9b1m\tb\n日e\u0301\u200d\U0001f469"))
    screen.end_answer()  # a word is shown once it is whole
    assert capsysbinary.readouterr().out.decode() == "a\ufffd[2J\ufffd\ufffd1m\tb\n日e\u0301\u200d\U0001f469\n"


def test_what_follows_the_thinking_begins_with_its_text_in_colours_too() -> None:
    part = Part("\n\n\nOne two", drafts=[("\n", False), ("\n\nOne", True), (" two", False)])
    assert part.after_blank_lines == Part("One two", drafts=[("One", True), (" two", False)])
    assert Part("\n\n", drafts=[("\n\n", True)]).after_blank_lines == Part("", drafts=[])
