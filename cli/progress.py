"""Progress on stderr: of loading a model, of reading a prompt, of measuring. Where it is no terminal nothing, or lines.

Owns the drawing. Knows how much is done of how much; nothing about how it is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .output import can_redraw, print_stderr

if TYPE_CHECKING:
    from pymtp.benchmark import Results, Row, Variant
    from pymtp.benchmark.measure import Step

Show = Callable[[float, float], object]
"""Called with the amount done and the total."""


@contextmanager
def loading(path: str | None) -> Iterator[Callable[[float], object] | None]:
    """Yield a function to call with the share of the model that is loaded, 0 to 1; None without a terminal.

    The line disappears once all is loaded, or on leaving the context.
    """
    name = Path(path).name if path else "the embedded model"
    with _line(f"loading {name}", "{task.percentage:>3.0f}%") as show:
        yield (lambda share: show(share, 1)) if show else None


@contextmanager
def _line(what: str, numbers: str) -> Iterator[Show | None]:
    if not can_redraw(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), TextColumn(numbers), BarColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=1)

    def show(done: float, total: float) -> None:
        if done >= total:
            progress.stop()
            return
        progress.update(task, completed=done, total=total)
        progress.start()

    try:
        yield show
    finally:
        progress.stop()


prompting = partial(_line, "prompt", "{task.completed}/{task.total}")
"""Yields a function to call with the tokens of a prompt that are done and all of them; see `loading`."""
answering = partial(_line, "answers", "{task.completed}/{task.total}")
"""The same for answers that are complete."""
writing = partial(_line, "writing", "{task.percentage:>3.0f}%")
"""The same for the bytes of a file that are written."""


@contextmanager
def measuring(results: Results, variant: Variant, *, is_shown: bool) -> Iterator[Callable[[Step], object]]:
    """Yield a function to call with each step. At a terminal the step is one line that changes, else a line of its own.

    The line disappears on leaving the context; what is said about finished tests stays.
    """
    if not is_shown:
        yield lambda step: None
        return
    if not can_redraw(sys.stderr):

        def write_line(step: Step) -> None:
            if step.finished:
                print_stderr("\n".join(_lines(results, variant, step.finished.name)))
            else:
                print_stderr(f"pymtp: {step.text}")

        yield write_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(step: Step) -> None:
            progress.update(task, description=step.text, completed=step.n_done, total=step.n_all or None)
            if step.finished:
                for line in _lines(results, variant, step.finished.name):
                    console.print(line, markup=False, soft_wrap=True)

        yield show


def _lines(results: Results, variant: Variant, test: str) -> list[str]:
    from pymtp.benchmark import rows
    from pymtp.benchmark.report import in_all

    return [_row_text(row) for row in in_all(rows(results, variant)) if row.test == test]


def _row_text(row: Row) -> str:
    from pymtp.benchmark.report import gain_text

    k = str(row.draft_max) if row.n_gen or not row.draft_max else "any"
    parts = [f"pymtp: {row.test}, temperature {row.temperature:g}, K = {k}: {row.avg_ts:.1f} tok/s"]
    parts += [f"speed-up {gain}"] if (gain := gain_text(row)) else []
    parts += [f"accepted {row.acceptance_rate:.2f}"] if row.acceptance_rate is not None else []
    return ", ".join(parts)
