"""The first texts of fresh processes, adaptive beside plain: python bench/first_texts.py PROMPTS.jsonl [--model M].

In each repetition new processes answer the same few prompts, in random order: one without drafts, one with the adaptive
length and what such processes have learned before, one that knows nothing of these. Prints, for the first text of a
process, the second and so on, the medians of plain decoding's time over that of the adaptive length, prompts included,
each with an interval that contains it with 95 % probability.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pymtp import GenerationParams, Model, SamplingParams
from pymtp.benchmark.prompts import Text, read_texts, tokenized
from pymtp.benchmark.rows import median_ratio

ARMS: dict[str, dict[str, Any]] = {"plain": {"draft": "none"}, "adaptive": {}, "no hints": {"draft_hints": False}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("-n", type=int, default=96, help="tokens per prompt (default: 96)")
    parser.add_argument("--texts", type=int, default=3, help="texts of a process (default: 3)")
    parser.add_argument("-r", type=int, default=20, help="repetitions (default: 20)")
    parser.add_argument("-t", type=int, help="threads")
    options = parser.parse_args()
    texts, rng = read_texts(options.prompts), random.Random(0)
    ratios: dict[str, list[list[float]]] = {arm: [[] for _ in range(options.texts)] for arm in [*ARMS][1:]}
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for _ in range(options.r):
            chosen = rng.sample(texts, options.texts)
            seconds = {arm: in_new_process(arm, chosen, options) for arm in rng.sample([*ARMS], len(ARMS))}
            for arm, found in ratios.items():
                for each, plain, adaptive in zip(found, seconds["plain"], seconds[arm], strict=True):
                    each.append(plain / adaptive)
    print(f"| text of the process | {' | '.join(ratios)} |\n|--:|{'--:|' * len(ratios)}")
    for i in range(options.texts):
        cells = ["{:.2f} ({:.2f}-{:.2f})".format(*median_ratio(found[i])) for found in ratios.values()]
        print(f"| {i + 1} | {' | '.join(cells)} |")


def in_new_process(arm: str, texts: Sequence[Text], options: argparse.Namespace) -> list[float]:
    """Seconds that each text takes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(generate, arm, texts, options).result()


def generate(arm: str, texts: Sequence[Text], options: argparse.Namespace) -> list[float]:
    seconds = []
    params = GenerationParams(SamplingParams(temperature=0), max_tokens=options.n, ignore_eos=True)
    with Model(options.model, n_ctx=2048, n_threads=options.t, **ARMS[arm]) as model:
        for prompt in [tokenized(text, model.vocabulary) for text in texts]:
            start = perf_counter()
            "".join(model.generate(prompt.tokens, params))
            seconds.append(perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
