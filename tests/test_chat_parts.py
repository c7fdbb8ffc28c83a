"""The parts of `pymtp chat`, without a model: thinking, typed values, the status line, input, completion."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pymtp_cli.chat import settings
from pymtp_cli.chat.reader import PipeReader
from pymtp_cli.chat.screen import Screen, status_line
from pymtp_cli.chat.thinking import ThinkingSplitter
from pymtp_cli.errors import CommandError
from pymtp_cli.output import Output

from pymtp.errors import InvalidParameter
from pymtp.serving.statistics import Stats


def split(text: str, *, starts_inside: bool = False, sizes: random.Random | None = None) -> list[tuple[str, bool]]:
    """All parts of `text`, given in pieces of one to five characters, neighbours of a kind joined."""
    splitter, parts, at = ThinkingSplitter(starts_inside=starts_inside), [], 0
    while at < len(text):
        n = sizes.randint(1, 5) if sizes else len(text)
        parts += splitter.push(text[at : at + n])
        at += n
    joined: list[tuple[str, bool]] = []
    for part, is_thinking in [*parts, *splitter.flush()]:
        if joined and joined[-1][1] is is_thinking:
            part = joined.pop()[0] + part
        joined.append((part, is_thinking))
    return joined


@pytest.mark.parametrize(
    ("text", "starts_inside", "parts"),
    [
        ("Hello", False, [("Hello", False)]),
        ("<think>hm</think>Yes.", False, [("<think>hm</think>", True), ("Yes.", False)]),
        (" \n<think>hm</think>", False, [(" \n<think>hm</think>", True)]),
        ("[THINK]a </think> b[/THINK]c", False, [("[THINK]a </think> b[/THINK]", True), ("c", False)]),
        ("<think>never ends </thi", False, [("<think>never ends </thi", True)]),
        ("hm</think>Yes.", True, [("hm</think>", True), ("Yes.", False)]),
        ("hm, no end", True, [("hm, no end", True)]),
        ("Tags are <think> and </think>.", False, [("Tags are <think> and </think>.", False)]),
        ("<thin air", False, [("<thin air", False)]),
        ("<", False, [("<", False)]),
        ("  ", False, [("  ", False)]),
    ],
)
def test_thinking_is_split_from_the_answer_however_the_text_is_cut(
    text: str, starts_inside: bool, parts: list[tuple[str, bool]]
) -> None:
    assert split(text, starts_inside=starts_inside) == parts
    for seed in range(20):
        assert split(text, starts_inside=starts_inside, sizes=random.Random(seed)) == parts


def test_an_answer_is_held_back_only_while_it_may_be_a_tag() -> None:
    splitter = ThinkingSplitter(starts_inside=False)
    assert splitter.push("<th") == []
    assert splitter.push("ree") == [("<three", False)]
    assert splitter.push("<think>") == [("<think>", False)]


@dataclass(frozen=True)
class Params:
    temperature: float = 0.8
    top_k: int = 40
    seed: int | None = None
    is_on: bool = False
    mode: Literal["one", "two"] = "one"
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
        ("mode", "two", "two"),
        ("words", "a, b", ("a", "b")),
        ("words", "a;b", ("a", "b")),
        ("words", "none", ()),
    ],
)
def test_a_typed_value_gets_the_declared_type(name: str, text: str, value: object) -> None:
    got = getattr(settings.with_value(Params(), name, text), name)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("temperature", "hot", "temperature must be a number, not 'hot'"),
        ("top_k", "1.5", "top_k must be an integer, not '1.5'"),
        ("top_k", "-1", "top_k must be 0 or more, not -1"),
        ("seed", "x", "seed must be an integer, not 'x'"),
        ("is_on", "maybe", "is_on must be one of on, true, off, false, not 'maybe'"),
        ("pairs", "1:2", f"pairs must be {settings._NOT_HERE}"),
        ("mode", "three", "mode must be one of one, two, not 'three'"),
    ],
)
def test_an_invalid_value_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        settings.with_value(Params(), name, text)
    assert str(caught.value) == message


def test_every_sampling_parameter_can_be_set_to_its_current_value() -> None:
    from pymtp import SamplingParams

    params = SamplingParams()
    for name in settings.names(params):
        value = getattr(params, name)
        if name != "logit_bias":
            assert settings.with_value(params, name, settings.typed(value)) == params


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
    monkeypatch.setattr(screen, "_is_terminal", True)
    screen.answer("a\x1b[2J\x07\x9b1m\tb\n日e\u0301\u200d\U0001f469")
    screen.end_answer()  # a word is shown once it is whole
    assert capsysbinary.readouterr().out.decode() == "a\ufffd[2J\ufffd\ufffd1m\tb\n日e\u0301\u200d\U0001f469\n"
