"""How many graphs many sequences with drafts of different lengths build, and what they cost.

    python bench/graph_builds.py MODEL.gguf [--sequences 8] [--rounds 300] [--draft-max 4] [--join] [--streams]

Each round every sequence drafts a random number of tokens from 0 to --draft-max, all sequences are verified in one
pass, and a random number of the drafts is kept. With --join each sequence takes part in a round or not, at random.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import NamedTuple

import llama_cpp
import numpy as np

from pymtp import Chunk, ContextParams, SamplingParams, Session
from pymtp.engine.session import Counters
from pymtp.sampling.chain import Sampler


class Measured(NamedTuple):
    """One round."""

    seconds: float
    n_rows: int
    n_drafting: int
    n_builds: int


def play(session: Session, args: argparse.Namespace) -> None:
    """Rounds, and a line of figures."""
    rng = random.Random(1)
    n_vocab, greedy = 500, Sampler(SamplingParams(top_k=1), n_vocab=session.n_vocab)
    lengths = [20 + rng.randrange(20) for _ in range(args.sequences)]
    for slot, n in enumerate(lengths):
        session.decode([Chunk([rng.randrange(n_vocab) for _ in range(n)], 0, slot, feed=True)])
    before, rounds = session.counters, list[Measured]()
    for _ in range(args.rounds):
        active = [slot for slot in range(args.sequences) if not args.join or rng.random() < 0.7] or [0]
        drafts = {slot: rng.randint(0, args.draft_max) for slot in active}
        builds = session.counters.n_builds
        begin = time.perf_counter()
        chunks = [Chunk([rng.randrange(n_vocab)], lengths[slot], slot) for slot in active if drafts[slot]]
        if chunks:
            session.draft_tokens(chunks, max(drafts.values()))
        rows = [
            Chunk([rng.randrange(n_vocab) for _ in range(drafts[slot] + 1)], lengths[slot], slot, "all", feed=True)
            for slot in active
        ]
        session.decode(rows)
        for row in session.rows():
            greedy.distribution(row)
        for slot in active:
            lengths[slot] += 1 + rng.randint(0, drafts[slot])
            session.truncate(lengths[slot], sequence=slot)
        for slot in active:
            if lengths[slot] > args.tokens:
                session.truncate(0, sequence=slot)
                lengths[slot] = 20
                session.decode([Chunk([rng.randrange(n_vocab) for _ in range(20)], 0, slot, feed=True)])
        n = sum(len(chunk.tokens) for chunk in rows)
        rounds.append(Measured(time.perf_counter() - begin, n, len(chunks), session.counters.n_builds - builds))
    report(session, before, rounds)


def report(session: Session, before: Counters, rounds: list[Measured]) -> None:
    """Counts, then what a round's time is made of (least squares)."""
    after = session.counters
    half = rounds[len(rounds) // 2 :]
    factors = np.array([(1, one.n_rows, one.n_drafting, one.n_builds) for one in half], np.float64)
    times = np.array([1e3 * one.seconds for one in half])
    ms = np.linalg.lstsq(factors, times, rcond=None)[0]
    print(
        f"builds: trunk {after.n_trunk_builds - before.n_trunk_builds}, "
        f"head {after.n_head_builds - before.n_head_builds}, "
        f"in the second half {sum(one.n_builds for one in half)} of both; "
        f"compute {session.compute_bytes / 2**20:.1f} MiB; rows a round {factors[:, 1].mean():.1f}\n"
        f"{times.mean():.2f} ms a round, median {np.median(times):.2f}; "
        f"of it a row {ms[1]:.3f}, a sequence that drafts {ms[2]:.3f}, a build {ms[3]:.3f}"
    )


def main() -> None:
    """Parse, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--draft-max", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200, help="a text that is longer begins again")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--padding", choices=("auto", "never", "always"), default="auto")
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--streams", action="store_true", help="a cache for each sequence: kv_unified=False")
    args = parser.parse_args()
    handle = load(args.model)
    cache = {"n_ctx": args.tokens + 64, "n_seq_max": args.sequences, "kv_unified": not args.streams}
    params = ContextParams(n_threads=args.threads, **cache)
    with Session(handle, params, n_draft_max=args.draft_max, padding=args.padding) as session:
        play(session, args)


def load(path: Path) -> object:
    """The model with its heads, for a session alone."""
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    return llama_cpp.llama_model_load_from_file(str(path).encode(), params)


if __name__ == "__main__":
    main()
