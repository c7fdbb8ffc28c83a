"""The examples of docs/server.md, run by a shell against a server as they are printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_server import Client, running
from pymtp import Model

pytestmark = pytest.mark.model

PAGE = Path(__file__).resolve().parent.parent / "docs" / "server.md"
EXAMPLES = [block for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if "curl" in block]


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with running(lambda: Model(n_ctx=512, n_seq_max=2, n_threads=1)) as client:
        yield client


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_as_printed(server: Client, example: str) -> None:
    command = example.replace("localhost:8080", f"127.0.0.1:{server.port}").replace("curl ", "curl --fail-with-body ")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(("{", "[", "data: ", "event: ", "# HELP"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6
