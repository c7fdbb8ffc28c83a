"""Shows Markdown as it arrives: finished blocks stay, the last one is drawn again until it is finished.

Owns the block that is not over yet. rich lays out and draws.
"""

import re
import sys
import time
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import CodeBlock, Markdown
from rich.segment import Segment, SegmentLines
from rich.syntax import Syntax

_FENCE = re.compile(r" {0,3}(```+|~~~+)([^\n`]*)$")
_REDRAW_S = 0.1
_N_SPARE_LINES = 4
"""Lines of the screen that the last block leaves free."""


class MarkdownView:
    """Draws on stdout, a terminal. Open from the first `push` until `close`; nothing else may write in between."""

    def __init__(self) -> None:
        self._rest = ""
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._needs_gap = False  # before the next block

    def push(self, text: str) -> None:
        """Add text to the end."""
        live = self._open()
        self._rest += text
        n_lines = max(live.console.height - _N_SPARE_LINES, 4)
        is_due = time.monotonic() - self._drawn_at > _REDRAW_S
        while found := split_first(self._rest, n_lines):
            block, self._rest, is_cut = found
            drawn = self._drawn(block)
            self._needs_gap = not is_cut and (self._needs_gap or bool(block.strip()))
            # before the block is printed, so that the same lines are not on the screen twice
            live.update(self._drawn(""), refresh=False)
            live.console.print(drawn, end="")
            is_due = True
        if is_due:
            live.update(self._drawn(self._rest), refresh=True)
            self._drawn_at = time.monotonic()

    def close(self) -> None:
        """Draw the end. Harmless if nothing was pushed."""
        if self._live is not None:
            self._live.update(self._drawn(self._rest), refresh=True)
            self._live.stop()
            self._live, self._rest, self._needs_gap = None, "", False

    def _drawn(self, text: str) -> RenderableType:
        """The lines of `text`, an empty one before them if something else is above."""
        assert self._live is not None
        lines = self._live.console.render_lines(_Text(text, code_theme="ansi_dark"), pad=False)
        while lines and _is_blank(lines[0]):
            del lines[0]
        while lines and _is_blank(lines[-1]):
            del lines[-1]
        return SegmentLines([[], *lines] if lines and self._needs_gap else lines, new_lines=True)

    def _open(self) -> Live:
        if self._live is None:
            console = Console(file=sys.stdout, highlight=False)
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.vertical_overflow = "crop"
            self._live.start()
        return self._live


def split_first(text: str, n_lines: int) -> tuple[str, str, bool] | None:
    """Cut `text` after its first block if that is finished; None if it is not.

    A fenced block of more than `n_lines` is cut into several; the third value says whether the cut is inside of one.
    """
    lines = text.split("\n")
    fence = ""  # that is open
    for i, line in enumerate(lines[:-1]):  # the last line is not over
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not match[2].strip():
                return _cut(lines, i + 1)
        elif match and i:
            return _cut(lines, i)
        elif match:
            fence = match[1]
        elif not line.strip():
            return _cut(lines, i + 1)
    if fence and len(lines) > n_lines + 1:  # of what is on the screen, only so much can be drawn again
        return "\n".join([*lines[:-1], fence]), "\n".join([lines[0], lines[-1]]), True
    return None


def _cut(lines: list[str], n: int) -> tuple[str, str, bool]:
    return "\n".join(lines[:n]), "\n".join(lines[n:]), False


def _is_blank(line: Sequence[Segment]) -> bool:
    return not "".join(segment.text for segment in line).strip()


class _Code(CodeBlock):
    """A block without the empty lines that rich puts around it, so that a long one can be drawn in parts."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, background_color="default")


class _Text(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code}
