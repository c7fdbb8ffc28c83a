"""Measures what sampling costs, and what drafting with the sampler chain gains.

    python bench/sampling.py cost [--n-vocab 152064]
    python bench/sampling.py acceptance PROMPTS.jsonl [--model M] [--draft-max 1 3] [-n 96]

`cost`: microseconds on the host per row of logits that has just been written, medians, interleaved: llama.cpp's
default chain on the whole vocabulary, ours on the whole vocabulary, and ours as normally used; with penalties and DRY,
and with a long history.

`acceptance`: acceptance rate and mean acceptance length on prompts at temperature 1, with usual and with strong
penalties: for the heads' most likely tokens, ignoring the samplers (raw), for greedy picks of the full chain with
match, and for drawn drafts with both kinds of rejection; and tok/s relative to raw drafts, as medians of ratios over
the prompts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import llama_cpp
import numpy as np

from pymtp import DraftRequest, GenerationParams, Model, Proposal, SamplingParams, version_text
from pymtp.binding.arrays import Logits
from pymtp.binding.library import check, lib
from pymtp.drafting.interface import ChainPicker
from pymtp.drafting.mtp import MtpDrafter
from pymtp.sampling.chain import Sampler

USUAL = SamplingParams(
    temperature=1, top_k=40, top_p=0.95, min_p=0.05, dry_multiplier=0.8, repeat_penalty=1.1, repeat_last_n=64, seed=1
)
STRONG = replace(USUAL, repeat_penalty=1.3, repeat_last_n=256, presence_penalty=0.5, dry_multiplier=1.0)

#
# cost
#


class LlamaCpp:
    """llama.cpp's own chain, applied to a whole row."""

    _CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self, params: SamplingParams, n_vocab: int, history: Sequence[int]) -> None:
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        last_n = len(history) if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
        penalties = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
        stages = [
            llama_cpp.llama_sampler_init_penalties(n_vocab, params.repeat_last_n, *penalties),
            # the vocabulary is used only for breakers
            llama_cpp.llama_sampler_init_dry(
                ctypes.c_void_p(8), params.dry_multiplier, params.dry_base, params.dry_allowed_length, last_n, None, 0
            ),
            llama_cpp.llama_sampler_init_top_k(params.top_k),
            llama_cpp.llama_sampler_init_top_p(params.top_p, 0),
            llama_cpp.llama_sampler_init_min_p(params.min_p, 0),
            llama_cpp.llama_sampler_init_temp_ext(params.temperature, 0, 1),
            llama_cpp.llama_sampler_init_dist(1),
        ]
        for stage in stages:
            llama_cpp.llama_sampler_chain_add(self._chain, stage)
        for token in history:
            llama_cpp.llama_sampler_accept(self._chain, token)
        self._candidates = np.empty(n_vocab, self._CANDIDATE)
        self._ids = np.arange(n_vocab, dtype=np.int32)

    def __call__(self, logits: Logits) -> None:
        self._candidates["id"] = self._ids
        self._candidates["logit"] = logits
        data = self._candidates.ctypes.data_as(llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))


def apply(sampler: Sampler, logits: Logits) -> None:
    """Apply the chain alone, as for llama.cpp's: without returning the distribution."""
    check(lib.pymtp_sampler_apply(sampler._native, sampler._at([logits])))


def cost(n_vocab: int, n_times: int) -> None:
    rng = np.random.default_rng(1)
    rows = [rng.normal(scale=3, size=n_vocab).astype(np.float32) for _ in range(4)]  # of a round with K = 3
    short, long = rng.integers(0, 3000, 200).tolist(), rng.integers(0, 3000, 32768).tolist()
    print(f"{n_vocab} logits per row, microseconds, medians of {n_times}; {version_text()}\n")
    print("| chain | history | llama.cpp | ours, whole rows | ours | whole / ours |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, params, history in (
        ("defaults", SamplingParams(seed=1), short),
        ("with penalties and DRY", USUAL, short),
        ("the same, DRY over all", replace(USUAL, dry_penalty_last_n=-1), long),
    ):
        raised = ((0, 1e-9),)  # candidates do not do where a token is raised, however little
        whole = Sampler(replace(params, logit_bias=raised), n_vocab=n_vocab, history=history)
        ours = Sampler(params, n_vocab=n_vocab, history=history)
        ways: list[Callable[[Logits], object]] = [
            LlamaCpp(params, n_vocab, history),
            partial(apply, whole),
            partial(apply, ours),
        ]
        times: list[list[float]] = [[] for _ in ways]
        for i in range(n_times):
            for way, spent in zip(ways, times, strict=True):
                row = rows[i % len(rows)]
                row += 0  # as if just written: in the CPU's cache
                start = time.perf_counter()
                way(row)
                spent.append((time.perf_counter() - start) * 1e6)
        reference, full, used = map(median, times)
        print(f"| {name} | {len(history)} | {reference:.0f} | {full:.0f} | {used:.1f} | {full / used:.1f} |")


