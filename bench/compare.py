"""Compares pymtp with llama.cpp's own programs: python bench/compare.py MODEL.gguf PROMPTS.jsonl [-k 1 3] [--out NAME].

Builds llama.cpp's programs, unpatched, from the pinned sources and with pymtp's build options; then all programs answer
the same prompts in turn, with the same K, sampling and threads. Prints medians, spreads and ratios of pairs; --out
writes NAME.md, every answer to NAME.csv, and a plot to NAME.svg.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from programs import gpu
from programs.build import REPOSITORY, build_programs
from programs.case import LLAMA_CPP_DEFAULTS, Case
from programs.catalogue import CATALOGUE, DEFAULT, DRAFT_MTP, PLAIN
from programs.prompts import read_prompts
from programs.report import SHORT, plot, report, write_csv
from programs.summary import by_category, raw_rows, summarize
from programs.turns import ask_in_turn
from provenance import machine, model_text
from pymtp import ContextParams, version_text
from pymtp.benchmark.prompts import Prompt, open_vocabulary
from pymtp.benchmark.tables import markdown
from pymtp.engine.context import native_params

sys.path.insert(0, str(REPOSITORY / "native"))  # the tools of the build are no package

from llama_cpp_source import Pin  # noqa: E402

BUILD = REPOSITORY / "build"
REFERENCES = {PLAIN: "of_plain", DRAFT_MTP: "of_draft_mtp"}
TITLES = {name: entry.title for name, entry in CATALOGUE.items()}


def main() -> None:
    given = _arguments()
    # SIGTERM must end the programs too, and must not lose what was measured so far
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as scratch:
        results = measure(given, given.logs or Path(scratch))
    if not results["answers"]:
        sys.exit("\n".join(results["failures"]))
    text = report(results)
    print(markdown(SHORT, results["rows"]) if given.short else text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{given.out}.md").write_text(text + "\n", "utf-8")
        write_csv(Path(f"{given.out}.csv"), results["answers"])
        _plot(Path(f"{given.out}.svg"), results)
    if results["failures"]:
        sys.exit("\n".join(results["failures"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("prompts", type=Path, metavar="PROMPTS.jsonl")
    parser.add_argument("--programs", nargs="+", choices=CATALOGUE, default=DEFAULT, metavar="NAME")
    parser.add_argument("-k", "--draft-max", type=int, nargs="+", default=[3], metavar="K", help="default: 3")
    parser.add_argument("-n", "--predict", type=int, default=128, help="tokens per answer (default: 128)")
    parser.add_argument("--per-category", type=int, help="prompts of each category (default: all)")
    parser.add_argument("--categories", nargs="+", default=[], metavar="NAME", help="default: all")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions (default: 5)")
    parser.add_argument("--time-limit", type=float, default=inf, metavar="S", help="start no answer after S seconds")
    parser.add_argument(
        "--sampling",
        type=_parameter,
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="llama.cpp's names, for all programs (default: temperature=0, else llama.cpp's defaults)",
    )
    parser.add_argument("--forced-length", type=float, metavar="L", help="accept drafts at random, to this mean length")
    parser.add_argument("--threads", type=int, help="default: one per physical core")
    parser.add_argument("-c", "--ctx-size", type=int, default=2048, help="context size in tokens (default: 2048)")
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=-1, help="layers on the GPU (default: all)")
    parser.add_argument("-sm", "--split-mode", choices=("layer", "tensor", "none"), default="layer", help="over GPUs")
    parser.add_argument("-ts", "--tensor-split", type=float, nargs="+", default=[], metavar="SHARE", help="of devices")
    parser.add_argument("--rpc", nargs="+", default=[], metavar="HOST:PORT", help="pymtp's layers go to RPC servers")
    parser.add_argument("--cache-type", default="f16", metavar="TYPE", help="of keys and values (default: f16)")
    parser.add_argument(
        "--cuda-shared-memory",
        type=int,
        metavar="KIB",
        help="pymtp's CUDA kernels take no more of it: 99 as on RTX cards",
    )
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="use llama.cpp's programs in DIR, build nothing")
    parser.add_argument("--source", type=Path, help="the pinned archive (default: the one in build/, from make)")
    parser.add_argument("--cmake-arg", action="append", help="a build option (default: those of the last make)")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="build jobs (default: all cores)")
    parser.add_argument("--out", type=Path, metavar="NAME", help="write NAME.md, NAME.csv and NAME.svg")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the programs' logs")
    parser.add_argument("--short", action="store_true", help="print one short table")
    return parser.parse_args()


def measure(given: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Run the whole comparison, one K after another."""
    logs.mkdir(parents=True, exist_ok=True)
    programs = given.llama_cpp or _build(given)
    with open_vocabulary(given.model) as vocabulary:
        prompts = read_prompts(given.prompts, vocabulary, given.per_category, given.categories)
        end_tokens = tuple(sorted(vocabulary.end_of_generation))
    n_threads = native_params(ContextParams(n_threads=given.threads), 0).n_threads
    results: dict[str, Any] = {
        "provenance": f"{machine(n_threads, gpu.names() if given.gpu_layers else [])}. {version_text()}.",
        "model": model_text(given.model),
        "method": _method(given, prompts),
        **{name: [] for name in ("rows", "categories", "answers", "failures")},
    }
    start = monotonic()
    for i, k in enumerate(given.draft_max, 1):
        case = Case(
            model=given.model.resolve(),
            draft_max=k,
            n_predict=given.predict,
            end_tokens=end_tokens,
            n_ctx=given.ctx_size,
            n_threads=n_threads,
            n_gpu_layers=given.gpu_layers,
            sampling={**LLAMA_CPP_DEFAULTS, **dict(given.sampling)},
            forced_length=given.forced_length,
            cuda_shared_bytes=given.cuda_shared_memory and given.cuda_shared_memory << 10,
            programs=programs.resolve(),
            logs=logs.resolve(),
            split_mode=given.split_mode,
            tensor_split=tuple(given.tensor_split),
            rpc=tuple(given.rpc),
            cache_type=given.cache_type,
        )
        deadline = start + given.time_limit * i / len(given.draft_max)
        try:
            found = ask_in_turn(given.programs, case, prompts, given.repeat, deadline)
        except KeyboardInterrupt:
            results["failures"].append(f"K = {k}, interrupted")
            break
        results["rows"] += [{"k": k, **row} for row in summarize(found, REFERENCES, TITLES)]
        results["categories"] += [{"k": k, **row} for row in by_category(found, prompts, REFERENCES, TITLES)]
        results["answers"] += [{"k": k, **row} for row in raw_rows(found, prompts, TITLES)]
        results["failures"] += [f"K = {k}, {entry.failure}" for entry in found if entry.failure]
    return results


