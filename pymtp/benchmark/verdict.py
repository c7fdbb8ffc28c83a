"""One sentence for each model and test: which draft length is fastest here, and whether any pays.

Knows rows; nothing about how they were measured or where the sentence is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymtp.benchmark.rows import ALL, Row


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Sentences about the tests that generate, over all kinds of text."""
    summed = {_key(row) for row in rows if row.category == ALL}
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.speedup is not None and row.n_gen and (row.category == ALL or _key(row) not in summed):
            found.setdefault(_key(row), []).append(row)
    varied = len({key[1:] for key in found}) > 1
    return [_verdict(group, named=varied or len(found) > 1) for group in found.values()]


def _key(row: Row) -> tuple[Any, ...]:
    variant = (row.n_threads, row.n_gpu_layers, row.flash_attn, row.type_k, row.type_v, row.n_batch, row.n_ubatch)
    return row.model_filename, *variant, row.n_parallel, row.draft_vocab, row.test, row.temperature, row.forced_rate


def _verdict(rows: Sequence[Row], *, named: bool) -> str:
    best = max(rows, key=lambda row: row.speedup or 0)
    others = [row for row in rows if row is not best]
    auto = next((row for row in others if row.draft_max == "auto"), None)
    where = f"{best.test}, temperature {best.temperature:g}"
    if named:
        where = f"{best.model_filename}, {best.n_threads} thread{'s' * (best.n_threads != 1)}, {where}"
    if best.forced_rate is not None:
        where += f", acceptance forced to {best.forced_rate:g}"
    text = f"{_name(best)} makes {gain_text(best)} times the speed of plain decoding"
    if auto is not None:
        text += f", auto {gain_text(auto)}"
    return f"Verdict ({where}): {_advice(best)}: {text}."


def _advice(best: Row) -> str:
    low, high = best.speedup_low or 0, best.speedup_high or 0
    if (best.speedup or 0) <= 1:
        return "leave drafting off (--draft none)" if high < 1 else "drafting gains nothing"
    if best.n_samples < 6 or low <= 1:
        return "drafting may pay, but the spread is too large to be sure (-r: more repetitions)"
    return "drafting pays"


def _name(row: Row) -> str:
    return "auto" if row.draft_max == "auto" else f"K = {row.draft_max}"


def gain_text(row: Row) -> str | None:
    """The speed-up, and its interval if it comes of several pairs; None if there is none."""
    if row.speedup is None:
        return None
    is_interval = row.speedup_low != row.speedup_high
    return f"{row.speedup:.2f}" + (f" ({row.speedup_low:.2f}-{row.speedup_high:.2f})" if is_interval else "")
