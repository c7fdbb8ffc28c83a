"""Compares two installed versions of pymtp: whether they write the same texts, and how fast.

    python bench/versions.py OLD/.venv/bin/python NEW/.venv/bin/python model.gguf prompts.jsonl [-k none 1 3]
        [--n-seq 1 8] [--sampling temperature=0] [-n 96] [--n-prompts 24] [-r 3]

Each version keeps a process with the model loaded; they take turns, text by text, and who begins alternates. With
several sequences the prompts go in groups of that many. Prints for each K and number of sequences how many groups'
texts are equal, and the ratio of the new version's tokens a second to the old one's: wall clock from the request to the
last token, of each group the fastest of all repetitions, which what else the machine does disturbs least; the median of
the groups and the middle half of them. One process can be slower than the other with the same version in both (by a
tenth, for texts of 4 tokens): name them in both orders.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WORKER = """
import json, sys, time
from pymtp import GenerationParams, Model, SamplingParams
setup = json.loads(sys.stdin.readline())
k, n_seq = setup["k"], setup["n_seq"]
drafts = {"draft": "none"} if k == "none" else {"draft_max": k}
model = Model(setup["model"], n_ctx=setup["n_ctx"], n_seq_max=n_seq, **drafts)
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    sampling = SamplingParams(**{"seed": 1, **asked["sampling"]})
    params = GenerationParams(max_tokens=asked["n"], ignore_eos=True, sampling=sampling)
    begin = time.perf_counter()
    made = [model.generate(prompt, params) for prompt in asked["prompts"]]
    for each in made:
        "".join(each)
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "texts": [each.tokens for each in made]}), flush=True)
"""
"""Uses only what all versions have."""


class Outcome(NamedTuple):
    """What both versions made of one group of prompts."""

    is_equal: bool
    old_s: float
    new_s: float


class Version:
    """A process of one version."""

    def __init__(self, python: str, setup: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [python, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._send(setup)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"bench/versions.py: {python} cannot load the model; its error is above")

    def generate(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The seconds that it took, and the tokens."""
        self._send(asked)
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()


def main() -> None:
    """See the module's docstring."""
    args = parse_args()
    prompts = list(read_prompts(args.prompts, args.n_prompts))
    print("|  K | sequences | equal texts | new / old | middle half |\n|---:|---:|---:|---:|---:|")
    for n_seq in args.n_seq:
        groups = [prompts[i : i + n_seq] for i in range(0, len(prompts) - n_seq + 1, n_seq)]
        for k in args.k:
            outcomes = list(compare(args, k, groups))
            repeated = [outcomes[i :: len(groups)] for i in range(len(groups))]
            ratios = [min(each.old_s for each in same) / min(each.new_s for each in same) for same in repeated]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            n_equal = sum(each.is_equal for each in outcomes)
            cells = f"{k} | {n_seq} | {n_equal} of {len(outcomes)} | {middle:.3f} | {low:.3f} to {high:.3f}"
            print(f"| {cells} |", flush=True)


def compare(args: argparse.Namespace, k: str | int, groups: Sequence[Sequence[str]]) -> Iterator[Outcome]:
    """Generate all groups with both versions, in turns."""
    setup = {"model": str(args.model.resolve()), "k": k, "n_seq": len(groups[0]), "n_ctx": 1024}
    old, new = (Version(python, setup) for python in (args.old, args.new))
    for version in (old, new):  # the first one also builds graphs
        version.generate({"prompts": groups[0], "n": 32, "sampling": {"temperature": 0}})
    for i in range(args.repeat * len(groups)):
        asked = {"prompts": groups[i % len(groups)], "n": args.n, "sampling": dict(args.sampling)}
        if i % 2:
            a, b = old.generate(asked), new.generate(asked)
        else:
            b, a = new.generate(asked), old.generate(asked)
        yield Outcome(a["texts"] == b["texts"], a["seconds"], b["seconds"])
    old.close()
    new.close()


def read_prompts(path: Path, n: int) -> Iterator[str]:
    """The first `n` prompts of the list as plain text, taken evenly from its kinds."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines[:: max(len(lines) // n, 1)][:n]:
        yield line["prompt"] if "prompt" in line else line["messages"][-1]["content"]


def parameter(text: str) -> tuple[str, Any]:
    """A field of SamplingParams and its value."""
    name, value = text.split("=")
    return name, json.loads(value)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the Python of the environment with the old version")
    parser.add_argument("new", help="that of the new version")
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("-k", nargs="+", type=lambda k: k if k in ("none", "auto") else int(k), default=["none", 1, 3])
    parser.add_argument("--n-seq", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--sampling", nargs="+", type=parameter, default=[("temperature", 0)], metavar="NAME=VALUE")
    parser.add_argument("-n", type=int, default=96, help="tokens of each text")
    parser.add_argument("--n-prompts", type=int, default=24)
    parser.add_argument("-r", "--repeat", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
