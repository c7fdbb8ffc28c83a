"""How many threads compute where nobody says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pymtp.engine.cores import n_cores


def topology(folder: Path, siblings: list[str]) -> Path:
    for i, others in enumerate(siblings):
        path = folder / f"cpu{i}" / "topology" / "thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(others + "\n")
    return folder


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [({0, 1, 2, 3}, 2), ({0, 1}, 2), ({0, 2}, 1), ({3}, 1)],
    ids=["all", "one-of-each-core", "both-of-one-core", "one"],
)
def test_processors_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed, raising=False)
    assert n_cores(topology(tmp_path, ["0,2", "1,3", "0,2", "1,3"])) == expected


def test_without_a_topology_each_processor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert n_cores(tmp_path) == 3
