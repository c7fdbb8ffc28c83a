"""Time of a pass by its number of rows: python bench/passes.py MODEL.gguf ... [--rows 1 2 3 4 8].

What verifying costs: passes of the trunk after a short prompt, each of which computes the logits of all its rows, or
of the last one where that is a prompt (more than 16 rows). The numbers of rows take turns. Prints medians in
milliseconds, and multiples of the first number's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

from pymtp import ContextParams, Model
from pymtp.benchmark.tables import markdown
from pymtp.engine.chunk import Chunk

COLUMNS = [("rows", "rows", "d"), ("ms", "ms", ".2f"), ("of the first", "of_one", ".2f")]
N_VERIFIED = 16
"""Rows of a pass that may verify drafts."""
N_BEFORE = 32
"""Tokens in the cache before a pass."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 8], metavar="N")
    parser.add_argument("--repeat", type=int, default=15, help="passes of each number of rows (default: 15)")
    parser.add_argument("--threads", type=int, help="default: one per physical core")
    given = parser.parse_args()
    for path in given.models:
        times = measure(path, given.rows, given.repeat, given.threads)
        one = median(times[given.rows[0]])
        rows = [{"rows": n, "ms": 1e3 * median(times[n]), "of_one": median(times[n]) / one} for n in given.rows]
        print(f"\n{path.name}\n\n{markdown(COLUMNS, rows)}", flush=True)


def measure(path: Path, n_rows: list[int], repeat: int, n_threads: int | None) -> dict[int, list[float]]:
    """Seconds of each pass, by its number of rows; one more pass of each comes first and does not count."""
    context = ContextParams(n_ctx=N_BEFORE + max(*n_rows, 480), n_threads=n_threads)
    times: dict[int, list[float]] = {n: [] for n in n_rows}
    with Model(path, draft="mtp", draft_max=N_VERIFIED - 1, context=context) as model:
        tokens = [i % 200 for i in range(max(n_rows))]
        model.session.decode([Chunk(tokens[:1] * N_BEFORE, 0)])
        for i in range(repeat + 1):
            for n in n_rows:
                begin = perf_counter()
                model.session.decode([Chunk(tokens[:n], N_BEFORE, logits="all" if n <= N_VERIFIED else "last")])
                if i:
                    times[n].append(perf_counter() - begin)
                model.session.truncate(N_BEFORE)
    return times


if __name__ == "__main__":
    main()
