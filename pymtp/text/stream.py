"""Turns the bytes of single tokens into text, as the tokens arrive.

Owns what is not certain yet: the bytes of an incomplete character, and characters that may be the start of a stop
string; and which characters came from drafts. Knows bytes and text; never token ids.
"""

import codecs
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import AnyStr


class TextStream:
    """Joins byte pieces into text; a character split over several tokens comes out whole.

    What `push` and `flush` return, joined, equals `all_bytes.decode("utf-8", errors="replace")` up to the first of
    the strings in `stop`: invalid bytes become U+FFFD, as soon as it is certain that they are invalid.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped_by: str | None = None
        """The stop string that has been found. Nothing more is returned then."""
        self._drafted = bytearray()  # a flag for each character decoded so far: its last token decides
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(stop)
        self._held = ""

    def push(self, piece: bytes, *, drafted: bool = False) -> str:
        """Return the text that is certain after `piece`; it may be empty. `drafted`: it is an accepted draft."""
        text = self._decoder.decode(piece)
        self._drafted += bytes([drafted]) * len(text)
        return self._until_stop(text) if self._stop else text

    def flush(self) -> str:
        """Return what was held back: the text ends here. An incomplete character becomes U+FFFD."""
        rest = self._decoder.decode(b"", final=True)
        text = self._until_stop(rest) + self._held if self._stop else rest
        self._held = ""
        return text

    @property
    def n_decoded(self) -> int:
        """Characters of all pieces, with those that are held back or left out."""
        return len(self._drafted)

    def parts(self, text: str, begin: int) -> list[tuple[str, bool]]:
        """Cut `text`, which begins at character `begin`, where origins change: parts, and whether they were drafted."""
        # characters that a flush adds were completed by no token
        drafted = self._drafted[begin : begin + len(text)].ljust(len(text), b"\0")
        runs = groupby(zip(text, drafted, strict=True), itemgetter(1))
        return [("".join(character for character, _ in run), bool(flag)) for flag, run in runs]

    def _until_stop(self, text: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stop if stop in text]
        if found:
            at, self.stopped_by = min(found)
            self._held = ""
            return text[:at]
        n_held = max(overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]


def overlap(text: AnyStr, stop: AnyStr) -> int:
    """How many of the last characters, or bytes, of `text` are the first ones of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
