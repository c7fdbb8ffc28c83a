"""Shows an answer as it arrives: the model's thinking on stderr, the rest of it on stdout.

Owns where the parts of an answer go; llama.cpp's parsers find them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from .output import print_stderr, shows_color

if TYPE_CHECKING:
    from pymtp import ChatPrompt, Generation
    from pymtp.chat.parser import ChatDelta

_DRAFTED, _PLAIN = "\x1b[32m", "\x1b[39m"
_DIM, _NORMAL = "\x1b[2m", "\x1b[22m"


class AnswerWriter:
    """Passes content on to `write`, and shows thinking unless it is hidden. `chat` None: all is content."""

    def __init__(self, chat: ChatPrompt | None, write: Callable[[str], object], *, hides_thinking: bool) -> None:
        # without a thinking pieces go out as they are, and colours know where they were
        self._parser = chat.parse() if chat and chat.thinking_begin else None
        self._write, self._hides_thinking = write, hides_thinking
        self._last = "\n"  # of the thinking
        self._begin, self._end = (_DIM, _NORMAL) if shows_color(sys.stderr) else ("", "")

    def push(self, piece: str) -> None:
        """Show the next piece."""
        if self._parser is None:
            self._write(piece)
        else:
            self._show(self._parser.push(piece))

    def finish(self, *, is_cut: bool) -> None:
        """Show what was held back: the answer is over."""
        if self._parser is not None:
            self._show(self._parser.finish(is_cut=is_cut))
        self._end_thinking()

    def _show(self, deltas: list[ChatDelta]) -> None:
        for delta in deltas:
            if delta.reasoning and not self._hides_thinking:
                print_stderr(f"{self._begin}{delta.reasoning}{self._end}", ends_line=False)
                self._last = delta.reasoning[-1]
            if delta.content:
                self._end_thinking()
                self._write(delta.content)

    def _end_thinking(self) -> None:
        if self._last != "\n":
            print_stderr("")
            self._last = "\n"


def colored(generation: Generation, write: Callable[[str], object]) -> Callable[[str], object]:
    """A `write` for parts of a generation's text that shows its accepted drafts in another colour."""
    n_written = 0

    def write_colored(piece: str) -> None:
        nonlocal n_written
        begin = max(generation.text.find(piece, n_written), n_written)  # thinking lies between
        parts = generation.parts(begin, begin + len(piece))
        n_written = begin + len(piece)
        write("".join(f"{_DRAFTED}{part}{_PLAIN}" if drafted else part for part, drafted in parts))

    return write_colored
