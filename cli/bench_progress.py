"""What `pymtp bench` shows on stderr while it measures: the step, a bar with the time that is left, finished tests.

Owns the drawing. Knows steps and rows; nothing about how they are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .output import can_redraw, print_stderr

if TYPE_CHECKING:
    from pymtp.benchmark import Results, Row, Variant
    from pymtp.benchmark.measure import Step


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

    return [_line(row) for row in in_all(rows(results, variant)) if row.test == test]


def _line(row: Row) -> str:
    from pymtp.benchmark.report import gain_text

    k = str(row.draft_max) if row.n_gen or not row.draft_max else "any"
    parts = [f"pymtp: {row.test}, temperature {row.temperature:g}, K = {k}: {row.avg_ts:.1f} tok/s"]
    parts += [f"speed-up {gain}"] if (gain := gain_text(row)) else []
    parts += [f"accepted {row.acceptance_rate:.2f}"] if row.acceptance_rate is not None else []
    return ", ".join(parts)
