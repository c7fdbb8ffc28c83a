"""Registers, spills and shared memory of the CUDA kernels, for each kind of GPU, as a table in Markdown: python
bench/cuda_resources.py [--nvcc NVCC] [--include FOLDER ...] [--arch 75 80 ...]. Needs no GPU.

FOLDER: where the headers of cuBLAS are, if not with the others of CUDA. Registers and spills are what ptxas says.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "native"
TREE = NATIVE.parent / "build" / "editable" / "llama.cpp" / "ggml"
KERNEL = re.compile(r"(few|more)_rows_kernelI\d+few_rows_\w+?Li(\d+)ELb\dE")
FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--include", type=Path, nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--arch", type=int, nargs="+", default=[75, 80, 86, 89, 90, 120])
    given = parser.parse_args()
    print("Registers of kernels for 1 / 2 / 3 / 4 / 8 rows, and on tensor cores for 8 / 16, the more of those without")
    print("and with a gate; in brackets bytes that are spilled.\n")
    print("| type | " + " | ".join(f"sm_{arch}" for arch in given.arch) + " |")
    print("|---" * (1 + len(given.arch)) + "|")
    for source in sorted((NATIVE / "src" / "cuda").glob("cuda-few-rows-*.cu")):
        cells = [_cell(_resources(given.nvcc, given.include, arch, source)) for arch in given.arch]
        print(f"| {source.stem.removeprefix('cuda-few-rows-')} | " + " | ".join(cells) + " |", flush=True)


def _cell(resources: dict[tuple[str, int], list[tuple[int, int]]]) -> str:
    """`resources`: (registers, bytes spilled) of kernels, by their kind and how many rows or tiles of 8 they have."""
    texts = []
    for _, kernels in sorted(resources.items()):
        spilled = max(spills for _, spills in kernels)
        texts.append(f"{max(registers for registers, _ in kernels)}" + (f" ({spilled})" if spilled else ""))
    return " / ".join(texts)


def _resources(nvcc: str, include: list[Path], arch: int, source: Path) -> dict[tuple[str, int], list[tuple[int, int]]]:
    with tempfile.TemporaryDirectory() as scratch:
        folders = [TREE / "include", TREE / "src", TREE / "src" / "ggml-cuda", *include]
        command = [nvcc, "-cubin", f"-arch=sm_{arch}", "-O3", "-use_fast_math", "-std=c++17", "-extended-lambda"]
        command += ["-DMTP_CUDA", "-Xptxas", "-v", *(f"-I{folder}" for folder in folders)]
        done = subprocess.run(
            [*command, "-o", f"{scratch}/out.cubin", str(source)], stderr=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    kernel = None
    spilled = 0
    for line in done.stderr.splitlines():
        if function := FUNCTION.search(line):
            kernel = KERNEL.search(function[1])
        elif spills := SPILLS.search(line):
            spilled = int(spills[1])
        elif (registers := REGISTERS.search(line)) and kernel:
            found.setdefault((kernel[1], int(kernel[2])), []).append((int(registers[1]), spilled))
            kernel = None
    return found


if __name__ == "__main__":
    main()
