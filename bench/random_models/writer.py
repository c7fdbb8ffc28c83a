"""Writes a model of a given size with random weights, in F32 or in Q8_0.

In Q8_0, ten gigabytes take only seconds: the same random blocks are written again and again. Their number is prime, so
that no two rows of a matrix are equal.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from .shapes import Metadata, Size, metadata, n_elements, tensors

N_BLOCKS = 1_000_003
BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
"""32 values in Q8_0."""
QUANT_STD = 73.6
"""Standard deviation of integers drawn uniformly from -127 to 127."""


def write_model(path: Path, size: Size, *, q8_0: bool) -> Path:
    """Write a model to `path`. `q8_0`: matrices are Q8_0; routers, norms and biases are always F32."""
    writer = gguf.GGUFWriter(path, size.architecture)
    writer.add_name(f"{size.architecture}, random weights")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if q8_0 else gguf.LlamaFileType.ALL_F32)
    _add_metadata(writer, metadata(size))
    _add_vocabulary(writer, size.n_vocab)
    shapes = tensors(size)
    quantized = {name for name, shape in shapes.items() if q8_0 and len(shape) > 1 and "ffn_gate_inp" not in name}
    for name, shape in shapes.items():
        kind = GGMLQuantizationType.Q8_0 if name in quantized else GGMLQuantizationType.F32
        n_bytes = n_elements(shape) // 32 * BLOCK.itemsize if name in quantized else 4 * n_elements(shape)
        writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    _write_values(writer.fout[0], shapes, quantized, writer.data_alignment)
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, values: Metadata) -> None:
    for key, value in values.items():
        name = f"{writer.arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_array(name, list(value))


def _add_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Bytes, an end-of-text token, and tokens that tokenisation never yields: such a vocabulary loads quickly."""
    # GPT-2's alphabet: bytes that can be printed stand for themselves, the others follow at 256
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    alphabet = [chr(byte) for byte in sorted(printed)] + [chr(256 + i) for i in range(256 - len(printed))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*alphabet, *(f"<{i}>" for i in range(256, n_vocab))])
    kinds = gguf.TokenType
    writer.add_token_types([kinds.NORMAL] * 256 + [kinds.CONTROL] + [kinds.NORMAL] * (n_vocab - 257))
    writer.add_token_merges(["a b"])  # there must be one
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)


def _write_values(file: Any, shapes: dict[str, tuple[int, ...]], quantized: set[str], alignment: int) -> None:
    random = np.random.default_rng(1)
    blocks = _RandomBlocks(random)
    _pad(file, alignment)
    for name, shape in shapes.items():
        if name in quantized:
            blocks.write(file, n_elements(shape) // 32, _scale(name, shape))
        else:
            values = random.standard_normal(shape[::-1]) * _scale(name, shape) + name.endswith("norm.weight")
            file.write(values.astype(np.float32).tobytes())
        _pad(file, alignment)


def _scale(name: str, shape: tuple[int, ...]) -> float:
    """The standard deviation: matrices keep the magnitude of their input, norms and biases change it little."""
    if len(shape) == 1:
        return 0.1
    return 1.0 if name == "token_embd.weight" else float(shape[0]) ** -0.5


def _pad(file: Any, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


class _RandomBlocks:
    """Random blocks in a ring buffer."""

    def __init__(self, random: np.random.Generator) -> None:
        self._quants = random.integers(-127, 128, (N_BLOCKS, 32), np.int8)
        self._position = 0
        self._scaled = lru_cache(maxsize=None)(self._with_scale)

    def write(self, file: Any, n_blocks: int, scale: float) -> None:
        """Write the next `n_blocks`; their values have the standard deviation `scale`."""
        blocks = self._scaled(scale / QUANT_STD)
        while n_blocks > 0:
            part = blocks[self._position : self._position + n_blocks]
            file.write(part.view(np.uint8))
            n_blocks -= len(part)
            self._position = (self._position + len(part)) % N_BLOCKS

    def _with_scale(self, d: float) -> npt.NDArray[Any]:
        blocks = np.empty(N_BLOCKS, BLOCK)
        blocks["d"] = d
        blocks["qs"] = self._quants
        return blocks
