"""Acceptance on a list of prompts, by category: python bench/acceptance.py PROMPTS.jsonl [--model M] [--draft-max K].

Each line of the list is {"category": ..., "prompt": ...} or {"category": ..., "messages": [...]}; messages are
rendered with the model's chat template. Greedy, 96 tokens per prompt, without end-of-generation tokens: the counts do
not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from pymtp import Model, SamplingParams, version_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("--draft-max", type=int, default=3)
    parser.add_argument("--mtp-context", choices=["auto", "chained", "target"], default="auto")
    parser.add_argument("-n", type=int, default=96, help="tokens per prompt (default: 96)")
    options = parser.parse_args()

    drafted: dict[str, int] = defaultdict(int)
    accepted: dict[str, int] = defaultdict(int)
    rounds: dict[str, int] = defaultdict(int)
    with Model(options.model, draft="mtp", draft_max=options.draft_max, mtp_context=options.mtp_context) as model:
        for line in options.prompts.read_text("utf-8").splitlines():
            item = json.loads(line)
            prompt = model.chat_prompt(item["messages"]) if "messages" in item else item["prompt"]
            generation = model.generate(
                prompt, sampling=SamplingParams(temperature=0), max_tokens=options.n, ignore_eos=True
            )
            for _ in generation:
                pass
            for category in (item["category"], "all"):
                drafted[category] += generation.stats.drafted
                accepted[category] += generation.stats.accepted
                rounds[category] += generation.stats.rounds
        print(
            f"{model.info.path.name}, K = {options.draft_max}, heads {options.mtp_context}, greedy, {version_text()}\n"
        )
    print("| category | drafted | accepted | acceptance rate | mean acceptance length |")
    print("|---|--:|--:|--:|--:|")
    for name in sorted(drafted, key=lambda name: (name == "all", name)):
        rate, length = accepted[name] / drafted[name], 1 + accepted[name] / rounds[name]
        print(f"| {name} | {drafted[name]} | {accepted[name]} | {rate:.3f} | {length:.2f} |")


if __name__ == "__main__":
    main()
