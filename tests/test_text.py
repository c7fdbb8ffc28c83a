"""Text from token bytes: whole characters, and the same text however the bytes were cut."""

from __future__ import annotations

import random

import pytest

from pymtp.text import TextStream

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
def test_byte_by_byte_gives_what_decoding_the_whole_gives(data: bytes) -> None:
    assert streamed([bytes([byte]) for byte in data]) == data.decode("utf-8", errors="replace")


def test_random_bytes_in_random_pieces_give_what_decoding_the_whole_gives() -> None:
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


def test_flush_replaces_an_incomplete_character_and_starts_afresh() -> None:
    stream = TextStream()
    assert stream.push(b"ok\xe6\x97") == "ok"
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(b"\xa5") == "\ufffd"
