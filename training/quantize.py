"""Another type by llama.cpp's own quantisation: python -m training.quantize model.gguf OUT.gguf --type Q4_K_M."""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path

import gguf
import llama_cpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_K_M")
    given = parser.parse_args()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = gguf.LlamaFileType[f"MOSTLY_{given.type}"]
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(bytes(given.source), bytes(given.out), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp cannot quantise {given.source} to {given.type}; see what it says above")
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
