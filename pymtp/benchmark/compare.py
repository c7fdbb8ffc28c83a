"""Compares results with those of an earlier run, read from the file that -o json, jsonl or csv has written.

Knows the fields of rows; nothing about how they were measured.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Any

from pymtp.benchmark.rows import OF_VARIANT, Row
from pymtp.benchmark.tables import columns, fill, markdown
from pymtp.errors import PymtpError, explained
from pymtp.text.files import read_text_record

_SAME = (
    *("model_filename", "n_threads", *OF_VARIANT, "test", "category", "draft_max", "temperature", "accept"),
    "forced_rate",
)
"""Fields in which rows that are compared are equal."""
_PROVENANCE = {"model_sha256": "model", "cpu_info": "processor", "gpu_info": "GPU", "pin": "pymtp"}
_COLUMNS = columns(
    *("model=model_filename", "threads=n_threads:d", "test=test", "text=category", "K=draft_max:s"),
    *("temp=temperature:g", "before=before:.1f", "now=avg_ts:.1f", "change=change:+.1%", "=remark"),
)

_T95 = {2: 12.7, 3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4}
"""Student's t for a 95 % interval, by the number of samples of the smaller side; the last one is for 7 and more."""

Earlier = dict[tuple[str, ...], dict[str, Any]]
"""Rows of an earlier run by what they have in common with rows of this one."""


def read_earlier(path: Path) -> Earlier:
    """The rows in a file of an earlier run. Raises PymtpError."""
    with explained(f"read {path}", "check the path after --compare"):
        text = read_text_record(path)
    try:
        if text.startswith("["):
            rows = json.loads(text)
        elif text.startswith("{"):
            rows = [json.loads(line) for line in text.splitlines()]
        else:
            rows = list(csv.DictReader(text.splitlines()))
        numbers = ("avg_ts", "stddev_ts", "n_samples")
        found = {_key(row): {**row, **{name: float(row[name]) for name in numbers}} for row in rows}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = {}
    if not found:
        raise PymtpError(f"{path} holds no results; name a file that -o json, jsonl or csv has written")
    return found


def comparison(rows: Sequence[Row], earlier: Earlier) -> str:
    """A table of the rows that both runs have, and what else is different between them."""
    now = [asdict(row) for row in rows]
    pairs = [(row, earlier[key]) for row in now if (key := _key(row)) in earlier]
    if not pairs:
        return fill("Compared with the earlier run: no row has the same model, settings and test.") + "\n"
    cells = [_cells(row, before) for row, before in pairs]
    keys = {key for _, key, _ in _COLUMNS[:6]}
    varied = [
        column
        for column in _COLUMNS
        if column[1] in ("test", "draft_max") or column[1] not in keys or len({row[column[1]] for row in cells}) > 1
    ]
    others = [
        what for field, what in _PROVENANCE.items() if any(row[field] != before.get(field) for row, before in pairs)
    ]
    notes = [f"Not the same {' and '.join(others)} as before."] if others else []
    legend = (
        "tok/s before and now. Noise: a change within the 95 % interval of the difference, from the spread inside each "
        "run. Runs of the same program can differ by more: repeat both before you trust a few per cent."
    )
    parts = ["Compared with the earlier run:", markdown(varied, cells), *map(fill, [*notes, legend])]
    return "\n\n".join(parts) + "\n"


def _cells(row: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    errors = [one["stddev_ts"] ** 2 / max(one["n_samples"], 1) for one in (row, before)]
    difference = row["avg_ts"] - before["avg_ts"]
    n = int(min(row["n_samples"], before["n_samples"]))
    is_known = n > 1
    is_noise = is_known and abs(difference) <= _T95[min(n, max(_T95))] * sqrt(sum(errors))
    remark = "" if not is_known else "noise" if is_noise else "slower" if difference < 0 else "faster"
    change = difference / before["avg_ts"] if before["avg_ts"] else None
    return {**row, "draft_max": str(row["draft_max"]), "before": before["avg_ts"], "change": change, "remark": remark}


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(_text(row[name]) for name in _SAME)


def _text(value: Any) -> str:
    """CSV has only texts: numbers are compared by what they look like, and nothing is empty."""
    if value is None:
        return ""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)
