"""Writes a model of real shape with random weights, to measure speed: python bench/synth_gguf.py SHAPE OUT.gguf.

dense: step35, 10.7 billion parameters, 3 heads with their own output matrices, a vocabulary of 152 thousand tokens.
moe: glm4moe, 13.8 billion parameters, 32 experts of which a token uses 8, 1 head.
1b: step35, 1.0 billion parameters, 1 head, a vocabulary of 32 thousand tokens: for CPUs.
vocab: step35, 1.0 billion parameters, 1 head, a vocabulary of 248 thousand tokens: for CPUs.
hybrid: qwen35, 0.6 billion parameters, 1 head, delta nets beside attention: like 1b, for CPUs.
small: step35, 64 million parameters: the embedded model's shape, but for its head, which has no output matrix.
All in Q8_0, 11, 15, 1.1 and 0.6 GB, or of other types: --type Q4_K_M. Q4_K_M and Q6_K are written within seconds as
well, with the types that llama-quantize mixes; others by llama.cpp's own quantisation, with llama-cpp-python.

Their acceptance means nothing: force it.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import gguf

from random_models.blocks import FILES
from random_models.shapes import Size
from random_models.writer import write_model

ONE_B = Size(
    architecture="step35",
    n_layer=16,
    n_heads=1,
    n_embd=2048,
    n_head=16,
    n_head_kv=4,
    head_size=128,
    n_ff=6144,
    n_vocab=32000,
)
SIZES = {
    "dense": Size(
        architecture="step35",
        n_layer=36,
        n_heads=3,
        n_embd=4096,
        n_head=32,
        n_head_kv=8,
        head_size=128,
        n_ff=12288,
        n_vocab=151936,
    ),
    "moe": Size(
        architecture="glm4moe",
        n_layer=18,
        n_heads=1,
        n_embd=4096,
        n_head=96,
        n_head_kv=8,
        head_size=128,
        n_ff=10944,
        n_vocab=151552,
        n_expert=32,
        n_expert_used=8,
        n_ff_expert=1408,
    ),
    "1b": ONE_B,
    "vocab": replace(ONE_B, n_embd=1024, n_ff=3584, n_vocab=248320),
    "hybrid": Size(
        architecture="qwen35",
        n_layer=24,
        n_heads=1,
        n_embd=1024,
        n_head=8,
        n_head_kv=2,
        head_size=256,
        n_ff=3584,
        n_vocab=32000,
        n_state=128,
        n_head_state=16,
    ),
    "small": Size(
        architecture="step35",
        n_layer=16,
        n_heads=1,
        n_embd=512,
        n_head=8,
        n_head_kv=2,
        head_size=64,
        n_ff=1536,
        n_vocab=8192,
    ),
}


TYPES = tuple(kind.name.removeprefix("MOSTLY_") for kind in gguf.LlamaFileType)
"""By the names of llama-quantize."""


def write_quantized(path: Path, size: Size, kind: str) -> None:
    """Write a model, of random blocks or, of a type that there are none of, by llama.cpp's own quantisation."""
    if kind in FILES:
        write_model(path, size, kind)
        return
    import llama_cpp

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source = write_model(Path(folder) / "q8_0.gguf", size, "Q8_0")
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = gguf.LlamaFileType[f"MOSTLY_{kind}"]
        params.allow_requantize = True
        if llama_cpp.llama_model_quantize(bytes(source), bytes(path), ctypes.byref(params)):
            raise SystemExit(f"{path}: llama.cpp cannot quantise to {kind}; see what it says above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SIZES)
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", choices=TYPES, default="Q8_0", help="of the matrices (default: Q8_0)", metavar="TYPE")
    parser.add_argument("--scale", type=int, default=1, help="make the model N times narrower, for tests", metavar="N")
    given = parser.parse_args()
    size = SIZES[given.shape] if given.scale == 1 else SIZES[given.shape].scaled(given.scale)
    begin = perf_counter()
    write_quantized(given.out, size, given.type)
    gigabytes = given.out.stat().st_size / 1e9
    print(
        f"{given.out}: {size.architecture}, {size.n_parameters / 1e9:.2f} billion parameters, {gigabytes:.2f} GB, "
        f"{perf_counter() - begin:.1f} s"
    )


if __name__ == "__main__":
    main()
