"""What drafting from a part of a large vocabulary costs and gains.

    python bench/draft_vocab.py --model MODEL.gguf [-k 3] [--forced-length 2.8]    rounds with all and with a part
    python bench/draft_vocab.py --ranks FILE.tiktoken TEXT ...                     what texts have of that part

A file of ranks is as tiktoken downloads it (tiktoken has to be installed). Texts are cut into pieces of 1000 tokens,
the first 200 of which stand for a prompt; the others count.
"""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from statistics import median
from time import perf_counter

from pymtp import GenerationParams, Model, SamplingParams
from pymtp.acceptance.forced import Forced
from pymtp.drafting.text_vocab import N_FIRST, N_RECENT

N_PIECE, N_PROMPT, N_PREDICT, N_WARM_UP = 1000, 200, 64, 2
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("-k", "--draft-max", type=int, default=3)
    parser.add_argument("--forced-length", type=float, default=2.8)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--ranks", type=Path)
    parser.add_argument("texts", type=Path, nargs="*")
    asked = parser.parse_args()
    if asked.model:
        rounds(asked)
    if asked.ranks:
        coverage(asked)


def rounds(asked: argparse.Namespace) -> None:
    """Milliseconds of a round, with drafts accepted at random."""
    forced = Forced.of_length(asked.forced_length, asked.draft_max)
    sampling = SamplingParams(temperature=0)
    params = GenerationParams(sampling, max_tokens=N_PREDICT, ignore_eos=True, forced=forced, draft_lookup="off")
    models = {
        "all": Model(asked.model, n_ctx=512, draft_max=asked.draft_max, draft_vocab="all"),
        "auto": Model(asked.model, n_ctx=512, draft_max=asked.draft_max),
    }
    times: dict[str, list[float]] = {name: [] for name in models}
    for i in range(asked.repeat):
        for name, model in models.items():
            generation = model.generate([5, 6, 7, 8 + i], params)
            next(generation)
            n_before, begin = generation.stats.rounds, perf_counter()
            "".join(generation)
            times[name].append((perf_counter() - begin) / (generation.stats.rounds - n_before))
    for name, model in models.items():
        ratio = median(a / b for a, b in zip(times["all"][N_WARM_UP:], times[name][N_WARM_UP:], strict=True))
        size = model.session.n_draft_vocab
        print(f"{name} ({size} tokens): {1e3 * median(times[name][N_WARM_UP:]):.2f} ms a round, {ratio:.2f} of all")


def coverage(asked: argparse.Namespace) -> None:
    """The share of texts' tokens that are among the first, and that are so or have been in texts before."""
    import tiktoken  # type: ignore[import-not-found]

    lines = (line.split() for line in asked.ranks.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    encoding = tiktoken.Encoding("texts", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
    print(f"{asked.ranks.name}, {len(ranks)} tokens")
    for path in asked.texts:
        tokens = encoding.encode(path.read_text("utf-8", "replace"), disallowed_special=())
        n_first = n_both = n = 0
        recent = dict.fromkeys(range(N_FIRST, N_FIRST + N_RECENT))
        for i, token in enumerate(tokens):
            if i % N_PIECE >= N_PROMPT:
                n, n_first = n + 1, n_first + (token < N_FIRST)
                n_both += token < N_FIRST or token in recent
            if token >= N_FIRST:
                recent.pop(token if token in recent else next(iter(recent)))
                recent[token] = None
        print(f"{path.name}: {len(tokens)} tokens, first {n_first / max(n, 1):.3f}, both {n_both / max(n, 1):.3f}")


if __name__ == "__main__":
    main()
