"""Formats rows: Markdown for people; CSV, JSON and JSON lines for programs.

Owns the layouts. Those for programs carry every field of a row under its name, and no users, paths or texts.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from pymtp.benchmark.report import markdown_report
from pymtp.benchmark.rows import Row


def write(form: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """The rows as md, csv, json or jsonl; "" for none. `notes` apply to md only."""
    if form == "md":
        return markdown_report(rows, notes)
    values = [asdict(row) for row in rows]
    if form == "csv":
        return _csv(values)
    if form == "json":
        return json.dumps(values, ensure_ascii=False, indent=2) + "\n"
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in values) if form == "jsonl" else ""


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    writer.writerows([_flat(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _flat(value: Any) -> Any:
    """A value for one cell: positions joined, true and false as numbers."""
    if isinstance(value, tuple):
        return " ".join(f"{one:.4f}" for one in value)
    return int(value) if isinstance(value, bool) else value
