"""How far the reading of a model is: a line on a terminal's stderr while it takes time, and nothing elsewhere.

Owns the drawing. Knows shares, 0 to 1; never what they are of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def loading(path: str | None) -> Iterator[Callable[[float], object] | None]:
    """Give a function to call with the share of the model that is loaded; None where nobody would see it.

    The line is gone once all is loaded, or when the context is left.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(f"loading {Path(path).name if path else 'the embedded model'}", total=1)

    def show(share: float) -> None:
        progress.start()
        progress.update(task, completed=share)
        if share >= 1:
            progress.stop()

    try:
        yield show
    finally:
        progress.stop()
