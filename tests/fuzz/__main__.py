"""See the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from . import FUZZERS
from .runner import attempt, child, fuzz


def main() -> None:
    """See the package."""
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FUZZERS)} (default: all)")
    parser.add_argument("--time", type=float, default=600, help="seconds for all of them")
    parser.add_argument("--cases", type=int, help="of each, in place of a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this one again, here")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = asked.names or list(FUZZERS)
    if odd := set(names) - FUZZERS.keys():
        parser.error(f"no fuzzer {', '.join(odd)}")
    if asked.child:
        child(FUZZERS[names[0]], asked.child, asked.seed, asked.first, asked.cases, asked.time)
    elif asked.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(attempt(FUZZERS[names[0]](Path(folder)), asked.seed, asked.case))
    else:
        seconds = float("inf") if asked.cases else asked.time / len(names)
        reports = []
        for name in names:
            reports.append(fuzz(name, seed=asked.seed, seconds=seconds, n_cases=asked.cases))
            print(reports[-1], flush=True)
            for number, fault in reports[-1].faults:
                print(f"  python -m fuzz {name} --seed {asked.seed} --case {number}: {fault}\n", flush=True)
        sys.exit(any(report.faults for report in reports))


if __name__ == "__main__":
    main()
