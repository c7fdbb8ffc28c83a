"""Runs a build and shows how far it is: what it compiles is counted, all that it prints goes to a log.

python native/show_build.py LOG COMMAND ...
"""

import os
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

# as Ninja counts, and Make
STEP = re.compile(r"\[ *(\d+)/(\d+)\]|\[ *(\d+)%\]")
N_LAST_LINES = 30


class Progress:
    """One line that changes, on a terminal; elsewhere a line for each tenth."""

    def __init__(self) -> None:
        self._start, self._shown = time.monotonic(), -1

    def show(self, line: str) -> None:
        step = STEP.search(line)
        if step is None:
            return
        percent = int(step[3]) if step[3] else 100 * int(step[1]) // int(step[2])
        shown = percent if sys.stdout.isatty() else percent // 10 * 10
        if shown > self._shown:
            self._shown = shown
            before, after = ("\r", "") if sys.stdout.isatty() else ("", "\n")
            seconds = time.monotonic() - self._start
            print(f"{before}pymtp: compiling, {shown} % after {seconds:.0f} s", end=after, flush=True)

    def end(self) -> None:
        if self._shown >= 0 and sys.stdout.isatty():
            print(flush=True)


def main() -> int:
    log, *command = sys.argv[1:]
    last: deque[str] = deque(maxlen=N_LAST_LINES)
    progress = Progress()
    # pip hands on the compiler's lines, and would do so in large blocks
    env, pipe = {**os.environ, "PYTHONUNBUFFERED": "1"}, subprocess.PIPE
    with (
        Path(log).open("w", encoding="utf-8") as file,
        subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace") as run,
    ):
        assert run.stdout is not None
        for line in run.stdout:
            file.write(line)
            last.append(line)
            progress.show(line)
    progress.end()
    if run.returncode:
        shown = [line.lstrip() for line in last if line.lstrip().startswith("pymtp: ")] or last
        print(*shown, f"pymtp: the build failed; {log} has all of its output\n", sep="", end="", file=sys.stderr)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
