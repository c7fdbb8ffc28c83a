"""Random LoRA adapters for the models of this package, as llama.cpp's converter writes them; models merged with one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import gguf
import numpy as np

RANK, ALPHA = 4, 8.0
TOKEN_EMBEDDING = "token_embd.weight"
# matrices that llama.cpp's graphs do not multiply by the function that applies adapters, in some or all architectures
_LEFT_OUT = re.compile(r"nextn\.embed_tokens|ssm_conv|ssm_a\b|norm|_bias|token_embd|tid2eid|gate_inp|ssm_(alpha|beta)")


def matrices(model: Path, only: str = "") -> list[str]:
    """The names of a model's matrices that an adapter may change; `only`: a regular expression that they match."""
    tensors = gguf.GGUFReader(model).tensors
    names = [tensor.name for tensor in tensors if len([n for n in tensor.shape if n > 1]) > 1]
    return [name for name in names if re.search(only, name) and not _LEFT_OUT.search(name)]


def write_adapter(
    path: Path, model: Path, names: list[str] | None = None, *, seed: int = 1, architecture: str | None = None
) -> Path:
    """An adapter of rank RANK for these matrices of a model; None: for all that `matrices` names."""
    reader = gguf.GGUFReader(model)
    shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
    field = reader.get_field("general.architecture")
    assert field is not None
    writer = gguf.GGUFWriter(path, architecture or str(field.contents()))
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    rng = np.random.default_rng(seed)
    for name in matrices(model) if names is None else names:
        n_in, n_out, *experts = shapes[name]
        # rows first, as numpy has them; an embedding is looked up, so that the two factors change places
        first, second = ((n_out, RANK), (n_in, RANK)) if name == TOKEN_EMBEDDING else ((RANK, n_in), (n_out, RANK))
        for factor, shape in (("lora_a", first), ("lora_b", second)):
            values = rng.standard_normal((*experts, *shape)) * shape[1] ** -0.5
            writer.add_tensor(f"{name}.{factor}", (0.5 * values).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_merged(path: Path, model: Path, adapter: Path, scale: float = 1.0) -> Path:
    """The model with an adapter added to its weights."""
    shutil.copy(model, path)
    factors = {tensor.name: np.asarray(tensor.data, np.float64) for tensor in gguf.GGUFReader(adapter).tensors}
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if f"{tensor.name}.lora_a" not in factors:
            continue
        a, b = (factors[f"{tensor.name}.{factor}"] for factor in ("lora_a", "lora_b"))
        change = a @ b.T if tensor.name == TOKEN_EMBEDDING else b @ a
        tensor.data[:] += (scale * ALPHA / RANK * change).astype(np.float32)
    return path
