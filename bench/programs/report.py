"""Formats the results: Markdown for people, CSV for programs, and a plot.

Knows columns; nothing about how they were measured.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paired.table import Table
from pymtp.benchmark.tables import columns, fill, markdown

_SPEED = columns(
    *("K=k:d", "program=program", "tok/s=tok_s:.1f", "IQR=iqr_tok_s:.1f", "of plain=of_plain:.2f"),
    *("95 %=of_plain_interval", "of draft-mtp=of_draft_mtp:.2f", "95 %=of_draft_mtp_interval", "n=n:d"),
)
_DRAFTS = columns(
    *("K=k:d", "program=program", "acceptance rate=acceptance_rate:.3f", "mean length=mean_acceptance_length:.2f"),
    *("host MiB=host_mib:.0f", "device MiB=device_mib:.0f"),
)
_CATEGORIES = columns(
    *("K=k:d", "text=category", "program=program", "tok/s=tok_s:.1f", "of plain=of_plain:.2f"),
    *("of draft-mtp=of_draft_mtp:.2f", "acceptance rate=acceptance_rate:.3f"),
)
SHORT = [_SPEED[i] for i in (0, 1, 2, 4, 6)]

_NOTES = (
    "tok/s: the median of all answers and its interquartile range, for the generation only. Of plain, of draft-mtp: "
    "the median over pairs of answers to the same prompt in the same repetition, as a multiple of llama-server's speed "
    "without drafts and with them, and an interval that contains the median with 95 % probability (fewer than 6 pairs: "
    "their range). llama-server, llama-cli, llama-bench and llama-speculative-simple report their own times; Python "
    "programs are timed from the first piece of text to the end. llama-bench samples nothing. llama-cpp-python's Llama "
    "stops where the model does. Mean length: mean acceptance length. Host MiB: peak resident memory, including the "
    "mapped model file; device MiB: at the end."
)


def report(results: dict[str, Any]) -> str:
    """All tables, with provenance and notes."""
    parts = [fill(results["provenance"]), fill(results["model"]), fill(results["method"])]
    parts += [markdown(_SPEED, results["rows"]), markdown(_DRAFTS, results["rows"])]
    if len({row["category"] for row in results["categories"]}) > 1:
        parts += ["## By kind of text", markdown(_CATEGORIES, results["categories"])]
    parts += [f"Left out: {failure}" for failure in results["failures"]]
    return "\n\n".join([*parts, fill(_NOTES)])


def write_csv(path: Path, rows: Table) -> None:
    """A line for each row."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def plot(path: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Speeds as bars, grouped by K; whiskers show the interquartile range. Needs matplotlib."""
    from matplotlib.figure import Figure

    lengths = list(dict.fromkeys(row["k"] for row in rows))
    figure = Figure(figsize=(8, 0.6 + 0.35 * len(rows)), layout="constrained")
    for axes, k in zip(figure.subplots(len(lengths), sharex=True, squeeze=False)[:, 0], lengths, strict=True):
        part = [row for row in rows if row["k"] == k][::-1]
        bars = axes.barh(
            [row["program"] for row in part],
            [row["tok_s"] for row in part],
            xerr=[row["iqr_tok_s"] / 2 for row in part],
            color=["tab:blue" if row["program"].startswith("pymtp") else "silver" for row in part],
        )
        axes.bar_label(bars, [f"{row['tok_s']:.0f}" for row in part], padding=3)
        axes.margins(x=0.12)
        axes.set_ylabel(f"K = {k}")
    axes.set_xlabel("tokens per second")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path)
