"""What chance drafts have, drawn or the most likely: python bench/picks.py PROMPTS.jsonl [--model M] [--temp 0.8 ...].

Generates with drawn drafts. At each row that was verified the target's probability of the most likely draft is what
picking it would have been worth, and the overlap of both distributions what drawing was: the same rows for both.
Prompts as in acceptance.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

from pymtp import Model, SamplingParams
from pymtp.acceptance.interface import Verdict, Verified
from pymtp.acceptance.rejection import BLOCK_REJECTION
from pymtp.sampling.chain import Sampler


class Watched:
    """Rejection that notes both chances of each row."""

    name = BLOCK_REJECTION.name

    def __init__(self) -> None:
        self.greedy: list[float] = []
        self.drawn: list[float] = []

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        verdict = BLOCK_REJECTION(sampler, verified._replace(keep=True))
        for draft, target in zip(verified.distributions, verdict.targets, strict=False):
            assert draft.best is not None
            self.greedy.append(target.prob(draft.best[0]))
            self.drawn.append(1 - target.residual_mass(draft))
        return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("--draft-max", type=int, default=3)
    parser.add_argument("--temp", type=float, nargs="+", default=[0.3, 0.8, 1.0])
    parser.add_argument("-n", type=int, default=128, help="tokens per prompt (default: 128)")
    options = parser.parse_args()
    items = [json.loads(line) for line in options.prompts.read_text("utf-8").splitlines()]
    print("| temperature | rows | greedy | drawn |\n|--:|--:|--:|--:|")
    with Model(options.model, draft="mtp", draft_max=options.draft_max) as model:
        prompts = [model.chat_prompt(item["messages"]) if "messages" in item else item["prompt"] for item in items]
        for temperature in options.temp:
            watched, sampling = Watched(), SamplingParams(temperature=temperature)
            with patch("pymtp.serving.make_sequence.BLOCK_REJECTION", watched):
                for prompt in prompts:
                    for _ in model.generate(prompt, sampling=sampling, max_tokens=options.n, ignore_eos=True):
                        pass
            greedy, drawn = fmean(watched.greedy), fmean(watched.drawn)
            print(f"| {temperature} | {len(watched.drawn)} | {greedy:.3f} | {drawn:.3f} |", flush=True)


if __name__ == "__main__":
    main()
