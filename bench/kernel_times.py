"""Where the time of a round goes on a GPU, kernel by kernel: python bench/kernel_times.py MODEL.gguf [-k 3] [-d 8192].

Generates with K drafts a round, accepted at random, under PyTorch's profiler, which must have CUDA; or, with --rows N,
computes passes of N rows. Prints for each kernel how often a round launches it and how long it runs, then how long the
GPU was busy and what a round took with the profiler and without. Times under the profiler are longer: it keeps kernels
from overlapping. With GGML_CUDA_PDL=0 none starts before the one ahead of it has ended, so that times add up.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from pymtp import Chunk, GenerationParams, Model, SamplingParams
from pymtp.acceptance.forced import Forced

N_PASSES = 20
"""That are timed together."""


class Span(NamedTuple):
    """A kernel or a copy on the GPU."""

    name: str
    begin: float  # microseconds
    us: float


def main() -> None:
    given = _arguments()
    draft: dict[str, Any] = {"draft": "mtp", "draft_max": given.draft_max} if given.draft_max else {"draft": "none"}
    overrides = [tuple(override.split("=", 1)) for override in given.override_tensor]
    model = Model(
        given.model,
        n_seq_max=given.sequences,
        n_ctx=given.depth + 1024,
        type_k=given.cache,
        type_v=given.cache,
        override_tensor=overrides,
        **draft,
    )
    prompt = [token % 1000 + 100 for token in range(max(given.depth, 64))]

    def answer() -> tuple[int, float]:
        """Its rounds, and seconds after the first piece."""
        options: dict[str, Any] = {}
        if given.draft_max:
            options["forced"] = Forced.of_length(given.length, given.draft_max)
        params = GenerationParams(SamplingParams(temperature=0), max_tokens=given.predict, ignore_eos=True, **options)
        generations = model.call(lambda: [model.generate(prompt, params) for _ in range(given.sequences)])
        for generation in generations:
            next(generation)
        while not all(generation.stats.rounds for generation in generations):
            next(generations[-1])  # its prompt is processed last
        n_before, begin = generations[-1].stats.rounds, perf_counter()
        for generation in generations:
            "".join(generation)
        return generations[-1].stats.rounds - n_before, perf_counter() - begin

    def passes() -> tuple[int, float]:
        """As many passes, and their seconds."""
        begin = perf_counter()
        for _ in range(N_PASSES):
            model.session.decode([Chunk(prompt[: given.rows], len(prompt), 0, "last")])
            model.session.truncate(len(prompt))
        return N_PASSES, perf_counter() - begin

    if given.rows:
        model.session.decode([Chunk(prompt, 0, 0)])
        answer = passes
    answer()  # captures graphs
    n_rounds, seconds = min((answer() for _ in range(3)), key=lambda found: found[1] / found[0])
    if given.lines == 0:
        print(f"a round: {seconds / n_rounds * 1e3:.3f} ms")
        return
    spans, n_profiled, profiled_seconds = _profile(answer)
    print(f"{'us a round':>10} {'share':>6} {'launches':>8} {'us each':>8}  kernel")
    busy = sum(span.us for span in spans)
    for name, us in _by_name(spans)[: given.lines]:
        total = sum(us)
        print(
            f"{total / n_profiled:10.1f} {total / busy:6.1%} {len(us) / n_profiled:8.1f} {total / len(us):8.2f}  {name}"
        )
    print(
        f"a round: {seconds / n_rounds * 1e3:.3f} ms; profiled {profiled_seconds / n_profiled * 1e3:.3f} ms, of which "
        f"the GPU was busy {busy / n_profiled / 1e3:.3f} ms"
    )
    if given.timeline:
        given.timeline.write_text("".join(f"{s.begin:14.1f} {s.us:8.2f} {s.name}\n" for s in spans), "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("-k", "--draft-max", type=int, default=3, metavar="K", help="0: plain decoding (default: 3)")
    parser.add_argument("--length", type=float, default=2.8, help="tokens a round, drawn (default: 2.8)")
    parser.add_argument("-n", "--predict", type=int, default=128, help="tokens of the answer (default: 128)")
    parser.add_argument("-d", "--depth", type=int, default=0, help="tokens of the prompt (default: 64)")
    parser.add_argument("-np", "--sequences", type=int, default=1, metavar="N", help="texts at a time (default: 1)")
    parser.add_argument("--cache", default="f16", help="type of keys and values (default: f16)")
    parser.add_argument("-ot", "--override-tensor", nargs="+", default=[], metavar="PATTERN=BUFFER")
    parser.add_argument("--rows", type=int, default=0, metavar="N", help="passes of N rows instead of rounds")
    parser.add_argument("--lines", type=int, default=30, help="of the table; 0: without the profiler (default: 30)")
    parser.add_argument("--timeline", type=Path, metavar="FILE", help="write all kernels in order: begin, microseconds")
    return parser.parse_args()


def _profile(answer: Any) -> tuple[list[Span], int, float]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        n_rounds, seconds = answer()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    spans = [
        Span(_short(event["name"]), event["ts"], event["dur"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return sorted(spans, key=lambda span: span.begin), n_rounds, seconds


def _by_name(spans: Iterable[Span]) -> list[tuple[str, list[float]]]:
    """The times of each kernel, the longest sum first."""
    times: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        times[span.name].append(span.us)
    return sorted(times.items(), key=lambda item: -sum(item[1]))


def _short(name: str) -> str:
    """A kernel's name and template arguments, without those of the function."""
    return re.sub(r"^(void |static )+|\(anonymous namespace\)::", "", name).split("(")[0][:90]


if __name__ == "__main__":
    main()
