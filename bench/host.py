"""What a round of many sequences costs the host: python bench/host.py MODEL.gguf [--sequences 1 4 16] [-k 0 3].

Answers as many prompts together as there are sequences, greedily or with the default sampling, and accepts drafts at
random. Prints, for each number of sequences and of drafts, milliseconds of a round by the wall clock: all of it, the
passes of trunk and heads, and the rest, in which a device has nothing to do. Passes of prompts are left out. On a CPU
passes take the host, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

from pymtp import Model, SamplingParams
from pymtp.acceptance.forced import Forced
from pymtp.benchmark.prompts import Prompt
from pymtp.benchmark.tables import markdown
from sequences import GREEDY, pymtp_answer

COLUMNS = [
    ("sequences", "n", "d"),
    ("K", "k", "d"),
    ("tok/s", "speed", ".0f"),
    ("round", "round", ".2f"),
    ("trunk", "trunk", ".2f"),
    ("heads", "heads", ".2f"),
    ("rest", "rest", ".2f"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    parser.add_argument("-k", "--draft-max", type=int, nargs="+", default=[0, 3], metavar="K")
    parser.add_argument("-n", "--predict", type=int, default=256, help="tokens of an answer (default: 256)")
    parser.add_argument("-p", "--prompt", type=int, default=4, help="tokens of a prompt (default: 4)")
    parser.add_argument("-c", "--ctx-size", type=int, default=1024, help="tokens of a sequence (default: 1024)")
    parser.add_argument("--forced-length", type=float, default=2.8, help="tokens of a round with drafts (default: 2.8)")
    parser.add_argument("--sampled", action="store_true", help="with the default sampling, not greedily")
    parser.add_argument("-no-kvu", "--no-kv-unified", action="store_true", help="a part of the cache for each sequence")
    parser.add_argument("--invariant", action="store_true", help="texts do not depend on their company")
    asked = parser.parse_args()
    rows = [measure(asked, n, k) for n in asked.sequences for k in asked.draft_max]
    print(f"{asked.model.name}, ms\n\n{markdown(COLUMNS, rows)}")


def measure(asked: argparse.Namespace, n: int, k: int) -> dict[str, float]:
    """Milliseconds of a round of `n` sequences with `k` drafts each."""
    sampling = SamplingParams(seed=1) if asked.sampled else GREEDY
    prompts = [Prompt("", "", [1 + i] * asked.prompt) for i in range(n)]
    drafts = {"draft_max": k} if k else {"draft": "none"}
    cache = {"n_ctx": asked.ctx_size, "kv_unified": not asked.no_kv_unified, "invariant": asked.invariant}
    with Model(asked.model, n_seq_max=n, **cache, **drafts) as model:
        forced = Forced.of_length(min(asked.forced_length, k + 0.9), k) if k else None
        answer = pymtp_answer(model, sampling, asked.predict, forced)
        answer(prompts)  # builds graphs
        before, begin = model.stats, perf_counter()
        answer(prompts)
        spent = model.stats - before
        seconds = perf_counter() - begin - spent.prompt_s
    n_rounds = spent.rounds / n
    each = {"round": seconds, "trunk": spent.verify_s, "heads": spent.draft_s}
    each["rest"] = seconds - spent.verify_s - spent.draft_s
    return {"n": n, "k": k, "speed": n * asked.predict / seconds} | {
        name: 1e3 * value / n_rounds for name, value in each.items()
    }


if __name__ == "__main__":
    main()
