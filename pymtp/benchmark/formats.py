"""Formats rows: Markdown for people; CSV, JSON, JSON lines and SQL for programs.

Owns the layouts. Those for programs carry every field of a row under its name, and no users, paths or texts.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

from pymtp.benchmark.report import markdown_report
from pymtp.benchmark.rows import Row

FORMATS = ("none", "md", "csv", "json", "jsonl", "sql")
TABLE = "pymtp_bench"
"""The name of the table in SQL."""

_NAMES = tuple(field.name for field in fields(Row))


def write(form: str, rows: Sequence[Row], *, notes: Sequence[str] = ()) -> str:
    """The rows in one of FORMATS. `notes` apply to "md" only."""
    if form == "md":
        return markdown_report(rows, notes=notes)
    return _WRITERS[form](rows)


def _csv(rows: Sequence[Row]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_NAMES)
    writer.writerows([_flat(value) for value in asdict(row).values()] for row in rows)
    return file.getvalue()


def _sql(rows: Sequence[Row]) -> str:
    columns = ",\n".join(f"  {field.name} {_sql_type(str(field.type))}" for field in fields(Row))
    lines = [f"CREATE TABLE IF NOT EXISTS {TABLE} (\n{columns}\n);"]
    for row in rows:
        values = ", ".join(_sql_value(_flat(value)) for value in asdict(row).values())
        lines.append(f"INSERT INTO {TABLE} ({', '.join(_NAMES)})\n  VALUES ({values});")
    return "\n".join(lines) + "\n"


def _sql_type(annotation: str) -> str:
    kind = annotation.partition(" |")[0]
    # SQLite leaves numbers and "auto" as they are in a NUMERIC column
    if "Literal" in annotation:
        return "NUMERIC"
    return {"int": "INTEGER", "bool": "INTEGER", "float": "REAL"}.get(kind, "TEXT")


def _flat(value: Any) -> Any:
    """A value for one cell: positions joined, true and false as numbers."""
    if isinstance(value, tuple):
        return " ".join(f"{one:.4f}" for one in value)
    return int(value) if isinstance(value, bool) else value


def _sql_value(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, (int, float)) else "'{}'".format(str(value).replace("'", "''"))


_WRITERS: dict[str, Callable[[Sequence[Row]], str]] = {
    "none": lambda rows: "",
    "csv": _csv,
    "json": lambda rows: json.dumps([asdict(row) for row in rows], ensure_ascii=False, indent=2) + "\n",
    "jsonl": lambda rows: "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows),
    "sql": _sql,
}
