"""Draft lengths, adaptive and fixed, against plain decoding: python bench/adaptive.py PROMPTS.jsonl [--model M].

Arms: `none`, plain decoding in a session without drafts; K, so many drafts of the heads in every round; `auto`, what
pays, lookup included; `heads`, what pays without lookup. All take turns on the same prompts, one right after the other,
in random order. With --answers the file has answers, too, which are emitted instead of the model's own text. With
--parallel N, N texts are generated at a time, and the next one begins where one ends; the arms take turns on the whole
list. With --forced L, drafts are accepted by chance to rounds of that mean length with 3 drafts.

Prints medians of the ratios to plain decoding by category and over all prompts, each with an interval that contains the
median with 95 % probability; then the tokens a second of each arm over the whole list, of passes alone and by the wall
clock with prompts and Python, and as shares of the best fixed length.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from pymtp import GenerationParams, Model, SamplingParams, Stats, version_text
from pymtp.acceptance.forced import Forced, Scripted
from pymtp.benchmark.prompts import Text, read_texts, tokenized
from pymtp.benchmark.rows import median_ratio

PENALTIES = SamplingParams(temperature=1, dry_multiplier=0.8, repeat_penalty=1.1)


class Played(NamedTuple):
    """Some texts that were generated together."""

    stats: Stats
    wall_s: float


def main() -> None:
    options = parse()
    texts = read_texts(options.prompts, with_answers=options.answers)[: options.first]
    with ExitStack() as stack:

        def load(**more: Any) -> Model:
            shape = {"n_seq_max": options.parallel, "n_ctx": options.n_ctx, "n_threads": options.t}
            return stack.enter_context(Model(options.model, **shape, **more))

        arms = {"none": load(draft="none")}
        if "heads" in options.arms:
            arms["heads"] = load(draft="mtp", draft_lookup="off")
        drafting = load() if {"auto", *"123456789"} & set(options.arms) else arms["none"]
        arms |= {arm: drafting for arm in options.arms if arm not in arms}
        print(f"{drafting.info.path.name}, {options}, {version_text()}\n")
        played = measure(arms, texts, options)
    report(played)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("--arms", nargs="+", default=["auto"], help="auto, heads, 1, 2, ... (default: auto)")
    parser.add_argument("--answers", action="store_true", help="the file has answers")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--forced", type=float, help="mean length of rounds with 3 drafts")
    parser.add_argument("--temp", type=float, choices=[0.0, 1.0], default=0.0, help="0, or 1 with penalties")
    parser.add_argument("-n", type=int, default=96, help="tokens per prompt (default: 96)")
    parser.add_argument("-r", type=int, default=1, help="repetitions of the whole list (default: 1)")
    parser.add_argument("--first", type=int, help="prompts that are used (default: all)")
    parser.add_argument("--n-ctx", type=int, default=2048)
    parser.add_argument("-t", type=int, help="threads")
    return parser.parse_args()


def measure(
    arms: dict[str, Model], texts: Sequence[Text], options: argparse.Namespace
) -> dict[tuple[str, str], list[Played]]:
    """What was played of each category by each arm. The prompts of a group are of any category."""
    rng, played = random.Random(0), defaultdict(list)
    n = options.parallel
    groups = [[text] for text in texts] if n == 1 else [texts]
    few = groups[:: max(len(groups) // 2, 1)] if n == 1 else [texts[:n]]
    for repetition in range(options.r + 1):  # the first one warms up, on a few prompts
        for group in groups if repetition else few:
            for arm in rng.sample(list(arms), len(arms)):
                result = play(arms[arm], arm, group, options)
                if repetition:
                    for category in {group[0].category if n == 1 else "all", "all"}:
                        played[category, arm].append(result)
    return played


def play(model: Model, arm: str, group: Sequence[Text], options: argparse.Namespace) -> Played:
    """Generate some texts together."""
    sampling = PENALTIES if options.temp else SamplingParams(temperature=0)
    draft_max: Any = {"none": 0, "auto": "auto", "heads": "auto"}.get(arm) if not arm.isdigit() else int(arm)
    before, start = model.stats, perf_counter()
    asked = []
    for prompt in (tokenized(text, model.vocabulary) for text in group):
        params = GenerationParams(sampling, max_tokens=options.n, ignore_eos=True, draft_max=draft_max)
        if prompt.answer:
            answer = prompt.answer[: options.n]
            params = GenerationParams(
                sampling, max_tokens=len(answer), ignore_eos=True, draft_max=draft_max, forced=Scripted(answer)
            )
        elif options.forced and draft_max:
            rate = Forced.of_length(options.forced, 3).rates[0]
            params = GenerationParams(
                sampling,
                max_tokens=options.n,
                ignore_eos=True,
                draft_max=draft_max,
                forced=Forced([rate**i for i in range(1, 17)], random.Random(0).random),
            )
        asked.append((prompt.tokens, params))
    for generation in model.call(lambda: [model.generate(tokens, params) for tokens, params in asked]):
        "".join(generation)
    return Played(model.stats - before, perf_counter() - start)


def report(played: dict[tuple[str, str], list[Played]]) -> None:
    print("| category | arm | of plain decoding | 95 % | pairs | mean acceptance length |")
    print("|---|---|--:|--:|--:|--:|")
    for category, arm in sorted(played, key=lambda key: (key[0] == "all", *key)):
        if arm != "none":
            pairs = zip(played[category, arm], played[category, "none"], strict=True)
            ratios = [(one.stats.generation_tok_s or 0) / (plain.stats.generation_tok_s or 1) for one, plain in pairs]
            median, low, high = median_ratio(ratios)
            lengths = [one.stats.mean_acceptance_length or 1 for one in played[category, arm]]
            print(
                f"| {category} | {arm} | {median:.3f} | {low:.3f} to {high:.3f} | {len(ratios)} | "
                f"{sum(lengths) / len(lengths):.2f} |"
            )
    whole = {arm: speeds(results) for (category, arm), results in played.items() if category == "all"}
    fixed = max(speed[0] for arm, speed in whole.items() if arm == "none" or arm.isdigit())
    print("\n| arm | tok/s, passes | tok/s, wall clock | of plain | of the best fixed |")
    print("|---|--:|--:|--:|--:|")
    for arm, (passes, wall) in whole.items():
        print(f"| {arm} | {passes:.1f} | {wall:.1f} | {passes / whole['none'][0]:.3f} | {passes / fixed:.3f} |")


def speeds(results: Sequence[Played]) -> tuple[float, float]:
    """Tokens a second over the whole list, of passes and by the wall clock."""
    n_tokens = sum(one.stats.generated_tokens for one in results)
    return n_tokens / sum(one.stats.generation_s for one in results), n_tokens / sum(one.wall_s for one in results)


if __name__ == "__main__":
    main()
