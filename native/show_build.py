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


def percent_of(line: str) -> int:
    """How far the build is, of a line that says so; else -1."""
    step = STEP.search(line)
    if step is None:
        return -1
    return int(step[3]) if step[3] else 100 * int(step[1]) // int(step[2])


def main() -> int:
    log, *command = sys.argv[1:]
    last: deque[str] = deque(maxlen=N_LAST_LINES)
    start, shown, is_terminal = time.monotonic(), -1, sys.stdout.isatty()
    # one line that changes, on a terminal; elsewhere a line for each tenth
    step, begin, end = (1, "\r", "") if is_terminal else (10, "", "\n")
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
            if (percent := percent_of(line) // step * step) > shown:
                shown, seconds = percent, time.monotonic() - start
                print(f"{begin}pymtp: compiling, {shown} % after {seconds:.0f} s", end=end, flush=True)
    if shown >= 0 and is_terminal:
        print(flush=True)
    if run.returncode:
        why = [line.lstrip() for line in last if line.lstrip().startswith("pymtp: ")] or last
        print(*why, f"pymtp: the build failed; {log} has all of its output\n", sep="", end="", file=sys.stderr)
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
