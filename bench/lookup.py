"""Measures the index of lookup drafts: its time, its memory, and how often it is right.

    python bench/lookup.py [FOLDER] [--n-min 3] [--n-draft 8] [--n-tokens 1000 10000 100000]

The files of a folder (default: this repository's sources and docs), tokenised by the embedded model, one after another
in a shuffled order and cut into histories.

First table, for histories of each length: microseconds of CPU time a token for one append and one find through the
Python binding, for the append alone, and for a find that has nothing to look at; memory; after which share of the
tokens there was a match, and after which the next 1, 2, 4, 8 tokens were right; and what rounds would make of it if a
model wrote these texts: tokens and drafts a round, with drafts no longer than the match, as LookupDrafter has them, and
with all that are found. Second table: what was found in the longest histories, by the length of the match.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import NamedTuple

from pymtp import Model, version_text
from pymtp.drafting.lookup import MATCH_MAX, MATCH_MIN, LookupIndex

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "cli", "docs", "native", "pymtp", "tests")
SUFFIXES = (".py", ".md", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".patch")
RIGHT = (1, 2, 4, 8)
LENGTHS = ((1, 3), (4, 5), (6, 8), (9, 16), (17, 32), (33, MATCH_MAX))
"""Of matches: the rows of the second table."""


class Found(NamedTuple):
    """What was found after a token of a history."""

    n_matched: int
    n_drafted: int
    n_right: int


def read_tokens(folder: Path | None) -> list[int]:
    """The tokens of all files, in an order that is always the same."""
    folders = [folder] if folder else [REPOSITORY / name for name in FOLDERS]
    files = sorted(path for each in folders for path in each.rglob("*") if path.suffix in SUFFIXES)
    random.Random(1).shuffle(files)
    with Model(n_ctx=64, n_threads=1) as model:
        return [token for path in files for token in model.tokenize(path.read_text("utf-8"))]


def histories(tokens: Sequence[int], n: int, n_most: int = 400_000) -> Iterator[list[int]]:
    """Cut them into pieces of `n`, about `n_most` tokens in all."""
    for begin in range(0, min(len(tokens), max(n_most, n)) - n + 1, n):
        yield list(tokens[begin : begin + n])


def microseconds(history: Sequence[int], n_min: int, n_draft: int) -> tuple[float, float, float, int]:
    """A token, for append and find, for append alone, and for a find in an empty index; and the bytes at the end."""
    index, empty = LookupIndex(len(history), n_min=n_min), LookupIndex(1)
    start = time.process_time()
    for token in history:
        index.append([token])
        index.find(n_draft)
    both = time.process_time() - start
    n_bytes = index.n_bytes
    index = LookupIndex(len(history), n_min=n_min)
    start = time.process_time()
    for token in history:
        index.append([token])
    append = time.process_time() - start
    start = time.process_time()
    for _ in history:
        empty.find(n_draft)
    nothing = time.process_time() - start
    return (*(seconds / len(history) * 1e6 for seconds in (both, append, nothing)), n_bytes)  # type: ignore[return-value]


def drafts(history: Sequence[int], n_min: int, n_draft: int) -> list[Found]:
    """What is found after each token but the last."""
    index, found = LookupIndex(len(history), n_min=n_min), []
    for i, token in enumerate(history[:-1], 1):
        index.append([token])
        match = index.find(min(n_draft, len(history) - i))
        right = sum(1 for _ in takewhile(bool, map(eq, match.tokens, history[i : i + n_draft])))
        found.append(Found(match.n_matched, len(match.tokens), right))
    return found


def rounds(found: Sequence[Found], *, limited: bool) -> Iterator[Found]:
    """Those that rounds ask for: one emits the drafts that are right, and a token after them."""
    at = 0
    while at < len(found):
        here = found[at]
        n = min(here.n_drafted, here.n_matched) if limited else here.n_drafted
        yield Found(here.n_matched, n, min(here.n_right, n))
        at += min(here.n_right, n) + 1


def per_round(texts: Sequence[Sequence[Found]], *, limited: bool) -> str:
    """Tokens and drafts."""
    played = [each for found in texts for each in rounds(found, limited=limited)]
    n_right, n_drafted = sum(each.n_right for each in played), sum(each.n_drafted for each in played)
    return f"{1 + n_right / len(played):.2f} | {n_drafted / len(played):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--n-min", type=int, default=MATCH_MIN, help=f"shortest match (default: {MATCH_MIN})")
    parser.add_argument("--n-draft", type=int, default=8, help="tokens of a draft (default: 8)")
    parser.add_argument("--n-tokens", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args()
    n_min, n_draft = options.n_min, options.n_draft
    tokens = read_tokens(options.folder)
    print(f"{len(tokens)} tokens, matches of {n_min} and more, drafts of {n_draft}, {version_text()}\n")
    right = " | ".join(f"{n} right" for n in RIGHT)
    by_round = "tokens a round | drafts | tokens, all | drafts"
    print(f"| history | both, us | append | no find | KiB | match | {right} | {by_round} |")
    print("|--:" * (10 + len(RIGHT)) + "|")
    found: list[Found] = []
    for n in options.n_tokens:
        texts = list(histories(tokens, n))
        if not texts:
            raise SystemExit(f"there are only {len(tokens)} tokens")
        times = [microseconds(text, n_min, n_draft) for text in texts[:20]]
        both, append, nothing, _ = (sum(column) / len(times) for column in zip(*times, strict=True))
        each = [drafts(text, n_min, n_draft) for text in texts]
        found = [one for text in each for one in text]
        shares = [sum(one.n_matched > 0 for one in found), *(sum(one.n_right >= k for one in found) for k in RIGHT)]
        print(
            f"| {n} | {both:.2f} | {append:.2f} | {nothing:.2f} | {times[0][3] / 1024:.0f} | "
            + " | ".join(f"{share / len(found):.3f}" for share in shares)
            + f" | {per_round(each, limited=True)} | {per_round(each, limited=False)} |"
        )
    print(f"\n| match | share of tokens | {right} | mean |")
    print("|--:" * (3 + len(RIGHT)) + "|")
    for least, most in LENGTHS:
        some = [one for one in found if least <= one.n_matched <= most]
        if some:
            parts = [sum(one.n_right >= k for one in some) / len(some) for k in RIGHT]
            mean = sum(one.n_right for one in some) / len(some)
            print(
                f"| {least} to {most} | {len(some) / len(found):.3f} | "
                + " | ".join(f"{part:.3f}" for part in parts)
                + f" | {mean:.2f} |"
            )


if __name__ == "__main__":
    main()
