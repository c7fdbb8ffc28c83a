"""Writes docs/results.md from the records in bench/community.

    python docs/write_results.py

A record has what a speed report has: `rows`, which `pymtp bench -o json` wrote, the `system` with its GPU's driver,
`source`, where the model comes from, and maybe a `note`.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from pymtp.benchmark.rows import ALL
from pymtp.benchmark.tables import columns, markdown

FILE = Path(__file__).with_name("results.md")
RECORDS = FILE.parent.parent / "bench" / "community"

HEAD = """# Results of users

<!-- written by docs/write_results.py from bench/community: `make docs` -->

`pymtp bench` measured this on users' machines. *plain*: tokens per second without drafts; *speed-up*: of drafting, by
draft length K, with 95 % intervals, losses in bold; *by position*: how often the first, second, ... draft was accepted,
with the longest fixed K. To add a machine:

```sh
pymtp bench MODEL --draft-max 0-3,auto -o json > record.json
```

and paste the file into an issue of the kind "Speed report". It has no user names, paths or texts.

"""
COLUMNS = columns("machine=machine", "model=model", "test=test", "plain=plain:.1f", "speed-up=gains", "by position=p")
SAME = (
    *("model_filename", "model_type", "model_sha256", "n_gpu_layers", "flash_attn", "type_k", "type_v", "n_parallel"),
    *("draft_vocab", "n_threads", "n_prompt", "n_gen", "n_depth", "temperature"),
)
"""What rows of one line have in common."""
READ = {
    *(*SAME, "cpu_info", "gpu_info", "test_time", "category", "draft_max", "forced_rate", "avg_ts"),
    *("speedup", "speedup_low", "speedup_high", "acceptance_per_position"),
}
"""The fields of a row that the page is made of."""


class BadRecord(Exception):
    """A file that is no record, and why."""


def read(path: Path) -> dict[str, Any]:
    """A record whose rows are those of this version. Raises BadRecord."""
    try:
        record = json.loads(path.read_text("utf-8"))
        keys = {"system", "source", "rows"}
        if not keys <= set(record) <= keys | {"note"} or any(READ - set(row) for row in record["rows"]):
            raise BadRecord(f"{path.name} has other keys than a record")
        if any(row["forced_rate"] is not None for row in record["rows"]):
            raise BadRecord(f"{path.name} has forced acceptance in it")
    except (ValueError, TypeError) as error:
        raise BadRecord(f"{path.name} is no record: {error}") from error
    if found := re.search(r"/(?:home|Users)/|\\\\|[|<>`]", json.dumps(record)):
        raise BadRecord(f"{path.name} has {found[0]} in it, as a path or a page has")
    return dict(record)


def text() -> str:
    """The whole of docs/results.md."""
    cells = [line for path in sorted(RECORDS.glob("*.json")) for line in lines(read(path))]
    return HEAD + markdown(COLUMNS, cells) + "\n"


def lines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each model and test of a record that generates tokens."""
    generated = [row for row in record["rows"] if row["n_gen"]]
    has_all = any(row["category"] == ALL for row in generated)
    shown = [row for row in generated if row["category"] == ALL or not has_all]
    return [line(record, list(rows)) for _, rows in groupby(shown, lambda row: [row[name] for name in SAME])]


def line(record: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    first, last = rows[0], max(rows, key=lambda row: (row["draft_max"] != "auto", len(row["acceptance_per_position"])))
    n = first["n_threads"]
    threads = "" if first["gpu_info"] else f", {n} thread{'s' * (n != 1)}"
    machine = (first["gpu_info"] or first["cpu_info"] + threads, record["system"], first["test_time"][:10])
    model = f"{record['source']} ({first['model_type']}, sha256 {first['model_sha256'][:12]})"
    test = f"pp{first['n_prompt']}+" * bool(first["n_prompt"]) + f"tg{first['n_gen']}"
    test += f" @ d{first['n_depth']}" * bool(first["n_depth"]) + f", temp {first['temperature']:g}"
    return {
        "machine": ", ".join([*machine, *filter(None, [record.get("note")])]),
        "model": model,
        "test": test,
        "plain": next((row["avg_ts"] for row in rows if row["draft_max"] == 0), None),
        "gains": ", ".join(gain(row) for row in rows if row["draft_max"]) or None,
        "p": " ".join(f"{rate:.2f}" for rate in last["acceptance_per_position"]) or None,
    }


def gain(row: dict[str, Any]) -> str:
    value = f"{row['speedup']:.2f} ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})"
    name = "auto" if row["draft_max"] == "auto" else f"K {row['draft_max']}"
    return f"{name}: " + (f"**{value}**" if row["speedup"] < 1 else value)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
