"""Text from token bytes: whole characters, and the same text however the bytes were cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymtp.text.stream import TextStream

SAMPLES = [
    b"",
    b"plain ASCII",
    "gr\u00fc\u00dfe, \u65e5\u672c\u8a9e, \U0001f600!".encode(),
    b"stray \x80 continuation",
    b"overlong \xc0\xaf and \xe0\x80\x80",
    b"surrogate \xed\xa0\x80 half",
    b"too high \xf4\x90\x80\x80 and \xff",
    b"cut off \xf0\x9f\x98",
    b"cut in the middle \xe6\x97 then text",
]


def streamed(pieces: list[bytes]) -> str:
    stream = TextStream()
    return "".join([*(stream.push(piece) for piece in pieces), stream.flush()])


@pytest.mark.parametrize("data", SAMPLES)
def test_byte_by_byte_equals_decoding_at_once(data: bytes) -> None:
    assert streamed([bytes([byte]) for byte in data]) == data.decode("utf-8", errors="replace")


def test_random_bytes_in_random_pieces_equal_decoding_at_once() -> None:
    source = random.Random(1)
    alphabet = b"a\x80\xbf\xc3\xe6\x97\xa5\xed\xa0\xf0\x9f\x98\x80\xff"
    for _ in range(500):
        data = bytes(source.choices(alphabet, k=source.randrange(40)))
        cuts = sorted(source.randrange(len(data) + 1) for _ in range(5))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert streamed(pieces) == data.decode("utf-8", errors="replace")


def test_a_character_is_held_back_until_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "\u65e5x".encode()] == ["", "", "\u65e5", "x"]


def test_flush_replaces_an_incomplete_character_and_starts_over() -> None:
    stream = TextStream()
    assert stream.push(b"ok\xe6\x97") == "ok"
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(b"\xa5") == "\ufffd"


LETTERS = st.text("ab\u65e5", max_size=12)


@settings(derandomize=True, database=None, deadline=None)
@given(
    text=LETTERS,
    stop=st.lists(st.text("ab\u65e5", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 40)),
)
def test_the_text_ends_before_the_stop_string_that_comes_first(text: str, stop: list[str], cuts: list[int]) -> None:
    data = text.encode()
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    stream = TextStream(stop)
    out = ""
    for begin, end in zip([0, *ends], ends, strict=False):
        out += stream.push(data[begin:end])
        whole = data[:end].decode(errors="ignore")
        assert (stream.stopped_by is not None) == any(one in whole for one in stop)
        if stream.stopped_by is not None:
            break
    out += stream.flush()
    found = [text.find(one) for one in stop if one in whole]  # of several in one piece, the one that begins first
    assert out == (text[: min(found)] if found else text)


def test_characters_that_may_begin_a_stop_string_are_held_back() -> None:
    stream = TextStream(["\n\nUser:", "END"])
    pieces = [b"a\n", b"\nUs", b"e", b"d E", b"N", b"x\n", b"\nUser", b": more", b"and more"]
    assert [stream.push(piece) for piece in pieces] == ["a", "", "", "\n\nUsed ", "", "ENx", "", "", ""]
    assert stream.stopped_by == "\n\nUser:"
    assert stream.flush() == ""


def test_held_back_text_is_flushed_at_the_end() -> None:
    stream = TextStream(["END"])
    assert [stream.push(b"the E"), stream.push(b"N"), stream.flush()] == ["the ", "", "EN"]
    assert stream.stopped_by is None


def test_parts_are_cut_where_origins_change_and_join_to_the_text() -> None:
    stream = TextStream()
    for piece, drafted in ((b"ab", False), (b"c", True), (b"", False), (b"de", True), (b"fgh", False)):
        stream.push(piece, drafted=drafted)
    assert stream.parts("abcdefgh", 0) == [("ab", False), ("cde", True), ("fgh", False)]
    assert stream.parts("def", 3) == [("de", True), ("f", False)]
    assert stream.parts("h\ufffd", 7) == [("h\ufffd", False)]  # nothing has completed the last one
    assert stream.parts("", 3) == []


def test_characters_count_for_the_token_that_completes_them_even_if_held_back() -> None:
    found = []
    for drafted in range(6):
        stream = TextStream(["END"])
        for i, piece in enumerate((b"\xe6", b"\x97", b"\xa5", b"xE", b"N", b"ot")):
            stream.push(piece, drafted=i == drafted)
        found.append("".join(part for part, is_drafted in stream.parts("\u65e5xENot", 0) if is_drafted))
    assert found == ["", "", "\u65e5", "xE", "N", "ot"]
