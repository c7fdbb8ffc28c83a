"""Runs llama.cpp's own server tests, those of the pinned archive, against `pymtp serve` or llama-server.

    python tests/llama_server_tests.py [--server /path/to/llama-server] [--draft none|mtp] [--model FILE] [FILE ...]

Prints which tests passed. Without --server it is `pymtp serve`. The tests name models on Hugging Face; they get a local
one instead (the embedded one), so that those which expect the words of another model fail with every server. All other
flags reach the server as they are. Needs pytest, requests and openai.
"""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
import tarfile
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from http_server import free_port
from llama_archive import PIN

REPOSITORY = Path(__file__).resolve().parent.parent
ARCHIVE = REPOSITORY / "build" / PIN.archive
PARTS = ("tools/server/tests/", "models/templates/")
FILES = (
    *("basic", "completion", "chat_completion", "compat_oai_responses", "compat_anthropic", "security", "metrics"),
    *("tokenize", "template", "tool_call", "ctx_shift", "ignore_eos", "kv_keep_only_active", "stream"),
    *("speculative", "slot_save"),
)

# what names a model of the Hub, and how many values it has: the local one, or its heads, take the place
_MODELS = dict.fromkeys(("--hf-repo", "--hf-file", "--model-url", "--mmproj-url", "--model-draft", "--spec-type"), 1)
_CONFTEST = """
import pytest
from utils import server_instances

@pytest.fixture(autouse=True)
def stop_server_after_each_test():
    yield
    for server in set(server_instances):
        server.stop()
"""


def prepare(folder: Path, archive: Path = ARCHIVE) -> Path:
    """Unpack the tests into `folder`; return where they are run."""
    tests = folder / "tools/server/tests"
    if not tests.is_dir():
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix(PIN.prefix)
                if member.isfile() and name.startswith(PARTS) and (content := tar.extractfile(member)):
                    target = folder / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content.read())
    # the original one loads all models first
    (tests / "conftest.py").write_text(_CONFTEST, "utf-8")
    (tests / "wget.py").write_text("def download(url, out):\n    open(out, 'w').close()\n", "utf-8")
    (tests / "tmp").mkdir(exist_ok=True)
    return tests


def write_shim(folder: Path, server: Path | None, model: Path, draft: str) -> Path:
    """A program that takes the tests' flags and runs the server with those that name a model replaced."""
    shim = folder / ("shim-pymtp" if server is None else "shim-llama-server")
    shim.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from llama_server_tests import run_server
        run_server(sys.argv[1:], {str(server) if server else None!r}, {str(model)!r}, {draft!r})
        """),
        "utf-8",
    )
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    return shim


def run_server(arguments: Sequence[str], server: str | None, model: str, draft: str) -> None:
    """The shim: replaces this process by the server."""
    kept = [*_without(arguments, _MODELS), "--model", model]
    if server is not None:
        if draft == "mtp":
            kept += ["--spec-type", "draft-mtp"]
        os.execv(server, [server, *kept, "-t", "2", "--fit", "off"])
    from pymtp_cli.app import app

    app(["serve", *kept, "--draft", draft], prog_name="pymtp")


def _without(arguments: Sequence[str], dropped: Mapping[str, int]) -> Iterator[str]:
    left = iter(arguments)
    for argument in left:
        if argument in dropped:
            for _ in range(dropped[argument]):
                next(left)
        else:
            yield argument


def run(tests: Path, shim: Path, names: Sequence[str], timeout_s: int = 1500) -> dict[str, str]:
    """What became of each test: passed, failed or skipped."""
    report = tests / f"{shim.name}.xml"
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "LLAMA_SERVER_BIN_PATH": str(shim),
        "PORT": str(free_port()),
        "PYTHONPATH": str(tests),
        # the tests talk to this machine only
        "NO_PROXY": "127.0.0.1,localhost,::1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", "-m", "not slow", "--tb=line", *(f"unit/test_{name}.py" for name in names)]
    subprocess.run(command, cwd=tests, env=environment, timeout=timeout_s, stdout=subprocess.DEVNULL)
    return dict(_outcomes(report))


def _outcomes(report: Path) -> Iterator[tuple[str, str]]:
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('unit.')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        yield name, "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def main() -> None:
    """See above."""
    from pymtp.embedded import model_path

    parser = argparse.ArgumentParser()
    parser.add_argument("--server", type=Path)
    parser.add_argument("--draft", default="mtp", choices=("none", "mtp"))
    parser.add_argument("--model", type=Path, default=model_path())
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "llama-server-tests")
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    parser.add_argument("names", nargs="*", default=FILES)
    asked = parser.parse_args()
    tests = prepare(folder := asked.folder.resolve(), asked.archive)
    shim = write_shim(folder, asked.server, asked.model.resolve(), asked.draft)
    for name, outcome in run(tests, shim, asked.names).items():
        print(outcome, name)


if __name__ == "__main__":
    main()
