"""The first texts of fresh processes, adaptive beside plain: python bench/first_texts.py PROMPTS.jsonl [--model M].

In each repetition one new process answers a few prompts without drafts, and another the same prompts with the adaptive
length, in random order. Prints, for the first text of a process, the second and so on, the median of plain decoding's
time over that of the adaptive length, prompts included, with an interval that contains it with 95 % probability.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Literal

from pymtp import GenerationParams, Model, SamplingParams
from pymtp.benchmark.prompts import Text, read_texts, tokenized
from pymtp.benchmark.rows import median_ratio

Draft = Literal["none", "auto"]
BOTH: list[Draft] = ["none", "auto"]


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
    ratios: list[list[float]] = [[] for _ in range(options.texts)]
    for _ in range(options.r):
        chosen = rng.sample(texts, options.texts)
        seconds = {draft: in_new_process(draft, chosen, options) for draft in rng.sample(BOTH, 2)}
        for found, plain, adaptive in zip(ratios, seconds["none"], seconds["auto"], strict=True):
            found.append(plain / adaptive)
    print("| text of the process | of plain decoding | 95 % |\n|--:|--:|--:|")
    for i, found in enumerate(ratios, 1):
        median, low, high = median_ratio(found)
        print(f"| {i} | {median:.3f} | {low:.3f} to {high:.3f} |")


def in_new_process(draft: Draft, texts: Sequence[Text], options: argparse.Namespace) -> list[float]:
    """Seconds that each text takes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(generate, draft, texts, options).result()


def generate(draft: Draft, texts: Sequence[Text], options: argparse.Namespace) -> list[float]:
    seconds = []
    params = GenerationParams(SamplingParams(temperature=0), max_tokens=options.n, ignore_eos=True)
    with Model(options.model, draft=draft, n_ctx=2048, n_threads=options.t) as model:
        for prompt in [tokenized(text, model.vocabulary) for text in texts]:
            start = perf_counter()
            "".join(model.generate(prompt.tokens, params))
            seconds.append(perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
