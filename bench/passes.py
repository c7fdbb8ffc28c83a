"""Time of a pass by its number of rows: python bench/passes.py MODEL.gguf ... [--rows 1 2 3 4 8] [--sequences 1].

What verifying costs: passes of the trunk after a short prompt, each of which computes the logits of all its rows, or
of the last one where that is a prompt (more than 16 rows). The numbers of rows take turns of several passes, the first
of which do not count: graphs are built then, and CUDA records one when it comes the ninth time. Prints medians in
milliseconds, and multiples of the first number's; then, by a straight line through the medians, how many rows cost as
much as one pass more does. With several sequences, each has N rows.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression, median
from time import perf_counter
from typing import Literal

from pymtp import Chunk, ContextParams, Model
from pymtp.benchmark.tables import markdown

COLUMNS = [("rows", "rows", "d"), ("ms", "ms", ".2f"), ("of the first", "of_one", ".2f")]
N_VERIFIED = 16
"""Rows of a pass that may verify drafts."""
N_FIRST = 9
"""Passes of a turn that do not count."""
N_COUNTED = 5
"""Passes of a turn that count."""
N_BEFORE = 32
"""Tokens in the cache before a pass."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 8], metavar="N")
    parser.add_argument("--sequences", type=int, default=1, metavar="N")
    parser.add_argument("--repeat", type=int, default=15, help="passes of each number of rows (default: 15)")
    parser.add_argument("--threads", type=int, help="default: one per physical core")
    parser.add_argument("--invariant", action="store_true", help="a row is computed as in any other pass")
    given = parser.parse_args()
    for path in given.models:
        context = ContextParams(n_threads=given.threads, n_seq_max=given.sequences, invariant=given.invariant)
        times = measure(path, given.rows, given.repeat, context)
        one = median(times[given.rows[0]])
        rows = [{"rows": n, "ms": 1e3 * median(times[n]), "of_one": median(times[n]) / one} for n in given.rows]
        print(f"\n{path.name}\n\n{markdown(COLUMNS, rows)}", flush=True)
        if len(given.rows) > 1:
            line = linear_regression([n * given.sequences for n in given.rows], [row["ms"] for row in rows])
            print(f"a pass costs as much as {line.intercept / line.slope:.1f} rows of {line.slope:.2f} ms", flush=True)


def measure(path: Path, n_rows: list[int], repeat: int, context: ContextParams) -> dict[int, list[float]]:
    """Seconds of each pass that counts, by its number of rows."""
    n_turns = -(-repeat // N_COUNTED)
    # each leaves a position: recurrent states go back to a row of the last pass
    n_passes = len(n_rows) * n_turns * (N_FIRST + N_COUNTED)
    context = replace(context, n_ctx=N_BEFORE + n_passes + max(*n_rows, 480))
    times: dict[int, list[float]] = {n: [] for n in n_rows}
    with Model(path, draft="mtp", draft_max=N_VERIFIED - 1, context=context) as model:
        tokens = [i % 200 for i in range(max(n_rows))]
        slots = range(context.n_seq_max)
        for slot in slots:
            model.session.decode([Chunk(tokens[:1] * N_BEFORE, 0, slot)])
        end = N_BEFORE
        for n in n_rows * n_turns:
            logits: Literal["all", "last"] = "all" if n <= N_VERIFIED else "last"
            for i in range(N_FIRST + N_COUNTED):
                begin = perf_counter()
                model.session.decode([Chunk(tokens[:n], end, slot, logits) for slot in slots])
                if i >= N_FIRST:
                    times[n].append(perf_counter() - begin)
                end += 1
                for slot in slots:
                    model.session.truncate(end, sequence=slot)
    return times


if __name__ == "__main__":
    main()
