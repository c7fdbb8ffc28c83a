"""Which tokens of a text are thinking."""

from __future__ import annotations

import pytest

from pymtp.text.thinking import TAGS, ClosedOnce, Thinking, tags_of


def phases(*pieces: str) -> list[bool]:
    """After each piece."""
    thinking = Thinking("<think>", "</think>")
    phases = []
    for piece in pieces:
        thinking.observe(piece.encode())
        phases.append(thinking.is_inside)
    return phases


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a", "<think>", "b", "</think>", "c"], "..xx.."[1:]),
        (["<think>", "</think>"], "x."),
        (["<", "think", ">", "a", "</", "think", ">"], "..xxxx."),
        (["<th", "in", "k>\n", "</think", "x"], "..xxx"),
        (["a<think>b</think>c"], "."),
        (["a<think>b</think>c<think>d"], "x"),
        (["<think>", "<think>", "</think>"], "xx."),
        (["</think>", "<think>"], ".x"),
        (["<thi", "<think>"], ".x"),
        (["<think>a</thi", "nk>b<thi", "nk>"], "x.x"),
        (["", "<think>", "", "</think>", ""], ".xx.."),
    ],
)
def test_tags_open_and_close_thinking_however_they_are_cut(pieces: list[str], expected: str) -> None:
    assert phases(*pieces) == [phase == "x" for phase in expected]


def test_a_prompt_may_leave_a_model_thinking() -> None:
    assert Thinking("<think>", "</think>", [b"user: x\nassistant: <th", b"ink>\n"]).is_inside
    assert not Thinking("<think>", "</think>", [b"<think>\n", b"\n</think>\n\n"]).is_inside
    assert not Thinking("<think>", "</think>").is_inside


def test_invalid_utf8_does_no_harm() -> None:
    thinking = Thinking("<think>", "</think>", [b"\xe6\x97", b"\xa5<think>\xff", b"\xf0\x9f"])
    assert thinking.is_inside
    thinking.observe(b"\x98</think>")
    assert not thinking.is_inside


def test_tags_come_from_the_tokens_or_else_from_the_template() -> None:
    tokens = {"a": 0, "[THINK]": 1, "[/THINK]": 2}
    assert tags_of(tokens, "... <think> ... </think>") == ("[THINK]", "[/THINK]")
    assert tags_of({"<think>": 0}, "{{ '<think>' }} ... </think>") == ("<think>", "</think>")
    assert tags_of({"<think>": 0}, "{{ '<think>' }}") is None
    assert tags_of({}, None) is None
    for tags in TAGS:
        assert tags_of(dict.fromkeys(tags, 0), None) == tags


@pytest.mark.parametrize(
    ("budget", "pieces", "shown"),
    [
        (2, "a b </think> c </think> d", "ab</think>cd"),
        (2, "a b </think> c </ think > d </think>", "ab</think>cd"),
        (2, "a b </think> c</thi nk>d</th i", "ab</think>cd</thi"),
        (2, "a b </think> </ th <", "ab</think></th<"),
        (2, "a </think> c </think> d", "a</think>c</think>d"),  # it has closed itself: what follows is about tags
        (0, "</think> c </think> d", "</think>cd"),
        (1, "a </think> b <think> c </think> d </think> e", "a</think>b<think>c</think>de"),
        (2, "a b </think> c </think> <think> d </think> e </think>", "ab</think>c<think>d</think>e</think>"),
    ],
)
def test_what_a_budget_has_closed_is_closed_once(budget: int, pieces: str, shown: str) -> None:
    for begins in (["<think>"], ["<thi", "nk>"]):
        closed = ClosedOnce(Thinking("<think>", "</think>", [each.encode() for each in begins]), ["</think>"], budget)
        assert b"".join([*(closed.push(piece.encode()) for piece in pieces.split()), closed.flush()]) == shown.encode()


def test_without_a_thinking_no_tag_is_left_out() -> None:
    closed = ClosedOnce(Thinking("<think>", "</think>"), ["</think>"], 0)
    assert b"".join([closed.push(b"a </think> b </thi"), closed.flush()]) == b"a </think> b </thi"
