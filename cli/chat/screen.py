"""The chat's output: answers on stdout, everything else on stderr, colours if wanted.

Owns escape sequences and widths. Knows text; nothing about models or commands.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..output import Output, print_stderr, shows_color

if TYPE_CHECKING:
    from pymtp import Answer

_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


_CUT = {"length": " (-n)", None: " (interrupted)"}  # a full context has a note of its own


class Screen:
    """Writes answers piece by piece, and notes and tables.

    Only terminals get escape sequences, and none at all with NO_COLOR or TERM=dumb.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_terminal = sys.stdout.isatty()
        self._dims_answers = shows_color(sys.stdout)
        self._dims_notes = shows_color(sys.stderr)
        self._last = "\n"

    @property
    def columns(self) -> int:
        """The terminal's current width; 80 without a terminal."""
        return shutil.get_terminal_size().columns

    def answer(self, text: str, *, is_thinking: bool = False) -> None:
        """Write a piece of an answer; thinking is dimmed. Raises OutputClosed and CommandError."""
        if not text:
            return
        if self._is_terminal:
            text = _sanitized(text)
        self._last = text[-1]
        self._output.write(f"{_DIM}{text}{_PLAIN}" if is_thinking and self._dims_answers else text)

    def end_answer(self) -> None:
        """Start a new line unless the last piece ended one."""
        if self._last != "\n":
            self.answer("\n")

    def note(self, text: str) -> None:
        """Show a note on stderr, wrapped to the terminal's width."""
        for line in text.splitlines() or [""]:
            wrapped = textwrap.fill(line, max(self.columns - 1, 20), subsequent_indent="  ", break_on_hyphens=False)
            print_stderr(f"{_DIM}{wrapped}{_PLAIN}" if self._dims_notes else wrapped)

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Show names and descriptions: side by side, or below each other if the terminal is too narrow."""
        rows = list(rows)
        width = max(len(name) for name, _ in rows) + 2
        if width > self.columns // 2:
            self.note("\n".join(f"{name}\n  {text}" for name, text in rows))
            return
        for name, text in rows:
            lines = textwrap.wrap(text, max(self.columns - width - 1, 10), break_on_hyphens=False) or [""]
            for i, line in enumerate(lines):
                print_stderr(f"{name if i == 0 else '':<{width}}{line}".rstrip())


def status_line(answer: Answer, columns: int) -> str:
    """One line of figures about a finished answer: as many as fit."""
    stats = answer.stats
    parts = [f"{stats.generation_tok_s:.0f} tok/s"] if stats.generation_tok_s is not None else []
    parts.append(f"{stats.generated_tokens} tokens{_CUT.get(answer.finish_reason, '')}")
    if stats.drafted:
        # counts beside the tokens of the whole text: 1 of 1 is not mistaken for a share of it
        parts.append(f"drafts {stats.accepted} of {stats.drafted} accepted")
    parts.append(f"prompt {answer.n_prompt - answer.n_cached} + {answer.n_cached} cached")
    if stats.drafted:
        parts.append(f"{stats.mean_acceptance_length:.2f} tokens per round")
    line = ", ".join(parts)
    while len(line) + 2 >= columns and len(parts) > 1:
        parts.pop()
        line = ", ".join(parts)
    return f"[{line}]"


def _sanitized(text: str) -> str:
    """Control characters in an answer must not reach the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" or ord(char) > 0x9F else "\ufffd" for char in text)
