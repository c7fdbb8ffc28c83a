"""Writes a model of a given size with random weights, in F32 or quantized.

Quantized, ten gigabytes take only seconds: the same random blocks are written again and again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from .blocks import matrix_type, random_blocks
from .shapes import Metadata, Size, metadata, n_elements, tensors

NEVER_QUANTIZED = ("ffn_gate_inp", "ssm_conv1d")
"""As in llama-quantize."""


def write_model(path: Path, size: Size, file: str | None) -> Path:
    """Write a model to `path`. `file`: the types of its matrices, as files are called (blocks.FILES); None: F32.
    Routers, norms and biases are always F32.
    """
    writer = gguf.GGUFWriter(path, size.architecture)
    writer.add_name(f"{size.architecture}, random weights")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{file}"] if file else gguf.LlamaFileType.ALL_F32)
    _add_metadata(writer, metadata(size))
    _add_vocabulary(writer, size.n_vocab)
    shapes = tensors(size)
    types = {
        name: matrix_type(file, name, shape[0], size.n_layer)
        for name, shape in shapes.items()
        if file and len(shape) > 1 and not any(part in name for part in NEVER_QUANTIZED)
    }
    for name, shape in shapes.items():
        kind = types.get(name, GGMLQuantizationType.F32)
        n_values, n_bytes = GGML_QUANT_SIZES[kind]
        n_all = n_elements(shape) // n_values * n_bytes
        writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), n_all, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    _write_values(writer.fout[0], shapes, types, writer.data_alignment)
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


def _write_values(
    file: Any, shapes: dict[str, tuple[int, ...]], types: dict[str, GGMLQuantizationType], alignment: int
) -> None:
    random = np.random.default_rng(1)
    _pad(file, alignment)
    for i, (name, shape) in enumerate(shapes.items()):
        if name in types:
            n_blocks = n_elements(shape) // GGML_QUANT_SIZES[types[name]][0]
            _write_blocks(file, types[name], _scale(name, shape), n_blocks, i)
        else:
            values = random.standard_normal(shape[::-1]) * _scale(name, shape) + _mean(name)
            file.write(values.astype(np.float32).tobytes())
        _pad(file, alignment)


def _scale(name: str, shape: tuple[int, ...]) -> float:
    """The standard deviation: matrices keep the magnitude of their input, norms and biases change it little."""
    if len(shape) == 1:
        return 0.1
    return 1.0 if name == "token_embd.weight" else float(shape[0]) ** -0.5


def _mean(name: str) -> float:
    """1 for norms; the decay of a state has a sign."""
    return 1.0 if name.endswith("norm.weight") else -1.0 if name.endswith("ssm_a") else 0.0


def _pad(file: Any, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _write_blocks(file: Any, kind: GGMLQuantizationType, scale: float, n_blocks: int, first: int) -> None:
    """Random blocks again and again, from another place on for each tensor."""
    blocks = random_blocks(kind, scale)
    position = first * 997 % len(blocks)
    while n_blocks > 0:
        part = blocks[position : position + n_blocks]
        file.write(part)
        n_blocks -= len(part)
        position = (position + len(part)) % len(blocks)
