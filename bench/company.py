"""Texts that company and drafts change: python bench/company.py PROMPTS.jsonl [--model M] [--invariant].

Generates each text alone and without drafts, then many at a time, with and without drafts, and prints how many differ
from the first, token for token. On x86 CPUs none does; on GPUs only with `--invariant` none. Half of the texts are
greedy, half are drawn with a seed.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Literal

from pymtp import GenerationParams, Model, SamplingParams
from pymtp.benchmark.prompts import read_texts, tokenized

Drafts = int | Literal["auto"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("-n", type=int, default=96, help="tokens per text (default: 96)")
    parser.add_argument("--texts", type=int, default=48, help="(default: 48)")
    parser.add_argument("--n-seq", type=int, nargs="+", default=[16, 5], help="at a time (default: 16 5)")
    parser.add_argument("-k", type=lambda k: k if k == "auto" else int(k), nargs="+", default=[0, 3, "auto"])
    parser.add_argument("--cache", nargs="+", default=["f16"], help="types of caches (default: f16)")
    parser.add_argument("--invariant", action="store_true")
    options = parser.parse_args()
    print("| cache | at a time | K | differ | tok/s |\n|---|--:|--:|--:|--:|")
    for cache in options.cache:
        expected = generate(options, cache, 1, 0)[0]
        for n_seq in (1, *options.n_seq):
            for k in options.k:
                texts, speed = generate(options, cache, n_seq, k)
                n_other = sum(text != other for text, other in zip(texts, expected, strict=True))
                print(f"| {cache} | {n_seq} | {k} | {n_other} of {len(texts)} | {speed:.0f} |", flush=True)


def generate(options: argparse.Namespace, cache: str, n_seq: int, k: Drafts) -> tuple[list[list[int]], float]:
    """All texts, and tokens a second, prompts included."""
    texts = read_texts(options.prompts)[: options.texts]
    drafting = {"draft": "none"} if k == 0 else {"draft_max": k}
    with Model(
        options.model,
        n_ctx=1024,
        n_seq_max=n_seq,
        kv_unified=False,
        type_k=cache,
        type_v=cache,
        invariant=options.invariant,
        **drafting,
    ) as model:
        prompts = [tokenized(text, model.vocabulary).tokens[-600:] for text in texts]

        def tokens_of(i: int) -> list[int]:
            sampling = SamplingParams(temperature=i % 2, seed=i)
            generation = model.generate(prompts[i], GenerationParams(sampling, max_tokens=options.n, ignore_eos=True))
            return [*generation] and generation.tokens

        start = perf_counter()
        with ThreadPoolExecutor(len(prompts) if n_seq > 1 else 1) as pool:
            found = list(pool.map(tokens_of, range(len(prompts))))
        return found, sum(map(len, found)) / (perf_counter() - start)


if __name__ == "__main__":
    main()
