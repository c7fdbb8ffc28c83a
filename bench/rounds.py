"""Time of a round, by scheme: python bench/rounds.py [MODEL.gguf ...] [--tiny] [-k 1 2 3 3,1,2].

Schemes: plain decoding; two contexts, as llama.cpp's own programs draft; pymtp step by step; pymtp fused. All of them
run in one process on one model, in turn, round by round. A round drafts K tokens, verifies K + 1 rows, picks the most
likely token after each row and rolls back; plain decoding decodes one token. The verified drafts are scripted: tokens
of the model's own continuation, of which 0 to K in turn are right, so that all schemes decode the same tokens.

Then measures how much drafting slows down a prompt.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paired.compare import compare_prompts, compare_rounds
from paired.report import report
from paired.subject import Options, Subject
from provenance import gpus_in, machine, model_text
from pymtp import ContextParams, version_text
from pymtp.engine.context import native_params
from random_models.tiny import write_tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL.gguf")
    parser.add_argument("--tiny", action="store_true", help="also measure a tiny model with random weights")
    parser.add_argument(
        "-k",
        type=_lengths,
        nargs="+",
        default=[(1,), (2,), (3,), (3, 1, 2)],
        metavar="K",
        help="drafts per round; 3,1,2: in turn (default: 1 2 3 3,1,2)",
    )
    parser.add_argument("--rounds", type=int, default=120, help="measured rounds per repetition (default: 120)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (default: 3)")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="length of the timed prompts (default: 512)")
    parser.add_argument("--threads", type=int, help="default: one per physical core")
    parser.add_argument("-c", "--ctx-size", type=int, default=2048, help="context size in tokens (default: 2048)")
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=-1, help="layers on the GPU (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    given = parser.parse_args()
    if not given.models and not given.tiny:
        parser.error("name a model, or give --tiny")

    params = ContextParams(n_ctx=given.ctx_size, n_threads=given.threads)
    options = Options(given.k, given.rounds, given.repeat, given.prompt_tokens, params, given.gpu_layers)
    with tempfile.TemporaryDirectory() as folder:
        tiny = [write_tiny(Path(folder) / "tiny.gguf")] if given.tiny else []
        results = measure([*tiny, *given.models], options)
    print(json.dumps(results, indent=1) if given.json else report(results, options))


def measure(paths: Sequence[Path], options: Options) -> dict[str, Any]:
    """Measure one model after another."""
    results: dict[str, Any] = {"library": version_text(), "models": {}, "rounds": [], "prompts": []}
    for path in paths:
        model = Subject(path, options)
        n_threads = native_params(options.params, 0).n_threads
        results.setdefault("machine", machine(n_threads, gpus_in(model.log)))
        results["models"][path.name] = model_text(path)
        for lengths in options.lengths:
            results["rounds"] += compare_rounds(model, options, lengths)
        results["prompts"] += compare_prompts(model, options)
        model.close()
    return results


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(map(int, text.split(",")))
    if min(lengths) < 1:
        raise ValueError
    return lengths


if __name__ == "__main__":
    main()
