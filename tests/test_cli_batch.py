"""`pymtp batch`: files of requests, answered once each, whatever happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from machine import needs_exact_texts
from pymtp import BackendError, Model, Session

pytestmark = pytest.mark.model

OPTIONS = ["-t", "1", "-c", "1024", "-np", "4"]
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
os.execv(sys.argv[1], sys.argv[1:])
"""


def write(path: Path, n: int, **body: Any) -> Path:
    lines = [
        {
            "custom_id": f"request-{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"{i}. Once upon a time", "max_tokens": 20, **body},
        }
        for i in range(n)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def run(requests: Path, output: Path) -> Any:
    return CliRunner().invoke(app, ["batch", str(requests), "-o", str(output), *OPTIONS])


def texts(output: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    found = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"] for line in lines}
    assert len(found) == len(lines)
    return found


@needs_exact_texts
def test_the_same_file_gives_the_same_answers_and_nothing_is_done_twice(tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", 6, temperature=1.0)
    for name in ("one.jsonl", "two.jsonl"):
        result = run(requests, tmp_path / name)
        assert result.exit_code == 0, result.output
    found = texts(tmp_path / "one.jsonl")
    assert len(found) == 6
    assert found == texts(tmp_path / "two.jsonl")
    before = (tmp_path / "one.jsonl").read_bytes()
    # a line that was cut is answered again, others are not
    (tmp_path / "one.jsonl").write_bytes(before[:-20])
    assert run(requests, tmp_path / "one.jsonl").exit_code == 0
    assert texts(tmp_path / "one.jsonl") == found


def test_a_run_that_was_killed_continues(tmp_path: Path) -> None:
    requests, output = write(tmp_path / "in.jsonl", 20, ignore_eos=True, max_tokens=30), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "pymtp_cli", "batch", str(requests), "-o", str(output), *OPTIONS]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not output.exists() or output.read_bytes().count(b"\n") < 3:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    n_before = output.read_bytes().count(b"\n")
    assert 3 <= n_before < 20
    assert run(requests, output).exit_code == 0
    assert len(texts(output)) == 20


def test_a_request_that_fails_is_answered_and_the_others_are_too(tmp_path: Path) -> None:
    requests, output = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    bad = {"custom_id": "bad", "url": "/v1/chat/completions", "body": {"messages": []}}
    other = {"custom_id": "other", "url": "/v1/embeddings", "body": {}}
    requests.write_text("\n".join(map(json.dumps, (bad, other))) + "\n" + requests.read_text())
    assert run(requests, output).exit_code == 1
    status = {line["custom_id"]: line["response"]["status_code"] for line in map(json.loads, output.open())}
    assert status == {"bad": 400, "other": 400, "request-0": 200, "request-1": 200, "request-2": 200}


@needs_exact_texts
def test_an_engine_that_fails_once_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = write(tmp_path / "in.jsonl", 10)
    assert run(requests, tmp_path / "one.jsonl").exit_code == 0
    fails_at, decode = [20], Session.decode

    def failing(self: Session, *arguments: Any, **options: Any) -> Any:
        fails_at[0] -= 1
        if fails_at[0] == 0:
            raise BackendError("the device is lost")
        return decode(self, *arguments, **options)

    monkeypatch.setattr(Session, "decode", failing)
    assert run(requests, tmp_path / "two.jsonl").exit_code == 0
    assert fails_at[0] < 0
    assert texts(tmp_path / "two.jsonl") == texts(tmp_path / "one.jsonl")


def test_an_engine_that_fails_again_ends_the_run_which_continues_without_what_it_failed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, output = write(tmp_path / "in.jsonl", 10), tmp_path / "out.jsonl"

    def failing(self: Session, *arguments: Any, **options: Any) -> Any:
        raise BackendError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "decode", failing)
        result = run(requests, output)
    assert result.exit_code == 1 and "the device is lost" in result.output
    failed = {line["custom_id"]: line["response"]["status_code"] for line in map(json.loads, output.open())}
    assert 0 < len(failed) < 10 and set(failed.values()) == {500}
    assert run(requests, output).exit_code == 0
    status = {line["custom_id"]: line["response"]["status_code"] for line in map(json.loads, output.open())}
    assert len(status) == 10
    assert {name for name, each in status.items() if each == 500} == set(failed)


def test_a_request_that_the_engine_refuses_fails_alone_and_is_not_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, output = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    generate, n_asked = Model.generate, 0

    def refusing(self: Model, prompt: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal n_asked
        if prompt == self.tokenize("1. Once upon a time"):
            n_asked += 1
            if n_asked > 10:
                pytest.fail("it is asked again and again")  # no timeout would end it: nothing else has its turn
            raise BackendError("no memory")
        return generate(self, prompt, *arguments, **options)

    monkeypatch.setattr(Model, "generate", refusing)
    assert run(requests, output).exit_code == 1
    status = {line["custom_id"]: line["response"]["status_code"] for line in map(json.loads, output.open())}
    assert status == {"request-0": 200, "request-1": 500, "request-2": 200} and n_asked == 1


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit there")
def test_a_disk_that_is_full_ends_the_run_which_can_continue(tmp_path: Path) -> None:
    requests, output = write(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "pymtp_cli", "batch", str(requests), "-o", str(output), *OPTIONS]
    done = subprocess.run([sys.executable, "-c", LIMITED, *command], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "File too large" in done.stderr, done.stderr
    assert all(json.loads(line)["response"]["status_code"] == 200 for line in output.read_bytes().splitlines()[:-1])
    assert run(requests, output).exit_code == 0
    assert len(texts(output)) == 12


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "[" * 100_000, '{"custom_id": "a"}', '{"custom_id": 1, "url": "/v1/completions", "body": {}}'],
    ids=["cut", "list", "deep", "no body", "number"],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "in.jsonl").write_text(line + "\n")
    result = run(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert result.exit_code != 0 and "in.jsonl:1" in result.stderr and result.stderr.count("\n") == 1


def test_one_request_is_counted_as_one(tmp_path: Path) -> None:
    result = run(write(tmp_path / "in.jsonl", 1, max_tokens=1), tmp_path / "out.jsonl")
    assert result.stderr.splitlines()[-1].startswith("1 request, 0 of this run failed: see ")
