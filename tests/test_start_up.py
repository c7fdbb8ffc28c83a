"""What a command imports before its first token: time that its user waits each time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SLOW = {
    "asyncio",
    "gguf",
    "huggingface_hub",
    "importlib.metadata",
    "jinja2",
    "llama_cpp",
    "matplotlib",
    "multiprocessing",
    "numpy",
    "prompt_toolkit",
    "psutil",
    "pydantic",
    "rich",
    "tqdm",
    "yaml",
}
"""None of them is needed for a short answer, and each takes 5 to 150 ms."""


def imported(*arguments: str, **env: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['pymtp', *{arguments!r}]\n"
        "from pymtp_cli.main import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env})
    assert result.returncode == 0, result.stderr
    return set(result.stderr.splitlines()[-1].split())


@pytest.mark.model
def test_a_plain_answer_needs_no_slow_module() -> None:
    assert imported("run", "--draft", "none", "-n", "1", "Hello") & SLOW == set()


@pytest.mark.model
def test_drafting_needs_no_slow_module() -> None:
    for length in ("2", "auto"):
        modules = imported("run", "--draft-max", length, "-n", "60", "--ignore-eos", "Hello")
        assert modules & SLOW == set()


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("bench", "--help")])
def test_help_needs_neither_a_slow_module_nor_the_library(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) & {*SLOW, "pymtp._native", "pymtp.model"} == set()


def test_completing_a_flag_needs_neither_a_slow_module_nor_the_library() -> None:
    words = {"COMP_WORDS": "pymtp run --draft-m", "COMP_CWORD": "2", "_PYMTP_COMPLETE": "complete_bash"}
    assert imported(**words) & {*SLOW, "pymtp._native", "pymtp.model"} == set()
