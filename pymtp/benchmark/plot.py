"""Plots speed-up and acceptance rate by K and kind of text. The only module that needs matplotlib."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pymtp.benchmark.report import unusual, variant_key
from pymtp.benchmark.rows import Row
from pymtp.errors import PymtpError, explained

SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise PymtpError if a plot cannot be written to `path`. For use before measuring."""
    if path.suffix not in SUFFIXES:
        raise PymtpError(f"{path} is neither .png nor .svg; use one of these suffixes")
    if not os.path.isdir(path.parent):
        raise PymtpError(f"{path.parent} is not a folder; create it, or name another one for the plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise PymtpError("a plot needs matplotlib: pip install matplotlib, or install pymtp-gguf[plot]")


def draw(path: Path, rows: Sequence[Row]) -> bool:
    """Plot the rows that have drafts; return False if there are none. Raises PymtpError if writing fails."""
    from matplotlib.figure import Figure

    drafting = [row for row in rows if row.speedup is not None and row.n_gen]
    groups = {_group(row): [one for one in drafting if _group(one) == _group(row)] for row in drafting}
    if not groups:
        return False
    figure = Figure(figsize=(10, 0.5 + 3.2 * len(groups)), layout="constrained")
    for axes, part in zip(figure.subplots(len(groups), 2, squeeze=False), groups.values(), strict=True):
        _bars(axes[0], part, "speed-up over plain", lambda row: row.speedup, intervals=True)
        axes[0].axhline(1, color="black", linewidth=0.8)
        axes[0].set_title(_title(part[0]), fontsize="small", loc="left")
        _bars(axes[1], part, "acceptance rate", lambda row: row.acceptance_rate)
        axes[1].set_ylim(0, 1)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), title="K")
    if not all(row.is_valid_text for row in rows):
        figure.suptitle("drafts accepted at random: not valid model output", fontsize="medium")
    with explained(f"write {path}", "check the path after --plot"):
        figure.savefig(path)
    return True


def _group(row: Row) -> tuple[Any, ...]:
    """The key of rows that share a plot: all draft lengths and kinds of text of one test."""
    return *variant_key(row), row.test, row.temperature, row.accept, row.forced_rate


def _title(row: Row) -> str:
    device = row.gpu_info if row.gpu_info else f"{row.cpu_info}, {row.n_threads} thread{'s' * (row.n_threads != 1)}"
    parts = [f"{row.model_filename} ({row.model_type})", device, *unusual(row)]
    # the second line: what was done, the first one: with what
    return f"{', '.join(parts)}\n{row.test}, temperature {row.temperature:g}, {row.acceptance}"


def _bars(
    axes: Any, rows: Sequence[Row], label: str, value: Callable[[Row], float | None], *, intervals: bool = False
) -> None:
    """Groups of bars: a group for each kind of text, a bar for each K."""
    categories = list(dict.fromkeys(row.category for row in rows))  # as in the tables
    lengths = list(dict.fromkeys(row.draft_max for row in rows))
    width = 0.8 / len(lengths)
    for i, k in enumerate(lengths):
        part = [row for row in rows if row.draft_max == k]
        places = [categories.index(row.category) + (i - (len(lengths) - 1) / 2) * width for row in part]
        heights = [value(row) or 0.0 for row in part]
        below = [(row.speedup or 0) - (row.speedup_low or 0) for row in part]
        above = [(row.speedup_high or 0) - (row.speedup or 0) for row in part]
        if not intervals:  # no drafts, so no rate: not the same as a rate of 0
            for place, row in zip(places, part, strict=True):
                if row.acceptance_rate is None:
                    axes.annotate("none", (place, 0.0), ha="center", va="bottom", fontsize="x-small", rotation=90)
        axes.bar(places, heights, width, label=str(k), yerr=[below, above] if intervals else None, capsize=2)
    axes.set_xticks(range(len(categories)), categories)
    axes.set_ylabel(label)
