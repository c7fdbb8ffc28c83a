"""Writes one GGUF: metadata that every model has, and tensors with random F32 values.

Knows no architecture. Shapes are given as ggml names them, fastest dimension first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_HEAD, N_KV, HEAD, N_FF = 128, 4, 2, 64, 256
N_EXPERT, N_EXPERT_USED, N_FF_EXPERT = 4, 2, 64
N_VOCAB = 512

Value = bool | int | float | str | Sequence[bool] | Sequence[int] | Sequence[float]
Metadata = Mapping[str, Value]


class Wide(list[int]):
    """Numbers that a file has in 64 bits."""


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Bytes, and tokens without a meaning."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([chr(256 + i) for i in range(256)] + [f"<x{i}>" for i in range(N_VOCAB - 256)])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.USER_DEFINED] * (N_VOCAB - 256))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)


class TensorWriter(gguf.GGUFWriter):
    """Random tensors for one file."""

    def __init__(self, path: Path, architecture: str, seed: int) -> None:
        super().__init__(path, architecture)
        self._file = path
        self._rng = np.random.default_rng(seed)

    def random(self, name: str, shape: Sequence[int], scale: float) -> None:
        """Normally distributed values."""
        self.add_tensor(name, (self._rng.standard_normal(tuple(shape)[::-1]) * scale).astype(np.float32))

    def finish(self) -> Path:
        """Write the file."""
        self.write_header_to_file()
        self.write_kv_data_to_file()
        self.write_tensors_to_file()
        self.close()
        return self._file


class Writer(TensorWriter):
    """`metadata` has its keys without the architecture's prefix, but for those of the tokenizer; it adds to what every
    model has, or replaces it.
    `without`: keys of every model that this one has not.
    """

    def __init__(
        self,
        path: Path,
        architecture: str,
        n_layer: int,
        n_heads: int,
        metadata: Metadata,
        without: Collection[str] = (),
        seed: int = 1,
    ) -> None:
        super().__init__(path, architecture, seed)
        common: dict[str, Value] = {
            "block_count": n_layer + n_heads,
            "nextn_predict_layers": n_heads,
            "context_length": 4096,
            "embedding_length": N_EMBD,
            "feed_forward_length": N_FF,
            "attention.head_count": N_HEAD,
            "attention.head_count_kv": N_KV,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": HEAD // 2,
            "rope.freq_base": 10000.0,
            "vocab_size": N_VOCAB,
        }
        for key, value in {**common, **metadata}.items():
            if key not in without:
                self._add_value(key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)
        add_vocabulary(self)

    def matrix(self, name: str, *shape: int, scale: float | None = None) -> None:
        """Normally distributed values; by default a product keeps the size of its input."""
        self.random(name, shape, shape[0] ** -0.5 if scale is None else scale)

    def norm(self, name: str, *shape: int, scale: float = 1.0) -> None:
        """Weights near 1, or near `scale`."""
        weights = 1 + 0.1 * self._rng.standard_normal(shape[::-1] or N_EMBD)
        self.add_tensor(name, (scale * weights).astype(np.float32))

    def values(self, name: str, numbers: Sequence[float]) -> None:
        """A vector of given values."""
        self.add_tensor(name, np.array(numbers, np.float32))

    def choices(self, name: str, n_chosen: int, n_rows: int, n_options: int) -> None:
        """For each row `n_chosen` different integers below `n_options`."""
        rows = [self._rng.permutation(n_options)[:n_chosen] for _ in range(n_rows)]
        self.add_tensor(name, np.stack(rows).astype(np.int32))

    def _add_value(self, key: str, value: Value) -> None:
        if isinstance(value, bool):
            self.add_bool(key, value)
        elif isinstance(value, int):
            self.add_uint32(key, value)
        elif isinstance(value, float):
            self.add_float32(key, value)
        elif isinstance(value, str):
            self.add_string(key, value)
        elif isinstance(value, Wide):
            self.add_key_value(key, value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
        else:
            self.add_array(key, list(value))
