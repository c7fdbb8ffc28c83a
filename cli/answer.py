"""An answer as it arrives: which parts of it are thinking, and which were accepted drafts.

Owns taking it apart, and what `pymtp run` writes of it; llama.cpp's parsers find the thinking.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import NamedTuple, TextIO

from pymtp import Answer, ChatDelta, Generation

from .interrupt import Interrupt
from .output import Output, print_stderr, shows_color
from .text import harmless

DIM, DRAFTED = "\x1b[2m", "\x1b[32m"
"""Escape sequences before thinking, and before accepted drafts."""
END = {DIM: "\x1b[22m", DRAFTED: "\x1b[39m"}
"""What follows the text after each of them."""


class Part(NamedTuple):
    """A piece of an answer."""

    text: str
    is_thinking: bool = False
    drafts: Sequence[tuple[str, bool]] = ()
    """`text` in pieces, and whether each was an accepted draft; empty if nobody asked."""

    @property
    def styled(self) -> Iterator[tuple[str, str]]:
        """`text` in pieces, and the escape sequence of each one's style; "": none."""
        if self.is_thinking:
            yield self.text, DIM
            return
        for text, was_drafted in self.drafts or [(self.text, False)]:
            yield text, DRAFTED if was_drafted else ""

    @property
    def after_blank_lines(self) -> "Part":
        """Itself, without the line breaks that it begins with."""
        drafts = [*dropwhile(lambda piece: not piece[0].strip("\n"), self.drafts)]
        drafts[:1] = [(text.lstrip("\n"), was_drafted) for text, was_drafted in drafts[:1]]
        return self._replace(text=self.text.lstrip("\n"), drafts=drafts)


def parts_of(answer: Generation | Answer, interrupt: Interrupt, *, with_drafts: bool = False) -> Iterator[Part]:
    """The parts of an answer as they arrive, until its end or the first Ctrl-C; then it is closed.

    `with_drafts`: they say what was drafted.
    """
    chat = answer.params.chat
    # without thinking, pieces are passed on as they are
    parser = chat.parse() if chat and chat.thinking_begin else None
    n_before = 0  # characters of the text before the next part

    def part(text: str, *, is_thinking: bool = False) -> Part:
        nonlocal n_before
        if not with_drafts:
            return Part(text, is_thinking)
        begin = max(answer.text.find(text, n_before), n_before)  # tags lie between
        n_before = begin + len(text)
        return Part(text, is_thinking, answer.parts(begin, n_before))

    def parts(deltas: Iterable[ChatDelta]) -> Iterator[Part]:
        for delta in deltas:
            if text := delta.reasoning or delta.content:
                yield part(text, is_thinking=bool(delta.reasoning))

    try:
        for piece in answer:
            interrupt.defer()
            yield from parts(parser.push(piece)) if parser else [part(piece)]
            if interrupt.requested:
                break
    finally:
        answer.close()
    if parser:
        yield from parts(parser.finish(is_cut=answer.finish_reason not in ("eog", "stop")))


class Writer:
    """Writes the parts of an answer, as they arrive: thinking on stderr, the rest on stdout."""

    def __init__(self, output: Output, *, hides_text: bool = False, hides_thinking: bool = False) -> None:
        self._output, self._hides_text, self._hides_thinking = output, hides_text, hides_thinking
        self._last = "\n"  # of the thinking

    def write(self, part: Part) -> None:
        """Write the next part. Raises OutputClosed and CommandError."""
        if part.is_thinking:
            if not self._hides_thinking:
                print_stderr(_for_stream(part, sys.stderr), ends_line=False)
                self._last = part.text[-1]
        elif not self._hides_text:
            self.end_thinking()
            self._output.write(_for_stream(part, sys.stdout))

    def end_thinking(self) -> None:
        """End the line of the thinking, if it has not ended."""
        if self._last != "\n":
            print_stderr("")
            self._last = "\n"


def _for_stream(part: Part, stream: TextIO | None) -> str:
    """The text of a part; for a terminal in colours if it wants them, and without characters that control it."""
    if stream is None or not stream.isatty():
        return part.text
    has_colors = shows_color(stream)
    pieces = [(harmless(text), style) for text, style in part.styled]
    return "".join(f"{style}{text}{END[style]}" if style and has_colors else text for text, style in pieces)
