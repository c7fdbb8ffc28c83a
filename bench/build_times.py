"""Prints what a build with Ninja compiled for the longest, from its log: python bench/build_times.py [BUILD [N]]

The seconds are those on the clock while other compilations ran beside it.
"""

import sys
from pathlib import Path


def main(build: str = "build/editable", n: str = "30") -> None:
    seconds = {}
    for line in (Path(build) / ".ninja_log").read_text("utf-8").splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(start)) / 1000  # of an output that was built twice the last counts
    print(f"{sum(seconds.values()):8.1f} s  {len(seconds)} steps")
    for output in sorted(seconds, key=seconds.__getitem__, reverse=True)[: int(n)]:
        print(f"{seconds[output]:8.1f} s  {output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
