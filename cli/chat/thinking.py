"""Splits an answer into thinking and the rest, as it arrives.

Owns the beginning of a marker until its end arrives. Knows text only.
"""

from __future__ import annotations

from pymtp.text.thinking import TAGS

Part = tuple[str, bool]
"""A text, and whether it is thinking. Markers are part of the thinking."""

_OPENING = tuple(opening for opening, _ in TAGS)
_CLOSING = tuple(closing for _, closing in TAGS)


class ThinkingSplitter:
    """Splits the pieces of an answer. Thinking starts with the answer, or before it in the prompt (`starts_inside`)."""

    def __init__(self, *, starts_inside: bool) -> None:
        self._held = ""
        self._is_start = not starts_inside
        self._closing = _CLOSING if starts_inside else ()

    def push(self, piece: str) -> list[Part]:
        """Return the parts that are certain after `piece`."""
        self._held += piece
        if self._is_start and not self._start_is_known():
            return []
        return self._split()

    def flush(self) -> list[Part]:
        """Return what was held back: the answer is over."""
        held, self._held = self._held, ""
        return [(held, bool(self._closing))] if held else []

    def _start_is_known(self) -> bool:
        """Whether it is certain by now that the answer starts with a marker, or with none."""
        text = self._held.lstrip()
        if any(opening.startswith(text) and opening != text for opening in _OPENING):
            return False
        self._is_start = False
        self._closing = tuple(closing for opening, closing in TAGS if text.startswith(opening))
        return True

    def _split(self) -> list[Part]:
        if not self._closing:
            return self.flush()
        ends = [self._held.index(closing) + len(closing) for closing in self._closing if closing in self._held]
        if ends:
            thinking, self._held = self._held[: min(ends)], self._held[min(ends) :]
            self._closing = ()
            return [(thinking, True), *self.flush()]
        n_held = max(_n_begun(self._held, closing) for closing in self._closing)
        certain = self._held[: len(self._held) - n_held]
        self._held = self._held[len(certain) :]
        return [(certain, True)] if certain else []


def _n_begun(text: str, marker: str) -> int:
    """How many characters at the end of `text` may be the beginning of `marker`."""
    return next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)
