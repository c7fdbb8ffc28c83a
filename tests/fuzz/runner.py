"""Runs cases of a fuzzer in a child, which may die of them, and starts another one after the case that it died of.

Owns processes, limits and the counts; knows nothing of what the cases are.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from .fuzzer import Fuzzer

MODULE = "fuzz"
"""That children run."""
FAULTS_MAX = 20
"""After which a fuzzer is stopped."""
CHILD_CASES = 50_000
"""After which a child makes room for another one: typer keeps some objects of each command."""
_STARTING = 2**63
"""In the place of a case's number: the fuzzer is not ready."""


class Hang(BaseException):
    """A case takes too long. No Exception, so that nobody catches it by the way."""


@dataclass
class Report:
    """What came of the cases of a fuzzer."""

    name: str
    n_cases: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)
    """Numbers of cases, and what happened."""

    def __str__(self) -> str:
        outcomes = ", ".join(f"{n} {what}" for what, n in self.outcomes.most_common())
        counts = f"{self.n_cases:>8} cases in {self.seconds:5.0f} s: {len(self.faults)} faults"
        return f"{self.name:<10} {counts}; {outcomes}"


def random_of(name: str, seed: int, number: int) -> random.Random:
    """The generator that a case is made with."""
    return random.Random(f"{name} {seed} {number}")


def fuzz(name: str, *, seed: int, seconds: float = float("inf"), n_cases: int | None = None) -> Report:
    """Run cases for `seconds`, or `n_cases` of them."""
    report, start = Report(name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pymtp-fuzz-", dir=_fast_folder()) as folder:
        first = 0
        while len(report.faults) < FAULTS_MAX:
            left = seconds - (time.monotonic() - start)
            until = n_cases if n_cases is not None else _STARTING - 1
            if left <= 0 or first >= until:
                break
            first = _one_child(report, Path(folder), seed, first, min(until, first + CHILD_CASES), left)
    report.seconds = time.monotonic() - start
    return report


def _one_child(report: Report, folder: Path, seed: int, first: int, until: int, seconds: float) -> int:
    """Run cases from `first` on; return the number of the next one."""
    place = folder / "case"
    place.write_bytes(_STARTING.to_bytes(8, "little"))
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    command = [sys.executable, *_S_FLAG, "-m", MODULE, report.name, "--child", str(folder)]
    command += ["--seed", str(seed), "--first", str(first), "--cases", str(until), "--time", str(seconds)]
    # absolute: a child runs in a folder of its own
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = [str(Path(__file__).parents[1]), *(str(Path(each).absolute()) for each in given)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    environment |= {"XDG_CACHE_HOME": str(work), "XDG_STATE_HOME": str(work)}
    with (folder / "stderr").open("w+b") as stderr:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr}
        done = subprocess.run(command, cwd=work, env=environment, check=False, **pipes)
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")[-3000:]
    for line in done.stdout.decode().splitlines():
        found = json.loads(line)
        report.faults += [(found["case"], found["fault"])] if "fault" in found else []
        report.outcomes.update(found.get("outcomes", {}))
    at = int.from_bytes(place.read_bytes()[:8], "little")
    if at == _STARTING:
        raise RuntimeError(f"fuzzer {report.name} does not start:\n{said}")
    if done.returncode:
        code = done.returncode
        what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        report.faults.append((at, f"{what}\n{said}"))
        at += 1
    report.n_cases = at
    return at


def child(fuzzer: type[Fuzzer], folder: Path, seed: int, first: int, until: int, seconds: float) -> None:
    """What runs in the child: says on stdout what came of each case, and in folder/case which one it is in."""
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with (folder / "case").open("r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        faulthandler.enable()
        end = time.monotonic() + seconds
        one = fuzzer(folder / "work")
        _limit_memory(one.memory_bytes)
        outcomes: Counter[str] = Counter()
        number, n_faults = first, 0
        while number < until and time.monotonic() < end and n_faults < FAULTS_MAX:
            place[:] = number.to_bytes(8, "little")
            try:
                outcomes[attempt(one, seed, number)] += 1
            except BaseException as error:
                n_faults += 1
                what = f"{type(error).__name__}: {str(error)[:300]}\n" + "".join(traceback.format_exc()[-2000:])
                say.write(json.dumps({"case": number, "fault": what}) + "\n")
                say.flush()
            number += 1
            if number % 1000 == 0:
                say.write(json.dumps({"outcomes": outcomes}) + "\n")
                say.flush()
                outcomes.clear()
        place[:] = number.to_bytes(8, "little")
        say.write(json.dumps({"outcomes": outcomes}) + "\n")
        say.flush()
    os._exit(0)  # what threads do when the interpreter ends is tested elsewhere


def attempt(fuzzer: Fuzzer, seed: int, number: int) -> str:
    """Run one case within its limit of time. Raises what is a fault."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * usual)  # to copy deeply nested JSON, which it then takes to read it
    try:
        case = fuzzer.case(random_of(fuzzer.name, seed, number))
    finally:
        sys.setrecursionlimit(usual)
    with _limited(fuzzer.limit_s, ends=not fuzzer.is_interruptible):
        return fuzzer.run(case)


@contextmanager
def _limited(seconds: float, *, ends: bool) -> Iterator[None]:
    """Raise Hang after `seconds`; end the process after twice as much, if it is where no exception reaches.

    ends: whether to do the latter, which takes a thread for each case.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {seconds:g} s")

    before: Any = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    if ends:
        faulthandler.dump_traceback_later(2 * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if ends:
            faulthandler.cancel_dump_traceback_later()


def _limit_memory(n_more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + n_more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


_S_FLAG = ["-S"] if sys.flags.no_site else []
