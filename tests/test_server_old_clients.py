"""The tests of OpenAI's client once more, with the version before the one that is installed. Takes a minute."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

CLIENTS = Path(__file__).with_name("test_server_clients.py")


def test_openai_2_reads_the_answers_as_openai_3_does(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    assert version("openai").startswith("3."), "the other tests are to run with 3.x"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, "--target", tmp_path, "openai>=2,<3"], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip could not install openai 2.x: {installed.stderr.strip()[-200:]}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = [sys.executable, "-c", "import openai; print(openai.__version__)"]
    assert subprocess.run(shown, capture_output=True, text=True, env=environment).stdout.startswith("2.")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "openai", CLIENTS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=CLIENTS.parent.parent)
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0 and "passed" in last and "skipped" not in last, done.stdout[-3000:]
