"""The benchmark of rounds, on its tiny model: its counts are checked exactly, its times not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paired.report import report
from paired.subject import Options
from pymtp import ContextParams

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "rounds.py"
SHORT = ["--tiny", "-k", "2", "3,1,2", "--rounds", "6", "--repeat", "1", "--prompt-tokens", "40", "--threads", "1"]


def run(*options: str) -> str:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *SHORT, *options], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--json"))
    return found


def row(results: dict[str, Any], k: str, scheme: str) -> dict[str, Any]:
    [found] = [row for row in results["rounds"] if (row["k"], row["scheme"]) == (k, scheme)]
    assert isinstance(found, dict)
    return found


def test_all_schemes_walk_the_scripted_text_and_draft_the_same(results: dict[str, Any]) -> None:
    assert len(results["rounds"]) == 8
    for found in results["rounds"]:
        assert found["ms_round"] > found["python_ms"] > 0
        # llama.cpp rounds passes of several rows in another way
        assert found["n_astray"] == 0 or found["scheme"] == "two contexts"
        assert found["drafts_agree"] is None or found["drafts_agree"] > 0.8


@pytest.mark.parametrize(("scheme", "n_passes"), [("plain", 0), ("two contexts", 3), ("step by step", 2), ("fused", 1)])
def test_passes_of_the_heads_are_counted(results: dict[str, Any], scheme: str, n_passes: int) -> None:
    for k in ("2", "3,1,2"):
        assert row(results, k, scheme)["head_passes"] == n_passes


def test_two_contexts_rebuild_graphs_and_carry_hidden_states(results: dict[str, Any]) -> None:
    reference = row(results, "3,1,2", "two contexts")
    assert reference["trunk_builds"] == 1 and reference["head_builds"] == 2
    # the target's 3 rows down, 3 rows up to catch up, 2 up to draft and 2 down
    assert row(results, "2", "two contexts")["hidden_bytes"] == 10 * 256 * 4
    for scheme in ("step by step", "fused"):
        ours = row(results, "3,1,2", scheme)
        assert ours["trunk_builds"] == ours["head_builds"] == ours["hidden_bytes"] == 0


def test_compute_buffers_are_measured(results: dict[str, Any]) -> None:
    for found in results["rounds"]:
        assert 2**20 < found["compute_bytes"] < 2**25


def test_the_least_cost_of_a_prompt_follows_from_the_shapes(results: dict[str, Any]) -> None:
    without, *others = results["prompts"]
    assert without["heads_percent"] is without["floor_percent"] is None
    attention = 2 * 256 * 256 + 2 * 256 * 128 + (256 + 128 + 128) + 2 * 256
    # 8 experts of which a token uses 2, and a shared one
    feed_forward = 3 * 3 * 256 * 128 + 256 * 8 + 8
    trunk = 4 * attention + 3 * feed_forward + 3 * 256 * 512
    head = 512 * 256 + 2 * (256 + 1) * 128 + 3 * 256
    for found in others:
        assert found["heads_percent"] == pytest.approx(100 * head / (trunk + head))
        assert found["floor_percent"] == pytest.approx(100 * (head + feed_forward + 256) / (trunk + head))


def check_report(text: str) -> None:
    lines = text.splitlines()
    assert sum(line.startswith("|") for line in lines) > 20
    assert max(map(len, lines)) <= 100


def test_the_report_is_readable_at_100_columns(results: dict[str, Any]) -> None:
    check_report(report(results, Options([(2,), (3, 1, 2)], 6, 1, 40, ContextParams(n_threads=1), -1)))


@pytest.mark.slow
def test_the_report_is_printed_unless_json_is_asked_for() -> None:
    check_report(run())
