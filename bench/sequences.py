"""Several sequences at once, beside llama-server with as many slots:

    python bench/sequences.py MODEL.gguf PROMPTS.jsonl --llama-cpp build/compare/bin [--n-seq 4 8 16] [-k 0 1]
        [--forced-length 2.8]      -k takes auto, too

Groups of that many prompts are answered together, by pymtp in this process and by llama-server, to which all
requests of a group go at once: without drafts and, if drafts are accepted at random, also with draft-mtp. All take
turns on the same groups, in random order, greedily, without end-of-generation tokens. Tokens a second are those of the
group by the wall clock, prompts included. Prints medians, and medians of the ratios of pairs (the same group in the
same repetition) to llama-server and to K = 0, with intervals that contain the median with 95 % probability.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from programs.case import LLAMA_CPP_DEFAULTS, Case
from programs.http_server import LlamaServer
from programs.prompts import read_prompts
from provenance import machine, model_text
from pymtp import ContextParams, GenerationParams, Model, SamplingParams, version_text
from pymtp.acceptance.forced import Forced
from pymtp.benchmark.prompts import Prompt, open_vocabulary
from pymtp.benchmark.rows import median_ratio
from pymtp.engine.context import native_params

SERVER = "llama-server"
GREEDY = SamplingParams(temperature=0)
Answer = Callable[[Sequence[Prompt]], object]
"""Answers a group of prompts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="llama.cpp's programs; left out: pymtp alone")
    parser.add_argument("--n-seq", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("-k", "--draft-max", type=_drafts, nargs="+", default=[0, 1], metavar="K")
    parser.add_argument("-n", "--predict", type=int, default=96, help="tokens of an answer (default: 96)")
    parser.add_argument("-c", "--ctx-size", type=int, default=1024, help="tokens of a sequence (default: 1024)")
    parser.add_argument("-r", "--repeat", type=int, default=3, help="repetitions of the whole list (default: 3)")
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=-1, help="layers on the GPU (default: all)")
    parser.add_argument("-sm", "--split-mode", choices=("layer", "tensor", "none"), default="layer", help="over GPUs")
    parser.add_argument("--forced-length", type=float, metavar="L", help="accept drafts at random, to this mean length")
    parser.add_argument("--threads", type=int, help="default: one per physical core")
    parser.add_argument("-no-kvu", "--no-kv-unified", action="store_true", help="a part of the cache for each sequence")
    parser.add_argument("--invariant", action="store_true", help="pymtp's texts do not depend on their company")
    asked = parser.parse_args()
    with open_vocabulary(asked.model) as vocabulary:
        prompts = read_prompts(asked.prompts, vocabulary, None, [])
    random.Random(0).shuffle(prompts)  # each group has prompts of all kinds
    threads = native_params(ContextParams(n_threads=asked.threads), 0).n_threads
    print(f"{machine(threads, [])}. {version_text()}.\n\n{model_text(asked.model)}\n")
    print("| sequences | program | tok/s | of llama-server | of K = 0 | groups |\n|--:|---|--:|--:|--:|--:|")
    for n in asked.n_seq:
        groups = [prompts[i : i + n] for i in range(0, len(prompts) - n + 1, n)]
        with ExitStack() as stack:
            report(n, measure(load(stack, asked, n, threads), groups, asked))


def _drafts(text: str) -> int | str:
    return text if text == "auto" else int(text)


def load(stack: ExitStack, asked: argparse.Namespace, n: int, threads: int) -> dict[str, Answer]:
    """The programs, ready for groups of `n` prompts."""
    n_ctx = asked.ctx_size * n
    n_fixed = max([k for k in asked.draft_max if k != "auto"], default=0) or 3
    programs: dict[str, Answer] = {}
    for k in asked.draft_max:
        drafts: dict[str, Any] = {"draft_max": k} if k else {"draft": "none"}
        options = {"n_seq_max": n, "n_ctx": asked.ctx_size, "n_threads": threads, "n_gpu_layers": asked.gpu_layers}
        options |= {"kv_unified": not asked.no_kv_unified, "split_mode": asked.split_mode, "invariant": asked.invariant}
        model = stack.enter_context(Model(asked.model, **options, **drafts))
        name = "pymtp, auto" if k == "auto" else f"pymtp, K = {k}"
        forced = Forced.of_length(asked.forced_length, n_fixed) if k and asked.forced_length else None
        programs[name] = pymtp_answer(model, GREEDY, asked.predict, forced)
    if asked.llama_cpp:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        case = Case(
            model=asked.model.resolve(),
            draft_max=n_fixed,
            n_predict=asked.predict,
            end_tokens=(),
            n_ctx=n_ctx,
            n_threads=threads,
            n_gpu_layers=asked.gpu_layers,
            sampling=LLAMA_CPP_DEFAULTS,
            forced_length=asked.forced_length,
            cuda_shared_bytes=None,
            programs=asked.llama_cpp.resolve(),
            logs=folder,
            split_mode=asked.split_mode,
        )
        pool = stack.enter_context(ThreadPoolExecutor(n))
        for name, with_drafts in {SERVER: False, f"{SERVER}, draft-mtp": True}.items():
            if asked.forced_length or not with_drafts:
                server = stack.enter_context(closing(LlamaServer(case, drafts=with_drafts, n_slots=n)))
                programs[name] = partial(pool_answer, pool, server)
    return programs


def pool_answer(pool: ThreadPoolExecutor, server: LlamaServer, group: Sequence[Prompt]) -> None:
    """Sends all requests at once."""
    for _ in pool.map(server.answer, group):
        pass


def pymtp_answer(model: Model, sampling: SamplingParams, n_predict: int, forced: Forced | None) -> Answer:
    """With one model. What lookup finds is not used where drafts are accepted whatever they are."""
    params = GenerationParams(sampling, max_tokens=n_predict, ignore_eos=True, forced=forced)
    params = replace(params, draft_lookup="off") if forced else params

    def answer(group: Sequence[Prompt]) -> None:
        for generation in model.call(lambda: [model.generate(prompt.tokens, params) for prompt in group]):
            "".join(generation)

    return answer


def measure(
    programs: dict[str, Answer], groups: Sequence[Sequence[Prompt]], asked: argparse.Namespace
) -> dict[str, list[float]]:
    """Tokens a second of each program for each group and repetition, in the same order."""
    rng, speeds = random.Random(0), defaultdict(list)
    for answer in programs.values():  # builds graphs
        answer(groups[0])
    for _ in range(asked.repeat):
        for group in groups:
            for name in rng.sample(list(programs), len(programs)):
                begin = perf_counter()
                programs[name](group)
                speeds[name].append(len(group) * asked.predict / (perf_counter() - begin))
    return speeds


def report(n: int, speeds: dict[str, list[float]]) -> None:
    """Lines of the table."""
    for name in sorted(speeds):
        cells = [f"{n} | {name} | {median(speeds[name]):.0f}"]
        for reference in (SERVER, "pymtp, K = 0"):
            if name == reference or reference not in speeds:
                cells.append("-")
                continue
            ratios = [a / b for a, b in zip(speeds[name], speeds[reference], strict=True)]
            middle, low, high = median_ratio(ratios)
            cells.append(f"{middle:.2f} ({low:.2f}-{high:.2f})")
        print(f"| {' | '.join(cells)} | {len(speeds[name])} |", flush=True)


if __name__ == "__main__":
    main()