def _build(given: argparse.Namespace) -> Path:
    source = given.source or BUILD / Pin.read(REPOSITORY / "native" / "llama_cpp.pin").archive
    if not source.exists():
        raise SystemExit(f"{source} is missing: run `make` once, or give --source or --llama-cpp")
    remembered = BUILD / "cmake-args"
    cmake_args = given.cmake_arg
    if cmake_args is None:
        cmake_args = shlex.split(remembered.read_text("utf-8")) if remembered.exists() else []
    return build_programs(BUILD / "compare", source, cmake_args, given.jobs)


def _method(given: argparse.Namespace, prompts: Sequence[Prompt]) -> str:
    counts = Counter(prompt.category for prompt in prompts)
    acceptance = (
        "" if given.forced_length is None else f", drafts accepted at random to a mean length of {given.forced_length}"
    )
    if given.cuda_shared_memory:
        acceptance += f", pymtp's CUDA kernels in {given.cuda_shared_memory} KiB of shared memory"
    if given.split_mode != "layer":
        acceptance += f", split mode {given.split_mode}"
    if given.rpc:
        acceptance += f", pymtp with {len(given.rpc)} RPC servers"
    if given.cache_type != "f16":
        acceptance += f", {given.cache_type} keys and values"
    return (
        f"{given.predict} tokens per answer, no end-of-generation tokens, {_sampling(given)}{acceptance}; "
        f"{given.repeat} repetitions of {', '.join(f'{n} {name}' for name, n in counts.items())} prompts of "
        f"{min(len(p.tokens) for p in prompts)} to {max(len(p.tokens) for p in prompts)} tokens."
    )


def _sampling(given: argparse.Namespace) -> str:
    return " ".join(f"{name}={value}" for name, value in ({"temperature": 0} | dict(given.sampling)).items())


def _plot(path: Path, results: dict[str, Any]) -> None:
    try:
        plot(path, results["rows"], results["model"].partition(",")[0] + ")")
    except ImportError:
        print(f"no {path.name}: pip install matplotlib", file=sys.stderr)


def _parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, int(value) if value.lstrip("-").isdigit() else float(value)


if __name__ == "__main__":
    main()
