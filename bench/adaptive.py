"""Adaptive and fixed draft lengths against plain decoding: python bench/adaptive.py PROMPTS.jsonl [--model M].

tok/s of each draft length over that of plain decoding (`--draft none`, a session without heads), in pairs: the same
prompt, one right after the other, in random order. Prints medians of the ratios by category and over all prompts, each
with an interval that contains the median with 95 % probability, and the speed-up of each length over the whole list.
Greedy, or at temperature 1 with penalties.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from pathlib import Path
from typing import Literal

from pymtp import GenerationParams, Model, SamplingParams, version_text
from pymtp.benchmark.prompts import Text, read_texts
from pymtp.benchmark.spread import Ratio

PENALTIES = SamplingParams(temperature=1, dry_multiplier=0.8, repeat_penalty=1.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("--draft-max", nargs="+", default=["auto"], help="lengths: auto, 1, 2, ... (default: auto)")
    parser.add_argument("--temp", type=float, choices=[0.0, 1.0], default=0.0, help="0, or 1 with penalties")
    parser.add_argument("--draft-vocab", default=None, help="auto, or a number of tokens")
    parser.add_argument("-n", type=int, default=96, help="tokens per prompt (default: 96)")
    parser.add_argument("-r", type=int, default=2, help="repetitions of the whole list (default: 2)")
    given = parser.parse_args()

    vocab = int(given.draft_vocab) if (given.draft_vocab or "").isdigit() else given.draft_vocab
    lengths = [text if text == "auto" else int(text) for text in given.draft_max]
    longest = max((length for length in lengths if length != "auto"), default=0)
    with (
        Model(given.model, draft="none") as plain,
        Model(given.model, draft="mtp", draft_max=max(longest, 4), draft_vocab=vocab) as drafting,
    ):
        sampling = PENALTIES if given.temp else SamplingParams(temperature=0)
        params = GenerationParams(sampling=sampling, max_tokens=given.n, ignore_eos=True)
        arms = {"none": plain, **dict.fromkeys(lengths, drafting)}
        texts = read_texts(given.prompts)
        speeds, accepted, seconds = measure(arms, texts, params, given.r)
        print(f"{plain.info.path.name}, temperature {given.temp:g}, {given.n} tokens per prompt, {version_text()}\n")
    print("| category | K | of plain decoding | 95 % | pairs | mean acceptance length |")
    print("|---|--:|--:|--:|--:|--:|")
    for (category, length), ratios in speeds.items():
        median, low, high = Ratio.of(ratios)
        mean_length = sum(accepted[category, length]) / len(ratios)
        print(f"| {category} | {length} | {median:.3f} | {low:.3f} to {high:.3f} | {len(ratios)} | {mean_length:.2f} |")
    print("\n| K | of plain decoding, the whole list |")
    print("|---|--:|")
    for length in lengths:
        print(f"| {length} | {seconds['none'] / seconds[length]:.3f} |")


Arm = int | str
Lists = dict[tuple[str, Arm], list[float]]


def measure(
    arms: dict[Arm, Model], texts: list[Text], params: GenerationParams, n_repeat: int
) -> tuple[Lists, Lists, dict[Arm, float]]:
    """Ratios to plain decoding and mean acceptance lengths by category and draft length; summed seconds per token."""
    speeds: Lists = defaultdict(list)
    accepted: Lists = defaultdict(list)
    seconds: dict[Arm, float] = defaultdict(float)
    rng = random.Random(0)
    for repetition in range(n_repeat + 1):  # the first one warms up, on a few prompts
        for text in texts if repetition else texts[:: max(len(texts) // 4, 1)]:
            stats = {}
            for arm in rng.sample(list(arms), len(arms)):
                model = arms[arm]
                prompt = text.prompt or model.chat_prompt(text.messages)
                generation = model.generate(prompt, params, draft_max=_draft_max(arm))
                for _ in generation:
                    pass
                stats[arm] = generation.stats
            if not repetition:
                continue
            for arm in arms:
                seconds[arm] += 1 / (stats[arm].generation_tok_s or 1)
            for category in (text.category, "all"):
                for arm in set(arms) - {"none"}:
                    ratio = (stats[arm].generation_tok_s or 0) / (stats["none"].generation_tok_s or 1)
                    speeds[category, arm].append(ratio)
                    accepted[category, arm].append(stats[arm].mean_acceptance_length or 1)
    order = sorted(speeds, key=lambda key: (key[0] == "all", key[0], str(key[1])))
    return {key: speeds[key] for key in order}, accepted, seconds


def _draft_max(arm: Arm) -> int | Literal["auto"]:
    if isinstance(arm, int):
        return arm
    return 0 if arm == "none" else "auto"


if __name__ == "__main__":
    main()
