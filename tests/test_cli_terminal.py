"""`pymtp run` and `chat` with the embedded model at a terminal: what only a terminal gets to see."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from pymtp import Model
from terminal import Terminal

pytestmark = pytest.mark.model

PROMPT = "def add(a, b):"
COMMAND = [sys.executable, "-m", "pymtp_cli", "run", "-t", "1", "--temp", "0"]
TEXT = [*COMMAND, "--raw", "-n", "60", "--draft-max", "3", PROMPT]


@pytest.fixture
def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "NO_COLOR"}


def stdout_at_terminal(command: list[str], environment: dict[str, str]) -> str:
    """What a command writes to its stdout, if that is a terminal and stderr is not."""
    with Terminal(["sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command], env=environment) as terminal:
        assert terminal.wait() == 0
    return terminal.seen.replace("\r\n", "\n")


def piped(command: list[str]) -> tuple[str, str]:
    """What the command writes to stdout and stderr without a terminal."""
    done = CliRunner().invoke(app, command[3:], prog_name="pymtp")
    return done.stdout, done.stderr


def test_accepted_drafts_have_a_colour_of_their_own(environment: dict[str, str]) -> None:
    seen = stdout_at_terminal([*TEXT, "--color"], environment)
    with Model(n_threads=1, draft_max=3) as model:
        generation = model.generate(PROMPT, temperature=0, max_tokens=60)
        list(generation)
    assert generation.stats.accepted > 5
    drafted = "".join(part for part, is_drafted in generation.parts() if is_drafted)
    assert "".join(re.findall("\x1b\\[32m(.*?)\x1b\\[39m", seen, re.DOTALL)) == drafted
    assert re.sub("\x1b\\[3[29]m", "", seen) == generation.text + "\n"


def test_without_a_terminal_or_with_no_color_the_text_is_as_ever(environment: dict[str, str]) -> None:
    text, _ = piped(TEXT)
    assert piped([*TEXT, "--color"])[0] == text != ""
    assert stdout_at_terminal([*TEXT, "--color"], {**environment, "NO_COLOR": "1"}) == text
    assert stdout_at_terminal(TEXT, environment) == text


LONG = "one two three four " * 120
READS = "\x1b[?2004h"  # prompt_toolkit asks for marked pastes while it reads a message
PROGRESS = re.compile(r"prompt (\d+)/(\d+)")


def long_prompt(*flags: str) -> list[str]:
    """A command whose prompt takes many passes."""
    return [*COMMAND, "--raw", "-n", "4", "-c", "2048", "-ub", "16", "--draft-max", "3", *flags, LONG]


def test_the_progress_of_a_long_prompt_is_shown_until_there_is_text(environment: dict[str, str]) -> None:
    with Terminal(long_prompt(), env=environment) as terminal:
        assert terminal.wait() == 0
    steps = [tuple(map(int, step)) for step in PROGRESS.findall(terminal.seen)]
    assert len(steps) > 1
    assert steps == sorted(steps)
    assert all(done % 16 == 0 and 0 < done < total for done, total in steps)
    stdout, stderr = piped(long_prompt())
    wiped = terminal.seen.rpartition("\x1b[2K")[2].replace("\r\n", "\n")
    assert wiped.startswith(f"{stdout}model:  ")  # the text, and then the statistics
    assert stderr.startswith("model:  ")  # nothing came before them


def test_a_short_prompt_shows_no_progress(environment: dict[str, str]) -> None:
    with Terminal(TEXT, env=environment) as terminal:
        assert terminal.wait() == 0
    assert not PROGRESS.search(terminal.seen)


def test_ctrl_c_ends_a_long_prompt_and_its_line(environment: dict[str, str]) -> None:
    with Terminal(long_prompt("-ub", "8"), env=environment) as terminal:
        at = terminal.wait_for("prompt 8/")
        terminal.press("\x03")
        assert terminal.wait() == 130
    total = int(PROGRESS.findall(terminal.seen)[0][1])
    computed = re.search(r"prompt: +(\d+) tokens", terminal.seen)
    assert computed is not None
    assert int(computed[1]) < total
    assert "\x1b[2K" in terminal.seen[at : computed.start()]
    assert "Traceback" not in terminal.seen


def test_a_conversation_shows_it_too(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("one two three four " * 20, encoding="utf-8")
    command = [*COMMAND[:3], "chat", "-c", "1024", "-ub", "16", "--draft-max", "3", "-n", "4", "-t", "1"]
    with Terminal(command, env={**environment, "XDG_STATE_HOME": str(tmp_path)}) as terminal:
        terminal.wait_for(READS)
        terminal.press(f"/read {tmp_path / 'long.txt'}\r")
        terminal.wait_for(READS, after=terminal.wait_for("go with the next message"))
        terminal.press("What is it?\r")
        at = terminal.wait_for("prompt 16/")
        end = terminal.wait_for("tok/s", after=at)
        assert "\x1b[2K" in terminal.seen[at:end]
        terminal.wait_for(READS, after=end)
        terminal.press("\x04")
        assert terminal.wait() == 0


def test_an_answer_that_takes_another_prompt_to_go_on_keeps_what_it_has_shown(
    environment: dict[str, str], tmp_path: Path
) -> None:
    bars_eog = ["-l", "0-inf", "-l", "2-inf"]
    command = [*COMMAND[:3], "chat", "-c", "150", "-ub", "16", "-n", "70", "-t", "1", "--temp", "0", *bars_eog]
    with Terminal(command, env={**environment, "XDG_STATE_HOME": str(tmp_path)}) as terminal:
        end = 0
        for message in ("Hello", "Tell me about the sea."):
            begin = terminal.wait_for(READS, after=end)
            terminal.press(f"{message}\r")
            end = terminal.wait_for("tok/s", after=begin)
        answer = terminal.seen[begin:end]
    before, note, _ = answer.partition("[the context is full: the oldest turn is left out from now on]")
    shown, hides_cursor, progress = before.rpartition("\x1b[?25l")
    assert note and hides_cursor and PROGRESS.search(progress)
    # the line is below the text, and is not wiped with it
    assert shown.removesuffix("\x1b[?25h").endswith("\r\n")
