"""`pymtp run` as a process of its own: pipes, terminals, Ctrl-C, and outputs that cannot be written.

The model is a fake here, so that the tests decide when it speaks.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FAKE = [sys.executable, str(Path(__file__).with_name("fake_pymtp.py"))]
FAKE_COMMAND = [*FAKE, "run"]
FULL_DISK = "pymtp: cannot write to stdout: No space left on device; check where it is redirected to\n"
INFORMATION = (["--help"], ["--version"], ["run", "--help"], ["run", "--list-devices"], [])
"""What is printed without a model."""
TIMEOUT_S = 120


def start(*arguments: str, script: dict[str, Any] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    environment = {**os.environ, "FAKE_PYMTP": json.dumps(script or {})}
    return subprocess.Popen([*FAKE_COMMAND, *arguments], env=environment, **settings)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, (stdout or b"").decode(), (stderr or b"").decode()


def read_until(descriptor: int, text: bytes) -> bytes:
    """Read from a terminal until `text` has come."""
    seen, deadline = b"", time.monotonic() + TIMEOUT_S
    while text not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(descriptor, 1024)
    return seen


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_text_arrives_while_the_model_still_generates() -> None:
    process = start("hi", script={"endless": True})
    assert process.stdout is not None
    assert process.stdout.read(10) == b"HelloHello"
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


def test_ctrl_c_stops_with_a_newline_the_stats_and_130() -> None:
    process = start("hi", script={"endless": True})
    assert process.stdout is not None
    process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = finish(process)
    assert code == 130
    assert stdout.endswith("\n")
    assert "speed-up:" in stderr
    assert "Traceback" not in stderr


def test_another_ctrl_c_ends_the_process_while_the_model_is_freed() -> None:
    process = start("hi", script={"endless": True, "interrupts_close": True})
    assert process.stdout is not None
    process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    code, _, stderr = finish(process)
    assert code == -signal.SIGINT
    assert "speed-up:" in stderr and "Traceback" not in stderr


def test_ctrl_c_completes_the_json(tmp_path: Path) -> None:
    marker = tmp_path / "generating"
    process = start("hi", "--json", "-q", "--debug", script={"endless": True, "pieces": ["a"], "marker": str(marker)})
    wait_for(marker)
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = finish(process)
    report = json.loads(stdout)
    assert (code, stderr, report["finish_reason"]) == (130, "", "interrupt")
    assert len(report["tokens"]) == report["generated_tokens"] == len(report["text"]) > 0


def test_ctrl_c_does_not_wait_for_a_long_prompt() -> None:
    process = start("hi", script={"slow_prompt": True})
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, _, stderr = finish(process)  # the prompt takes longer than that waits
    assert code == 130
    assert "prompt:      4 tokens" in stderr


@pytest.mark.parametrize("flags", [[], ["--json", "-q"]])
def test_a_closed_pipe_ends_quietly(flags: list[str]) -> None:
    read_end, write_end = os.pipe()
    process = start("hi", *flags, script={"endless": not flags}, stdout=write_end)
    os.close(write_end)
    if not flags:
        os.read(read_end, 10)
    os.close(read_end)
    code, _, stderr = finish(process)
    assert (code, stderr) == (141, "")


@pytest.mark.parametrize("flags", [[], ["--json", "-q"]])
def test_a_full_disk_is_one_line(flags: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        code, _, stderr = finish(start("hi", *flags, stdout=full))
    assert (code, stderr) == (1, FULL_DISK)


@pytest.mark.parametrize("arguments", INFORMATION)
def test_help_and_version_are_output_like_any_other(arguments: list[str]) -> None:
    def run(stdout: int) -> tuple[int, str]:
        process = subprocess.run([*FAKE, *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
        return process.returncode, process.stderr.decode()

    read_end, write_end = os.pipe()
    os.close(read_end)
    assert run(write_end) == (141, "")
    os.close(write_end)
    with open("/dev/full", "wb") as full:
        assert run(full.fileno()) == (1, FULL_DISK)


def test_ctrl_c_is_quiet_from_the_first_import_on(tmp_path: Path) -> None:
    # stands in for typer, the first thing that takes time to import
    (tmp_path / "typer.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pymtp_cli", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_closed_stdout_is_found_before_the_model_is_loaded() -> None:
    command = [*FAKE_COMMAND, "hi"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stderr.decode()) == (
        1,
        "pymtp: stdout is closed; redirect it to a file or to /dev/null\n",
    )


def test_text_is_utf8_whatever_the_locale_says() -> None:
    process = start("hi", script={"pieces": ["\u65e5\u672c"]})
    assert finish(process)[1] == "\u65e5\u672c\n"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "FAKE_PYMTP": json.dumps({"pieces": ["\u65e5\u672c"]})}
    done = subprocess.run(
        [*FAKE_COMMAND, "hi"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
    )
    assert done.stdout.decode() == "\u65e5\u672c\n"


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    ("arguments", "script", "code", "output"),
    [
        (["hi", "--debug"], {}, 0, "Hello\n"),
        (["hi", "--debug", "--json"], {"note": "plain decoding"}, 0, '{"text": "Hello"'),
        (["missing.gguf", "--debug"], {}, 1, ""),
        (["--nonsense"], {}, 2, ""),
    ],
)
def test_an_stderr_that_cannot_be_written_changes_nothing(
    arguments: list[str], script: dict[str, Any], code: int, output: str, redirection: str
) -> None:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *FAKE_COMMAND, *arguments]
    environment = {**os.environ, "FAKE_PYMTP": json.dumps(script)}
    done = subprocess.run(command, env=environment, input=b"", stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    assert done.returncode == code
    assert done.stdout.decode()[: len(output) or None] == output


def test_a_question_that_cannot_be_asked_is_no_reason_not_to_listen() -> None:
    controller, terminal = pty.openpty()
    with open("/dev/full", "wb") as full:
        process = start(stdin=terminal, stderr=full)
    os.close(terminal)
    os.write(controller, b"what?\n")
    assert finish(process)[:2] == (0, "Hello\n")
    os.close(controller)


def test_at_a_terminal_the_question_and_the_stats_stay_out_of_stdout() -> None:
    controller, terminal = pty.openpty()
    process = start(stdin=terminal, stderr=terminal, script={"pieces": ["answer"]})
    os.close(terminal)
    assert read_until(controller, b"prompt> ")
    os.write(controller, "what? \u65e5\n".encode())
    assert b"answer" not in read_until(controller, b"speed-up")
    assert finish(process)[:2] == (0, "answer\n")
    os.close(controller)


@pytest.mark.parametrize(("keys", "code"), [(b"\n", 1), (b"\x04", 1), (b"\x03", 130)])
def test_at_a_terminal_no_answer_is_no_prompt_and_ctrl_c_leaves(keys: bytes, code: int) -> None:
    controller, terminal = pty.openpty()
    process = start(stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=lambda: _take_terminal(terminal))
    os.close(terminal)
    read_until(controller, b"prompt> ")
    os.write(controller, keys)
    assert process.wait(TIMEOUT_S) == code
    left = os.read(controller, 4096)
    assert b"Traceback" not in left
    assert (b"the prompt is empty" in left) == (code == 1)
    os.close(controller)


def _take_terminal(terminal: int) -> None:
    # Ctrl-C becomes a signal only for the foreground group of a controlling terminal.
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
