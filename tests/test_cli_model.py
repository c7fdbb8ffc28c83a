"""`pymtp run` as users run it: the installed command, the native library, the embedded model."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from pymtp.gguf.facts import model_facts

pytestmark = pytest.mark.model

TIMEOUT_S = 120
Result = subprocess.CompletedProcess[str]


def pymtp(*arguments: object, stdin: str = "") -> Result:
    command = [sys.executable, "-m", "pymtp_cli", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S)


def here(*arguments: object) -> Result:
    """The same in this process; what llama.cpp would write by itself is not seen."""
    done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="pymtp")
    return Result([], done.exit_code, done.stdout, done.stderr)


def report(*arguments: object) -> dict[str, object]:
    result = here("run", "--json", "-q", "-t", 1, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    loaded: dict[str, object] = json.loads(result.stdout)
    return loaded


def one_line(result: Result) -> str:
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("pymtp: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_the_embedded_model_answers_and_reports_what_it_drafted() -> None:
    result = pymtp("run", "-n", 40, "--seed", 1, "--draft-max", 2, "Tell me about the sea.")
    assert result.returncode == 0
    assert len(result.stdout.split()) > 5
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "model",
        "ended",
        "prompt",
        "generation",
        "drafts",
        "by position",
        "rounds",
        "speed-up",
    ]


def test_the_figures_of_the_json_fit_together(embedded_model: Path) -> None:
    got = report("-n", 60, "--seed", 1, "--ignore-eos", "--draft-max", 3, "Count to ten.")
    rounds, drafted, accepted = (int(str(got[key])) for key in ("rounds", "drafted", "accepted"))
    assert got["finish_reason"] == "length"
    assert got["generated_tokens"] == len(got["tokens"]) == 60  # type: ignore[arg-type]
    assert got["model"] == str(embedded_model)
    assert 0 < accepted <= drafted <= 3 * rounds
    assert got["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert got["mean_acceptance_length"] == pytest.approx(1 + accepted / rounds)


def test_a_seed_makes_a_run_repeatable_and_drafting_is_optional() -> None:
    arguments = ("-n", 30, "--seed", 7, "Write a line of verse.")
    first = report(*arguments)
    assert report(*arguments)["tokens"] == first["tokens"]
    plain = report("--draft", "none", *arguments)
    assert (plain["drafted"], plain["acceptance_rate"], plain["draft_max"]) == (0, None, 0)


def test_llama_cpp_is_quiet_unless_asked() -> None:
    quiet, verbose = (pymtp("run", "-n", 1, *flags, "hi").stderr for flags in ([], ["--verbose"]))
    assert [line.split(":")[0] for line in quiet.splitlines()] == ["model", "ended", "prompt", "generation", "drafts"]
    assert len(verbose.splitlines()) > 20


def test_the_reader_may_leave() -> None:
    command = f"{sys.executable} -m pymtp_cli run --ignore-eos 'Tell me a story.' | head -c 10"
    result = subprocess.run(["sh", "-c", command], capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert (len(result.stdout), result.stderr) == (10, b"")


def test_a_prompt_longer_than_the_context() -> None:
    assert "-c" in one_line(pymtp("run", "-c", 64, "word " * 300))


def test_a_context_beyond_memory() -> None:
    result = pymtp("run", "-c", 300_000_000, "hi")
    assert (result.returncode, result.stdout) == (2, "")
    assert re.search(r"-c/--ctx-size: must be smaller: its caches take [\d.]+ GiB of memory, and", result.stderr)


def test_a_model_without_heads_cannot_be_told_to_draft(write_gguf: Callable[..., Path]) -> None:
    assert "--draft none" in one_line(pymtp("run", write_gguf(declared=1, heads=0), "hi", "--draft", "mtp"))


def test_an_architecture_that_llama_cpp_does_not_know(write_gguf: Callable[..., Path]) -> None:
    assert "'novelty'" in one_line(pymtp("run", write_gguf(architecture="novelty"), "hi"))


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('roles must alternate') }}", "{{ nothing() }}"])
def test_a_chat_template_that_fails(embedded_model: Path, tmp_path: Path, template: str) -> None:
    path = tmp_path / "template.gguf"
    old = (model_facts(embedded_model).chat_template or "").encode()
    path.write_bytes(embedded_model.read_bytes().replace(old, template.encode().ljust(len(old))))
    line = one_line(here("run", path, "hi"))
    assert "the model's chat template fails (" in line
    assert "use --raw" in line
    assert here("run", path, "hi", "--raw", "-n", 1).returncode == 0


def test_a_quantised_v_cache_needs_flash_attention() -> None:
    result = here("run", "-ctv", "q8_0", "-fa", "off", "hi")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "-ctv/--cache-type-v: must be f32, f16 or bf16 without flash attention" in result.stderr


def test_a_truncated_model(embedded_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(embedded_model.read_bytes()[:1_000_000])
    assert "truncated" in one_line(pymtp("run", path, "hi"))


def test_the_version_is_one_line() -> None:
    result = pymtp("--version")
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    assert "llama" in result.stdout


def test_ctrl_c_stops_a_real_generation_with_its_stats() -> None:
    command = [sys.executable, "-m", "pymtp_cli", "run", "--ignore-eos", "Tell me a story."]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert stdout.endswith(b"\n")
    assert [line.split(b":")[0] for line in stderr.splitlines()][:2] == [b"model", b"ended"]
    assert b"Traceback" not in stderr
