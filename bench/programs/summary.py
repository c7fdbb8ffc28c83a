"""Turns samples into rows: medians, spreads, ratios of pairs, acceptance.

Knows no program by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from paired.table import Table
from pymtp.benchmark.prompts import Prompt
from pymtp.benchmark.rows import median_interval
from spread import Spread

from .case import Sample
from .turns import ProgramResult, Samples


def summarize(found: Sequence[ProgramResult], references: Mapping[str, str], titles: Mapping[str, str]) -> Table:
    """A row for each program that has samples.

    `references`: names of the programs with which the others are compared, and the names of the columns for that.
    """
    samples = {entry.name: entry.samples for entry in found}
    rows = []
    for entry in found:
        if not entry.samples:
            continue
        speed = Spread.of([sample.tok_s for sample in entry.samples.values()])
        row: dict[str, Any] = {"program": titles[entry.name], "tok_s": speed.median, "iqr_tok_s": speed.iqr}
        for name, column in references.items():
            ratios = [] if name == entry.name else _ratios(entry.samples, samples.get(name, {}))
            row[column] = median(ratios) if ratios else None
            row[f"{column}_interval"] = _interval(ratios)
        row |= _acceptance(entry.samples.values())
        row["host_mib"] = _mib(entry.memory.host_bytes)
        row["device_mib"] = _mib(entry.memory.device_bytes)
        row["n"] = len(entry.samples)
        rows.append(row)
    return rows


def by_category(
    found: Sequence[ProgramResult], prompts: Sequence[Prompt], references: Mapping[str, str], titles: Mapping[str, str]
) -> Table:
    """The rows of `summarize`, for each kind of text."""
    rows = []
    for category in dict.fromkeys(prompt.category for prompt in prompts):
        part = [ProgramResult(entry.name, _of(entry.samples, prompts, category)) for entry in found]
        rows += [{"category": category, **row} for row in summarize(part, references, titles)]
    return rows


def raw_rows(found: Sequence[ProgramResult], prompts: Sequence[Prompt], titles: Mapping[str, str]) -> Table:
    """A row for each sample."""
    return [
        {
            "program": titles[entry.name],
            "category": prompts[trial.prompt].category,
            **trial._asdict(),
            "n_prompt": len(prompts[trial.prompt].tokens),
            **vars(sample),
        }
        for entry in found
        for trial, sample in entry.samples.items()
    ]


def _of(samples: Samples, prompts: Sequence[Prompt], category: str) -> Samples:
    return {trial: sample for trial, sample in samples.items() if prompts[trial.prompt].category == category}


def _ratios(one: Samples, other: Samples) -> list[float]:
    return [sample.tok_s / other[trial].tok_s for trial, sample in one.items() if trial in other]


def _interval(ratios: Sequence[float]) -> str | None:
    if not ratios:
        return None
    low, high = median_interval(ratios)
    return f"{low:.2f}-{high:.2f}"


def _acceptance(samples: Iterable[Sample]) -> dict[str, float | None]:
    """Acceptance over all samples."""
    drafting = [sample for sample in samples if sample.n_drafted and sample.n_accepted is not None]
    drafted = sum(sample.n_drafted or 0 for sample in drafting)
    accepted = sum(sample.n_accepted or 0 for sample in drafting)
    rounds = sum(sample.n_rounds or 0 for sample in drafting)
    return {
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
    }


def _mib(n_bytes: int | None) -> float | None:
    return None if n_bytes is None else n_bytes / 2**20
