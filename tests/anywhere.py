"""Runs the fast tests in conditions that no result may depend on, and prints the table of docs/reliability.md.

    python tests/anywhere.py [--list] [NAME ...]      without a name: all that this machine can run

Builds for older processors and other Pythons get a clone of the last commit below build/anywhere. Knows how to start
`make test`; nothing about single tests.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from llama_archive import PIN, ROOT

WORK = ROOT / "build" / "anywhere"
PYTEST = ("-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider", "--at-least", "3400")
NO_AVX2 = " ".join(f"-DGGML_{name}=OFF" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2"))
AVX512 = " ".join(f"-DGGML_AVX512{name}=ON" for name in ("", "_VBMI", "_VNNI"))
NOBODY = 65534
N_BUSY = 2


@dataclass(frozen=True)
class Condition:
    """One way to run the tests."""

    title: str
    cmake_args: str | None = None
    """Options of a build of its own; None: the one of this checkout."""
    python: str | None = None
    """An interpreter for an environment of its own."""
    prefix: tuple[str, ...] = ()
    """What the tests are started by."""
    env: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Options of pytest."""
    n_busy: int = 0
    """Processes that compute all the time, next to the tests."""
    missing: Callable[[], str | None] = lambda: None
    """Why this machine cannot run it."""


PYTHON = ROOT / ".venv" / "bin" / "python"
UNPRIVILEGED = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
OFFLINE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def without_flag(name: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        info = Path("/proc/cpuinfo")
        known = info.read_text() if info.exists() else ""
        return None if f" {name}" in known else f"this processor has no {name}"

    return missing


def without_root() -> str | None:
    if not hasattr(os, "geteuid") or os.geteuid():
        return "only root can become another user"
    # by a shell, as the tests are: what setpriv itself starts may be in a folder that only root can enter
    command = [*UNPRIVILEGED, "sh", "-c", 'exec "$@"', "sh", str(PYTHON), "-c", "import pytest"]
    if shutil.which("setpriv") is None or subprocess.run(command, capture_output=True).returncode:
        return f"another user cannot run {PYTHON.resolve()}"
    return None


def without_program(*names: str) -> Callable[[], str | None]:
    return lambda: next((f"there is no {name}" for name in names if shutil.which(name) is None), None)


CONDITIONS = {
    "sse": Condition(
        "x86-64 that ends with SSE 4.2 (build), Python 3.10, random order 1",
        f"-DGGML_NATIVE=OFF {NO_AVX2} -DCMAKE_CXX_FLAGS=-DFEW_ROWS_AVX_MAX=0",
        python="python3.10",
        options=("--shuffle", "1"),
        missing=lambda: without_flag("sse4_2")() or without_program("python3.10")(),
    ),
    "avx2": Condition(
        "x86-64 that ends with AVX2 (build), LC_ALL=C, TZ=Asia/Kathmandu, TERM=dumb, COLUMNS=40, random order 2",
        "-DGGML_NATIVE=OFF -DCMAKE_CXX_FLAGS=-DFEW_ROWS_AVX_MAX=2",
        env={"LC_ALL": "C", "TZ": "Asia/Kathmandu", "TERM": "dumb", "COLUMNS": "40"},
        options=("--shuffle", "2"),
        missing=without_flag("avx2"),
    ),
    "avx512": Condition(
        "x86-64 with AVX-512 (build), Python 3.13, random order 3",
        f"-DGGML_NATIVE=OFF {AVX512}",
        python="python3.13",
        options=("--shuffle", "3"),
        missing=lambda: without_flag("avx512vl")() or without_program("python3.13")(),
    ),
    "nobody": Condition(
        f"an unprivileged user, HOME read-only, umask 077, no network, {N_BUSY} busy processes next to it",
        prefix=(*OFFLINE, *UNPRIVILEGED, "sh", "-c", 'umask 077; exec "$@"', "sh"),
        env={"HOME": "/", "PYTHONPYCACHEPREFIX": "/tmp/pymtp-nobody-pycache"},
        n_busy=N_BUSY,
        missing=lambda: without_root() or without_program("unshare", "ip")(),
    ),
    "one-core": Condition("one core", prefix=("taskset", "-c", "0"), missing=without_program("taskset")),
}
"""Several to a run, as each takes minutes: a test that fails names itself, and is run again in one of them alone."""


def checkout_of(name: str, condition: Condition) -> Path:
    """A folder in which the tests can run: this one, or a clone of it, built as the condition wants it."""
    if condition.cmake_args is None and condition.python is None:
        return ROOT
    folder = WORK / name
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    archive = ROOT / "build" / PIN.archive
    command = ["make", "install", f"LLAMA_CPP={archive}", f"PYTHON={condition.python or sys.executable}"]
    if (ROOT.parent / "shared").is_dir():
        os.environ.setdefault("PYMTP_TEST_DATA", str(ROOT.parent / "shared"))
    with (WORK / f"{name}.build.log").open("w") as log:
        env = {**os.environ, "CMAKE_ARGS": condition.cmake_args or ""}
        subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=log, check=True)
    return folder


def row_of(condition: Condition, output: str, seconds: float) -> str:
    """A row of the table: what pytest's last line counts."""
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|error)", output[-2000:])}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    minutes = f"{seconds / 60:.1f}"
    return f"| {condition.title} | {counts.get('passed', 0)} | {failed} | {counts.get('skipped', 0)} | {minutes} |"


def run(name: str, condition: Condition) -> tuple[str, bool]:
    """The row of a condition, and whether all tests passed."""
    WORK.mkdir(parents=True, exist_ok=True)
    folder = checkout_of(name, condition)
    command = [*condition.prefix, str(folder / ".venv" / "bin" / "python"), *PYTEST, *condition.options]
    log = WORK / f"{name}.log"
    with ExitStack() as stack, log.open("w") as file:
        for _ in range(condition.n_busy):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.kill)
        start = time.monotonic()
        env = {**os.environ, **condition.env}
        done = subprocess.run(
            command, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        seconds = time.monotonic() - start
    if done.returncode:
        print(f"{name}: {shlex.join(command)} failed, see {log}", file=sys.stderr)
    return row_of(condition, log.read_text(errors="replace"), seconds), done.returncode == 0


def processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CONDITIONS, []], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="show the conditions, and what this machine lacks")
    given = parser.parse_args(arguments)
    rows, passed = [], True
    for name in given.names or CONDITIONS:
        why = CONDITIONS[name].missing()
        if given.list or why:
            print(f"{name}: {CONDITIONS[name].title}" + (f" (not run: {why})" if why else ""))
            continue
        row, good = run(name, CONDITIONS[name])
        print(row, flush=True)
        rows.append(row)
        passed &= good
    if rows:
        print(f"\n{processor()}, Python {platform.python_version()}\n")
        print("| condition | passed | failed | skipped | minutes |\n|---|--:|--:|--:|--:|", *rows, sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
