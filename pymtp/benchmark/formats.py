"""Formats rows: Markdown for people; CSV, JSON, JSON lines and SQL for programs; a record that anybody may publish.

Owns the layouts. The formats for programs carry every field of a row under its name. The record is small: machine,
model, speeds and acceptance; no users, no paths, no texts. It is written to a file; nothing is sent.
"""

import csv
import io
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pymtp.benchmark.report import in_all, markdown_report
from pymtp.benchmark.rows import Row
from pymtp.errors import PymtpError, explained

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


MACHINE = ("pin", "cpu_info", "gpu_info", "backends", "n_threads")
"""Fields that are those of the first row."""
MEASURED = (
    *("model_filename", "model_type", "model_n_params", "model_sha256"),
    *("n_gpu_layers", "flash_attn", "type_k", "type_v", "n_parallel", "draft_vocab", "n_prompt", "n_gen", "n_depth"),
    *("draft_max", "temperature", "acceptance", "n_samples", "avg_ts", "speedup", "speedup_low", "speedup_high"),
    *("mean_acceptance_length", "acceptance_per_position"),
)
_DRIVER = Path("/sys/module/nvidia/version")
"""NVIDIA's driver, on Linux."""


def check_folder(path: Path) -> None:
    """Raise PymtpError if no record can be written to `path`. For use before measuring."""
    if not path.parent.is_dir():
        raise PymtpError(f"{path.parent} is not a folder; create it, or name another one after --submit")


def submit(path: Path, rows: Sequence[Row]) -> None:
    """Write the record of rows, at least one, whose acceptance is not forced. Raises PymtpError."""
    shown = in_all(rows)
    record = {
        "date": shown[0].test_time[:10],
        "system": f"{platform.system()} {platform.machine()}",
        "driver": _DRIVER.read_text("ascii").strip() if shown[0].gpu_info and _DRIVER.is_file() else "",
        **{name: getattr(shown[0], name) for name in MACHINE},
    }
    lines = [json.dumps({name: _short(getattr(row, name)) for name in MEASURED}) for row in shown]
    rows_text = ",\n  ".join(lines)
    text = f'{json.dumps(record, indent=1)[:-2]},\n "rows": [\n  {rows_text}\n ]\n}}\n'
    with explained(f"write {path}", "check the path after --submit"):
        path.write_text(text, encoding="utf-8")


def _short(value: Any) -> Any:
    """A value with the digits that mean something."""
    if isinstance(value, tuple):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
