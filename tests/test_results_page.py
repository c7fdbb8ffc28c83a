"""docs/results.md: what the records say, and which files are no records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import write_results

RECORDS = sorted(write_results.RECORDS.glob("*.json"))


def test_the_page_is_what_the_records_say() -> None:
    assert write_results.FILE.read_text("utf-8") == write_results.text(), "run `python docs/write_results.py`"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_each_record_has_lines_with_its_gains(path: Path) -> None:
    record = write_results.read(path)
    cells = write_results.lines(record)
    assert len(cells) >= 1 and all(line["plain"] > 0 for line in cells)
    gains = ", ".join(line["gains"] for line in cells)
    assert gains.count(": ") == sum(row["draft_max"] != 0 for row in record["rows"] if row["n_gen"])


def test_a_line_is_of_all_kinds_of_text_that_drafts_were_made_for(tmp_path: Path) -> None:
    record = json.loads(RECORDS[0].read_text("utf-8"))
    line = write_results.lines(record)
    assert write_results.lines({**record, "rows": [{**row, "category": "code"} for row in record["rows"]]}) == line
    record["rows"] += [{**row, "category": "code", "avg_ts": 1.0} for row in record["rows"]]
    assert write_results.lines(record) == line
    record["rows"][0]["forced_rate"] = 0.5
    (tmp_path / "record.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(write_results.BadRecord, match="forced"):
        write_results.read(tmp_path / "record.json")


def test_losses_are_bold() -> None:
    row = {"draft_max": 3, "speedup": 0.9, "speedup_low": 0.8, "speedup_high": 1.1}
    assert write_results.gain(row) == "K 3: **0.90 (0.80-1.10)**"
    assert write_results.gain({**row, "draft_max": "auto", "speedup": 1.0}) == "auto: 1.00 (0.80-1.10)"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"user": "me"}, "other keys"),
        ({"rows": [{"test": 1}]}, "other keys"),
        ({"rows": 3}, "no record"),
        ({"note": "in /home/me/models"}, "has /home/ in it"),
        ({"note": "C:\\Users\\me"}, "in it"),
        ({"system": "a | b"}, "has | in it"),
        ({"source": "<script>"}, "has < in it"),
    ],
)
def test_what_is_no_record_is_refused(change: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**json.loads(RECORDS[0].read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(write_results.BadRecord, match=says.replace("|", r"\|")):
        write_results.read(path)
