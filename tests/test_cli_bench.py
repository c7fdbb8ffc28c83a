"""`pymtp bench` with the embedded model: what it measures and prints, and how it ends. Its times are not looked at."""

from __future__ import annotations

import csv
import getpass
import io
import json
import os
import platform
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pytest
from pymtp_cli import parsers as lists
from pymtp_cli import table
from pymtp_cli.app import app
from pymtp_cli.bench import _check
from typer.testing import CliRunner

from pymtp.benchmark.experiment import Experiment, Variant, Workload, make_arms
from pymtp.engine.context import ContextParams
from pymtp.serving.params import Accept
from random_gguf import write_glm4moe
from random_gguf.side_files import split_heads
from terminal import Terminal

COMMAND = [sys.executable, "-m", "pymtp_cli", "bench"]
SHORT = ["-p", "16", "-n", "8", "-r", "2", "-t", "1"]
TIMEOUT_S = 120

model = pytest.mark.model


def bench(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], prog_name="pymtp")


def rows(*arguments: object) -> list[dict[str, Any]]:
    """What `-o json` says of a run that goes well."""
    result = bench(*SHORT, "-o", "json", *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two short ones, of two kinds."""
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "Hello!"}]
    lines = [{"category": "code", "prompt": "def add(a, b):"}, {"category": "chat", "messages": messages}]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


# --- lists ---


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5", (5,)),
        ("1,2,7", (1, 2, 7)),
        ("1-4", (1, 2, 3, 4)),
        ("0-8+3", (0, 3, 6)),
        ("128-1024*2", (128, 256, 512, 1024)),
        ("3,1-2,auto", (3, 1, 2, "auto")),
    ],
)
def test_lists_are_written_as_for_llama_bench(text: str, values: tuple[object, ...]) -> None:
    assert lists.Several(lambda one: one if one == "auto" else int(one))(text) == values


def test_a_flag_can_be_given_several_times() -> None:
    assert lists.each([(1, 2), (2, 3)]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-p 1-0", "'-p/--n-prompt': must be a list such as 1,2 or 1-8 or 0-8+2 or 128-1024*2"),
        ("-p 1-8+0", "must be a list such as"),
        ("-p 0-8*2", "must be a list such as"),
        ("-n 0-9999999", "of at most 1000 values"),
        ("-n x", "must be an integer between 0 and 2147483647, not 'x'"),
        ("-p 5-auto", "not '5-auto'"),
        ("-pg 512", "must be two numbers such as 512,128, not '512'"),
        ("--draft-max 33", "must be auto or an integer between 0 and 32, not '33'"),
        ("--draft-max 30-40", "not '33'"),
        ("--temp 0,-1", "must be numbers 0 or more, separated by commas, not '0,-1'"),
        ("--synthetic 1.5", "must be numbers between 0 and 1"),
        ("--accept magic", "must be one of auto, match, rejection, rejection-tokenwise, not 'magic'"),
        ("-ctk f16,q9", "not 'q9'"),
        ("-ctv q4_0 -fa 0", "must be f32, f16 or bf16 without flash attention"),
        ("-o xml", "must be one of none, md, csv, json, jsonl, not 'xml'"),
        ("-r 0", "must be an integer between 1 and 10000"),
        ("-p 0 -n 0", "there is nothing to measure: give -p, -n or -pg a number above 0"),
        ("--draft-vocab 9999", "must be at most 8192 for nano-step35-Q4_K_M.gguf, not 9999"),
        ("--synthetic 0.5 --prompts x.jsonl", "leave out --prompts"),
        ("--draft-vocb 1", "No such option: --draft-vocb"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_fix(arguments: str, expected: str) -> None:
    result = bench(*arguments.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert expected.replace("'-p/--n-prompt'", "-p/--n-prompt") in result.stderr
    assert "see pymtp bench --help" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m nowhere.gguf", "nowhere.gguf: no such file; check the path"),
        ("--prompts nowhere.jsonl", "cannot read the prompts in nowhere.jsonl: No such file or directory; check"),
    ],
)
def test_what_cannot_be_used_is_one_line_before_anything_is_loaded(arguments: str, expected: str) -> None:
    result = bench(*arguments.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert expected in result.stderr


def test_names_are_those_of_the_library() -> None:
    assert get_args(Accept) == table.ACCEPT


def test_devices_are_listed() -> None:
    result = bench("--list-devices")
    assert result.exit_code == 0
    assert result.stdout.startswith("Available devices:\n  ")
    assert " MiB free)" in result.stdout


# --- with the model ---


@model
def test_an_answer_of_one_token_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines = (f'{{"category": "x", "prompt": "hi", "answer": "{answer}"}}\n' for answer in ("a longer one", "a"))
    path.write_text("".join(lines))
    result = bench("--answers", str(path), "-p", "0", "-r", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "pymtp: the answer 'a' is a single token, which takes no round; make it longer\n"


@model
def test_every_arm_has_a_row_in_every_test_and_kind_of_text(prompts: Path) -> None:
    found = rows("-r", "1", "--prompts", prompts, "--draft-max", "1,auto", "-d", "0,32", "-pg", "16,8")
    assert [(row["test"], row["category"], row["draft_max"]) for row in found] == [
        (f"{test}{depth}", category, k)
        for depth in ("", " @ d32")
        for test, categories, lengths in (
            ("pp16", [""], [0, 1]),
            ("tg8", ["all", "code", "chat"], [0, 1, "auto"]),
            ("pp16+tg8", ["all", "code", "chat"], [0, 1, "auto"]),
        )
        for category in categories
        for k in lengths
    ]
    for row in found:
        drafts = row["draft_max"] != 0
        assert row["avg_ts"] > 0
        assert (row["speedup"] is not None) == drafts
        # what heads cost a prompt is measured where prompts are
        assert (row["mtp_prompt_cost"] is not None) == (drafts and row["n_prompt"] > 0)
        assert (row["prompt_ts_without_mtp"] is not None) == (row["n_prompt"] > 0)
        if not row["n_gen"] and drafts:
            assert row["speedup"] == pytest.approx(1 - row["mtp_prompt_cost"])
        if row["n_gen"]:
            n_tokens = row["rounds"] + row["accepted"]
            assert n_tokens == 8 * row["n_samples"]
            assert row["verify_ms"] > 0 and row["sample_ms"] > 0 and row["python_ms"] > 0
            assert drafts or row["draft_ms"] == 0
    assert found[0]["memory_bytes"] > found[0]["memory_without_mtp_bytes"] > 20e6
    assert (found[0]["n_threads"], found[0]["model_type"], len(found[0]["model_sha256"])) == (1, "step35 Q4_K_M", 64)
    assert "llama.cpp" in found[0]["pin"]
    assert abs(datetime.now(timezone.utc) - datetime.fromisoformat(found[0]["test_time"].replace("Z", "+00:00"))) < (
        timedelta(minutes=5)
    )


@model
def test_it_takes_the_flags_of_devices_and_processors(prompts: Path) -> None:
    flags = ["-dev", "none", "-ot", "blk=CPU", "-tb", "1", "-fitt", "1,2", "--draft-max", "1"]
    assert [row["draft_max"] for row in rows("--prompts", prompts, *flags, "-p", "0")][:2] == [0, 1]


@model
def test_two_setups_two_temperatures_and_texts_together(prompts: Path) -> None:
    arms = ["--draft-max", "2", "--temp", "0,1", "--accept", "match,rejection"]
    found = rows("-p", "0", "-r", "1", "-b", "64,2048", "--parallel", "2", "--prompts", prompts, *arms)
    assert {row["n_batch"] for row in found} == {64, 2048}
    one = [row for row in found if row["n_batch"] == 64 and row["category"] == "code"]
    assert [(row["temperature"], row["draft_max"], row["accept"], row["acceptance"]) for row in one] == [
        (temperature, k, *accept)
        for temperature in (0, 1)
        for k, accept in ((0, ("auto", "plain")), (2, ("match", "match")), (2, ("rejection", "rejection")))
    ]
    # both texts of a sample
    assert all(row["rounds"] + row["accepted"] == 2 * 8 for row in one)


@model
def test_forced_acceptance_is_as_asked_for_and_no_valid_output(tmp_path: Path) -> None:
    given = ["-p", "0", "-n", "9", "-r", "1", "-t", "1", "--synthetic", "1,0", "--draft-max", "3"]
    result = bench(*given, "-o", "md", "-oe", "jsonl")
    assert result.exit_code == 0
    assert result.stdout.startswith("Drafts were accepted at random")
    found = [json.loads(line) for line in result.stderr.splitlines()]
    generated = {row["forced_rate"]: row for row in found if row["n_gen"]}
    assert [generated[rate]["acceptance_rate"] for rate in (None, 0, 1)] == [None, 0, 1]
    assert [generated[rate]["is_valid_text"] for rate in (None, 0, 1)] == [True, False, False]
    assert {row["category"] for row in generated.values()} == {"synthetic"}


@model
def test_all_formats(prompts: Path) -> None:
    given = [*SHORT, "--prompts", prompts, "--draft-max", "1", "--no-warmup"]
    result = bench(*given, "-o", "jsonl", "-oe", "csv")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(list(csv.DictReader(io.StringIO(result.stderr)))) == 8

    result = bench(*given, "--progress")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "speed-up" in result.stdout and "sha256 " in result.stdout and "By kind of text:" in result.stdout
    steps = result.stderr.splitlines()
    assert all(step.startswith("pymtp: ") for step in steps)
    turns = [step for step in steps if step.startswith("pymtp: tg8 ")]
    expected = [("code", "plain"), ("code", "K = 1"), ("chat", "K = 1"), ("chat", "plain")]
    assert turns[:4] == [f"pymtp: tg8 {category}, {arm}, 1 of 2" for category, arm in expected]


@model
def test_results_name_neither_user_nor_path(prompts: Path, tmp_path: Path) -> None:
    text = json.dumps(rows("--prompts", prompts, "--draft-max", "2"))
    private = {str(Path.home()), str(tmp_path), getpass.getuser(), platform.node(), "def add", "Hello!"}
    assert not [word for word in private if len(word) > 4 and word in text]


def test_a_model_without_heads_is_measured_with_lookup_and_says_so(tmp_path: Path) -> None:
    trunk, heads = tmp_path / "trunk.gguf", tmp_path / "heads.gguf"
    split_heads(write_glm4moe(tmp_path / "whole.gguf"), trunk, heads)
    result = bench(trunk, *SHORT, "-o", "json")
    assert result.exit_code == 0, result.stderr
    note = "trunk.gguf has no usable MTP head: drafts by lookup, where K is auto"
    assert result.stderr == f"pymtp: {note}\n"
    assert {row["draft_max"] for row in json.loads(result.stdout)} == {0, "auto"}
    assert "drafts by lookup" in bench(trunk, *SHORT).stdout
    found = rows(trunk, "-md", heads, "--draft-max", "1")
    assert {row["draft_max"] for row in found} == {0, 1}
    assert found[0]["memory_bytes"] > found[0]["memory_without_mtp_bytes"] > 0


@model
def test_a_run_that_fails_halfway_shows_what_it_has(embedded_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    data = embedded_model.read_bytes()
    # the header is sound, and llama.cpp knows no such architecture
    broken.write_bytes(data.replace(b"step35", b"step77"))
    result = bench("-m", f"{embedded_model},{broken}", "-p", "16", "-n", "0", "-r", "1", "-o", "json")
    assert result.exit_code == 1
    assert {row["model_filename"] for row in json.loads(result.stdout)} == {embedded_model.name}
    assert "step77" in result.stderr and result.stderr.count("\n") == 1


# --- as a process ---


@model
def test_a_terminal_shows_progress_unless_told_not_to() -> None:
    given = [*COMMAND, "-p", "16", "-n", "0", "-r", "1", "-t", "1", "--no-warmup"]
    with Terminal(given) as terminal:
        assert terminal.wait() == 0
    assert "pp16 done" in terminal.seen
    assert "no model given: this is the embedded one, a toy" in terminal.seen
    with Terminal([*given, "--no-progress"]) as terminal:
        assert terminal.wait() == 0
    assert "pp16 done" not in terminal.seen and "a toy" not in terminal.seen


def test_tests_longer_than_the_trained_context_are_said(
    embedded_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n_prompt, beyond in ((1900, False), (1901, True)):
        tests = (Workload(n_prompt, 99, 49), Workload(0, 5))
        _check(
            Experiment(
                (Variant(embedded_model), Variant(embedded_model, context=ContextParams(n_threads=2))),
                tests,
                make_arms([0], [0], ["auto"], [None]),
            )
        )
        line = (
            f"pymtp: {embedded_model.name}: the longest test has 2049 tokens, but the model was trained with 2048: "
            "what lies beyond may make no sense\n"
        )
        assert capsys.readouterr().err == (line if beyond else "")


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*COMMAND, *arguments], env={**os.environ, "GOMP_SPINCOUNT": "0"}, **streams)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, (stdout or b"").decode(), (stderr or b"").decode()


@model
def test_ctrl_c_prints_what_was_measured_so_far() -> None:
    process = start("-p", "0", "-n", "32", "-r", "8", "-t", "1", "--draft-max", "1", "--progress", "-o", "json")
    assert process.stderr is not None
    deadline = time.monotonic() + TIMEOUT_S
    n_turns = 0
    while n_turns < 5 and time.monotonic() < deadline:
        n_turns += b"K = 1, " in process.stderr.readline()
        if n_turns == 0 and process.stderr.peek(1) == b"":  # type: ignore[attr-defined]
            break
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = finish(process)
    found = json.loads(stdout)
    assert code == 130
    assert stderr.endswith("pymtp: stopped; results so far:\n")
    assert "Traceback" not in stderr
    assert {row["draft_max"] for row in found} == {0, 1}
    assert 3 <= found[1]["n_samples"] < 32


@model
def test_ctrl_c_before_anything_was_measured_prints_nothing() -> None:
    process = start("--progress")
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = finish(process)
    assert (code, stdout) == (130, "")
    assert "Traceback" not in stderr


@model
@pytest.mark.slow
def test_a_full_disk_and_a_closed_pipe_are_those_of_the_other_commands() -> None:
    given = ["-p", "8", "-n", "0", "-r", "1"]
    with open("/dev/full", "wb") as full:
        code, _, stderr = finish(start(*given, stdout=full))
    assert code == 1
    assert stderr == "pymtp: cannot write to stdout: No space left on device; check where it is redirected to\n"
    read_end, write_end = os.pipe()
    process = start(*given, stdout=write_end)
    os.close(write_end)
    os.close(read_end)
    assert finish(process)[::2] == (141, "")
