"""Random blocks of quantized weights, and which type a file of some name has for each matrix.

Knows types and their blocks; no model and no file's layout.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from pymtp.binding.library import library_file

Type = GGMLQuantizationType

N_BLOCKS = 65_537
"""A prime number, so that no two rows of a matrix are equal."""
SCALES_AT = {Type.Q8_0: (0,), Type.Q5_0: (0,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}
"""Where a block has the numbers, of 16 bits, that all its values are multiplied with."""
FILES = {"Q8_0": (Type.Q8_0, Type.Q8_0), "Q6_K": (Type.Q6_K, Type.Q6_K), "Q4_K_M": (Type.Q4_K, Type.Q6_K)}
"""Types of matrices, and of those that llama.cpp gives more bits, by what files are called."""
INSTEAD = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}
"""For rows that are no whole number of blocks."""


def matrix_type(file: str, name: str, n_values: int, n_layer: int) -> GGMLQuantizationType:
    """The type of a matrix with rows of `n_values`, as llama-quantize chooses it."""
    common, better = FILES[file]
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    in_better_layer = layer < n_layer // 8 or layer >= 7 * n_layer // 8 or (layer - n_layer // 8) % 3 == 2
    is_better = name == "output.weight" or (in_better_layer and ("attn_v." in name or "ffn_down" in name))
    kind = better if is_better else common
    return kind if n_values % GGML_QUANT_SIZES[kind][0] == 0 else INSTEAD[kind]


@cache
def random_blocks(kind: GGMLQuantizationType, scale: float) -> npt.NDArray[np.uint8]:
    """N_BLOCKS blocks of values of the standard deviation `scale`, in bytes: shape (blocks, bytes of a block)."""
    blocks: npt.NDArray[np.uint8] = _unit_blocks(kind).copy()
    for at in SCALES_AT[kind]:
        halves = blocks[:, at : at + 2].copy().view(np.float16)
        blocks[:, at : at + 2] = (halves * np.float32(scale)).astype(np.float16).view(np.uint8)
    return blocks


@cache
def _unit_blocks(kind: GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    n_values, n_bytes = GGML_QUANT_SIZES[kind]
    values = np.random.default_rng(1).standard_normal((N_BLOCKS, n_values), np.float32)
    blocks = np.empty((N_BLOCKS, n_bytes), np.uint8)
    quantize: Any = ctypes.CDLL(str(library_file().with_name("libpymtp-ggml-base.so"))).ggml_quantize_chunk
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    quantize.restype = ctypes.c_size_t
    quantize(kind.value, values.ctypes.data, blocks.ctypes.data, 0, N_BLOCKS, n_values, None)
    return blocks
