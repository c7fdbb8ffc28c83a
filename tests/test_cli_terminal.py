"""`pymtp run` with the embedded model at a terminal: what only a terminal gets to see."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from pymtp import Model, SamplingParams
from terminal import Terminal

pytestmark = pytest.mark.model

TIMEOUT_S = 120
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


def test_accepted_drafts_have_a_colour_of_their_own(environment: dict[str, str]) -> None:
    seen = stdout_at_terminal([*TEXT, "--color"], environment)
    with Model(n_threads=1, draft_max=3) as model:
        generation = model.generate(PROMPT, sampling=SamplingParams(temperature=0), max_tokens=60)
        list(generation)
    assert generation.stats.accepted > 5
    drafted = "".join(part for part, is_drafted in generation.parts() if is_drafted)
    assert "".join(re.findall("\x1b\\[32m(.*?)\x1b\\[39m", seen, re.DOTALL)) == drafted
    assert re.sub("\x1b\\[3[29]m", "", seen) == generation.text + "\n"


def test_without_a_terminal_or_with_no_color_the_text_is_as_ever(environment: dict[str, str]) -> None:
    def text(*flags: str) -> bytes:
        return subprocess.run([*TEXT, *flags], env=environment, capture_output=True, timeout=TIMEOUT_S).stdout

    assert text("--color") == text() != b""
    assert stdout_at_terminal([*TEXT, "--color"], {**environment, "NO_COLOR": "1"}) == text().decode()
    assert stdout_at_terminal(TEXT, environment) == text().decode()
