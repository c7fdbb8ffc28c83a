"""Progress of loading a model or reading a prompt: a line on stderr if it is a terminal, else nothing.

Owns the drawing. Knows how much is done of how much; nothing about what it is.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from .output import can_redraw

Show = Callable[..., object]
"""Called with the amount done and the total; 1: it is left out."""


def loading(path: str | None) -> AbstractContextManager[Show | None]:
    """Yields a function to call with the share of the model that is loaded, 0 to 1; None without a terminal.

    The line disappears once all is loaded, or on leaving the context.
    """
    return _line(f"loading {Path(path).name if path else 'the embedded model'}", "{task.percentage:>3.0f}%")


@contextmanager
def _line(what: str, numbers: str, before: Callable[[], object] = lambda: None) -> Iterator[Show | None]:
    if not can_redraw(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), TextColumn(numbers), BarColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=1)

    def show(done: float, total: float = 1) -> None:
        before()
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
"""Yields a function to call with the tokens of a prompt that are done and all of them; see `loading`.

`before`: called before each drawing.
"""
writing = partial(_line, "writing", "{task.percentage:>3.0f}%")
"""The same for the bytes of a file that are written."""
