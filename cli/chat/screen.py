"""The chat's output: answers on stdout, everything else on stderr, colours if wanted.

Owns escape sequences and widths. Knows text; nothing about models or commands.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from pymtp import Answer

from ..answer import DIM, END, Part, Writer
from ..output import Output, print_stderr, shows_color
from ..text import harmless

CUT = {"length": "-n", "context": "the context is full: -c", "blocked": "no token is allowed", None: "interrupted"}
"""Words for the reasons for which an answer is not whole."""


@dataclass
class Display:
    """What people may choose about how answers are shown: see /set."""

    color: bool = False
    """Accepted drafts in another colour, at a terminal."""
    stats: bool = True
    """A line of figures after each answer."""


class Screen:
    """Writes answers piece by piece, and notes and tables.

    Only terminals get escape sequences and wrapped notes, and no escape sequences at all with NO_COLOR or TERM=dumb.
    """

    def __init__(self, output: Output, display: Display | None = None) -> None:
        self.display = display or Display()
        self._output, self._writer = output, Writer(output)
        self._dims_notes = shows_color(sys.stderr)
        self._wraps_notes = sys.stderr is not None and sys.stderr.isatty()
        self._last = "\n"  # on stdout
        self._is_after_thinking = False

    @property
    def columns(self) -> int:
        """The terminal's current width; 80 without a terminal."""
        return shutil.get_terminal_size().columns

    def part(self, part: Part) -> None:
        """Write a part of an answer: as from `pymtp run`, but without blank lines after the thinking.

        Raises OutputClosed and CommandError.
        """
        if self._is_after_thinking and not part.is_thinking:
            part = part.after_blank_lines
        if part.text:
            self._is_after_thinking = part.is_thinking
            self._last = self._last if part.is_thinking else part.text[-1]
            self._writer.write(part)

    def tag(self, text: str) -> None:
        """Write what begins or ends the thinking, on a new line."""
        self.end_answer()
        self.part(Part(text.strip(), is_thinking=True))

    def end_answer(self) -> None:
        """Start a new line unless the last piece ended one."""
        self._writer.end_thinking()
        if self._last != "\n":
            self._last = "\n"
            self._output.write("\n")

    def note(self, text: str) -> None:
        """Show a note on stderr, on a terminal wrapped to its width; an answer that is being written ends there."""
        self.end_answer()
        width = max(self.columns - 1, 20)
        for line in text.splitlines() or [""]:
            if self._wraps_notes:
                line = textwrap.fill(harmless(line), width, subsequent_indent="  ", break_on_hyphens=False)
            print_stderr(f"{DIM}{line}{END[DIM]}" if self._dims_notes else line)

    def table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Show names and descriptions: side by side, or below each other if the terminal is too narrow."""
        self.end_answer()
        rows = list(rows)
        width = max(len(name) for name, _ in rows) + 2
        if width > self.columns // 2:
            self.note("\n".join(f"{name}\n  {text}" for name, text in rows))
            return
        for name, text in rows:
            lines = textwrap.wrap(harmless(text), max(self.columns - width - 1, 10), break_on_hyphens=False) or [""]
            print_stderr((f"{name:<{width}}" + f"\n{'':<{width}}".join(lines)).rstrip())


def status_line(answer: Answer, columns: int) -> str:
    """One line of figures about a finished answer: as many as fit."""
    stats = answer.stats
    n = stats.generated_tokens
    cut = f" ({CUT[answer.finish_reason]})" if answer.finish_reason in CUT else ""
    parts = [
        f"{stats.generation_tok_s:.0f} tok/s" if stats.generation_tok_s is not None else "",
        f"{n} token{'s' * (n != 1)}{cut}",
        # counts beside the tokens of the whole text: 1 of 1 is not mistaken for a share of it
        f"drafts {stats.accepted} of {stats.drafted} accepted" if stats.drafted else "",
        f"prompt {answer.n_prompt - answer.n_cached} + {answer.n_cached} cached",
        f"{stats.mean_acceptance_length:.2f} tokens per round" if stats.drafted else "",
    ]
    lines = [f"[{', '.join(shown)}]" for shown in accumulate([part] for part in parts if part)]
    return next((line for line in reversed(lines) if len(line) < columns), lines[0])