#
# acceptance
#


class RawPicker(ChainPicker):
    """Lets the session pick the heads' most likely tokens that do not end the sequence, without samplers."""

    def __init__(self, banned: Iterable[int]) -> None:
        self._banned = tuple(sorted(banned))

    @property
    def banned(self) -> tuple[int, ...]:
        """What ends the sequence."""
        return self._banned

    def forget(self) -> None:
        """Nothing to forget."""

    def n_worth(self, drafts: Sequence[int], confidences: Sequence[float]) -> int:
        """All of them."""
        return len(drafts)

    def is_confident(self, confidence: float) -> bool:
        """Always."""
        return True


class RawDrafter(MtpDrafter):
    """Drafts with the heads, and leaves the samplers to the target."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """See Drafter."""
        raw = []
        for request in requests:
            assert isinstance(request.stop, Iterable)
            raw.append(request._replace(picker=RawPicker(request.stop)))
        return super().propose(raw)


METHODS: dict[str, dict[str, Any]] = {
    "raw, match": {"draft_pick": "greedy"},
    "chain, match": {"draft_pick": "greedy"},
    "chain, auto": {"draft_pick": "auto"},
    "chain, rejection token-wise": {"draft_pick": "sample", "accept": "rejection-tokenwise"},
    "chain, rejection": {"draft_pick": "sample"},
}


def acceptance(prompts: Path, model_file: Path | None, draft_max: Sequence[int], n_tokens: int) -> None:
    items = [json.loads(line) for line in prompts.read_text("utf-8").splitlines()]
    for k in draft_max:
        with (
            Model(model_file, draft="mtp", draft_max=k, n_ctx=2048) as model,
            Model(model_file, draft=RawDrafter, draft_max=k, n_ctx=2048) as raw_model,
        ):
            texts = [model.chat_prompt(item["messages"]) if "messages" in item else item["prompt"] for item in items]
            print(f"\n{model.info.path.name}, K = {k}, temperature 1, {n_tokens} tokens per prompt, {version_text()}\n")
            print("| penalties | drafts | acceptance rate | mean acceptance length | tok/s over raw |")
            print("|---|---|--:|--:|--:|")
            for name, sampling in (("usual", USUAL), ("strong", STRONG)):
                table(model, raw_model, texts, name, sampling, n_tokens)


def table(
    model: Model, raw_model: Model, texts: Sequence[str], name: str, sampling: SamplingParams, n_tokens: int
) -> None:
    counts = {method: np.zeros(3, int) for method in METHODS}
    speeds: dict[str, list[float]] = {method: [] for method in METHODS}
    for i, text in enumerate(texts):
        for method, options in METHODS.items():
            params = GenerationParams(sampling=replace(sampling, seed=i), max_tokens=n_tokens, ignore_eos=True)
            source = raw_model if method.startswith("raw") else model
            generation = source.generate(text, replace(params, **options))
            for _ in generation:
                pass
            stats = generation.stats
            counts[method] += stats.drafted, stats.accepted, stats.rounds
            speeds[method].append(stats.generation_tok_s or 0)
    for method, (drafted, accepted, rounds) in counts.items():
        ratio = median(np.divide(speeds[method], speeds["raw, match"]))
        print(f"| {name} | {method} | {accepted / drafted:.3f} | {1 + accepted / rounds:.2f} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    of_cost = commands.add_parser("cost")
    of_cost.add_argument("--n-vocab", type=int, default=152_064)
    of_cost.add_argument("--times", type=int, default=200)
    of_acceptance = commands.add_parser("acceptance")
    of_acceptance.add_argument("prompts", type=Path)
    of_acceptance.add_argument("--model", type=Path, help="default: the embedded model")
    of_acceptance.add_argument("--draft-max", type=int, nargs="+", default=[1, 3])
    of_acceptance.add_argument("-n", type=int, default=96, help="tokens per prompt (default: 96)")
    options = parser.parse_args()
    if options.command == "cost":
        cost(options.n_vocab, options.times)
    else:
        acceptance(options.prompts, options.model, options.draft_max, options.n)


if __name__ == "__main__":
    main()
