"""Writes a model of real shape with random weights, to measure speed: python bench/synth_gguf.py {dense,moe} OUT.gguf.

dense: step35, 10.7 billion parameters, 3 heads with their own output matrices, a vocabulary of 152 thousand tokens.
moe: glm4moe, 13.8 billion parameters, 32 experts of which a token uses 8, 1 head. Both in Q8_0, 11 and 15 GB.

Their acceptance means nothing: force it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

from random_models.shapes import Size
from random_models.writer import write_model

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
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SIZES)
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--scale", type=int, default=1, help="make the model N times narrower, for tests", metavar="N")
    given = parser.parse_args()
    size = SIZES[given.shape] if given.scale == 1 else SIZES[given.shape].scaled(given.scale)
    begin = perf_counter()
    write_model(given.out, size, q8_0=True)
    gigabytes = given.out.stat().st_size / 1e9
    print(
        f"{given.out}: {size.architecture}, {size.n_parameters / 1e9:.2f} billion parameters, {gigabytes:.2f} GB, "
        f"{perf_counter() - begin:.1f} s"
    )


if __name__ == "__main__":
    main()
