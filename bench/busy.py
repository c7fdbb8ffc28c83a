"""Speed beside processes that keep cores busy: python bench/busy.py [MODEL.gguf] [--busy 1 2] [--threads N ...].

Decodes plainly, again and again for a moment, alone and beside busy processes in turn, with one loaded model for each
number of threads. Prints medians of tokens per second, and each as a share of the speed alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from provenance import machine, model_text
from pymtp import Model, version_text
from pymtp.engine.cores import n_cores

Speeds = dict[int, list[float]]
"""Tokens per second of each repetition, by how many processes were busy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL.gguf", help="default: the embedded model")
    parser.add_argument("--busy", type=int, nargs="+", default=[1], metavar="N", help="busy processes (default: 1)")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: one per physical core")
    parser.add_argument("--seconds", type=float, default=2, help="length of a repetition (default: 2)")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions (default: 5)")
    given = parser.parse_args()
    print("| threads | busy processes | tokens/s, median (lowest-highest) | of the speed alone |\n|--:|--:|--:|--:|")
    for n_threads in given.threads or [None]:
        with Model(given.model, n_threads=n_threads, draft="none") as model:
            speeds = measure(model, [0, *given.busy], given.seconds, given.repeat)
            used = n_threads or n_cores()
            path = model.info.path
        print("\n".join(rows(used, speeds)), flush=True)
    print(f"\n{model_text(path)}; {machine(used, [])}; {version_text()}")


def measure(model: Model, busy: list[int], seconds: float, n_repeat: int) -> Speeds:
    """Alone and beside busy processes in turn, after a warm-up."""
    speed(model, min(seconds, 1))
    speeds: Speeds = {n: [] for n in busy}
    for _ in range(n_repeat):
        for n in busy:
            with busy_processes(n):
                speeds[n].append(speed(model, seconds))
    return speeds


def speed(model: Model, seconds: float) -> float:
    """Tokens per second after the first token."""
    with model.generate("The sea", ignore_eos=True, temperature=0) as generation:
        next(generation)
        start, n_before = time.perf_counter(), len(generation.tokens)
        for _ in generation:
            if time.perf_counter() - start > seconds:
                break
        return (len(generation.tokens) - n_before) / (time.perf_counter() - start)


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """`n` processes that compute without a pause while the body runs."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        time.sleep(0.2 if n else 0)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def rows(n_threads: int, speeds: Speeds) -> Iterator[str]:
    """The lines of the table."""
    alone = median(speeds[0])
    for n, found in speeds.items():
        middle = median(found)
        yield f"| {n_threads} | {n} | {middle:.0f} ({min(found):.0f}-{max(found):.0f}) | {middle / alone:.2f} |"


if __name__ == "__main__":
    main()
