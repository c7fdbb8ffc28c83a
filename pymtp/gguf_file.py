"""What a GGUF says about the model in it, without loading a weight.

Owns the meaning of metadata keys and tensor names. Never touches tensor data or the native library.

Architectures are not judged here. The list of the gguf package is not that of the pinned llama.cpp
(either may know names that the other lacks), and a second list would have to be kept in step with
the pin. The loader decides; `load_failure` puts its verdict into one line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pymtp._gguf_header import ArrayLength, Value
from pymtp._gguf_shards import data_offset, read_shards, tensor_bytes
from pymtp.errors import ModelError

if TYPE_CHECKING:  # inspecting a file does without it, and it takes a while to load
    import numpy as np
    import numpy.typing as npt

_N_SAMPLES, _SAMPLE_BYTES = 64, 4096
_MAX_DEFAULT_N_CTX = 4096


@dataclass(frozen=True)
class GgufInfo:
    """Facts of one model file; sizes and counts cover all the parts of a split model."""

    path: Path
    architecture: str
    name: str | None
    quantization: str | None
    """Name of the file type, such as "Q4_K_M"."""
    n_layer: int
    """Layers of the target, MTP layers not counted."""
    n_ctx_train: int
    n_vocab: int
    n_heads_declared: int
    """MTP heads according to the metadata (`<architecture>.nextn_predict_layers`)."""
    n_heads: int
    """MTP heads whose tensors are in the file. Some converters keep the key and drop the tensors."""
    n_tensors: int
    n_parameters: int
    size_bytes: int
    chat_template: str | None

    @property
    def has_heads(self) -> bool:
        """Whether the model can draft with its own heads: it names some, and holds all that it names."""
        return self.n_heads == self.n_heads_declared > 0

    @property
    def n_ctx_default(self) -> int:
        """Tokens of context where nobody asks for a number: as the model was trained, but at most 4096."""
        return min(self.n_ctx_train or _MAX_DEFAULT_N_CTX, _MAX_DEFAULT_N_CTX)


def inspect_gguf(path: str | os.PathLike[str]) -> GgufInfo:
    """Read metadata and tensor infos of the GGUF at `path`, and of its other parts if it is split.

    Raises ModelError with one line that names the fix: no such file, a directory, an empty file, not
    a GGUF or one of an unknown version, truncated, damaged, unreadable, a missing part, or something
    other than a model.
    """
    shards = read_shards(Path(path))
    tensors = [tensor for shard in shards for tensor in shard.header.tensors]
    keys = _Keys(Path(path), shards[0].header.metadata)
    n_declared = keys.number("nextn_predict_layers")
    n_layer = keys.number("block_count") - n_declared
    return GgufInfo(
        path=Path(path),
        architecture=keys.architecture,
        name=keys.text("general.name"),
        quantization=_file_type_name(keys.metadata.get("general.file_type")),
        n_layer=n_layer,
        n_ctx_train=keys.number("context_length"),
        n_vocab=keys.length("tokenizer.ggml.tokens"),
        n_heads_declared=n_declared,
        n_heads=_count_heads({tensor.name for tensor in tensors}, n_layer, n_declared),
        n_tensors=len(tensors),
        n_parameters=sum(tensor.n_elements for tensor in tensors),
        size_bytes=sum(shard.size_bytes for shard in shards),
        chat_template=keys.text("tokenizer.chat_template"),
    )


def load_failure(info: GgufInfo, loader_log: str) -> ModelError:
    """Say in one line why llama.cpp refused a file that `inspect_gguf` found sound."""
    if "unknown model architecture" in loader_log:
        return ModelError(
            f"{info.path}: the pinned llama.cpp does not know the architecture {info.architecture!r}; "
            "use a newer pymtp or another model"
        )
    reasons = [line for line in loader_log.splitlines() if "error" in line.lower()]
    reason = reasons[0].strip() if reasons else "it gave no reason"
    return ModelError(f"{info.path}: llama.cpp cannot load this {info.architecture} model ({reason}); see --verbose")


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A name for the weights of the GGUF at `path`: 32 hex digits over its headers and samples of its data.

    Reads some hundred kilobytes, whatever the size of the file. Raises ModelError as `inspect_gguf` does.
    """
    digest = hashlib.sha256()
    for shard in read_shards(Path(path)):
        with shard.path.open("rb") as file:
            digest.update(file.read(shard.header.size_bytes))
            for i in range(_N_SAMPLES):
                file.seek(max(0, shard.size_bytes - _SAMPLE_BYTES) * i // (_N_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
            digest.update(str(shard.size_bytes).encode())
    return digest.hexdigest()[:32]


def output_rows(path: str | os.PathLike[str], head: int, tokens: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Rows of the matrix with which MTP head `head` scores the vocabulary, as they lie in the GGUF at `path`.

    Returns (len(tokens), bytes of a row) uint8 in the matrix's own type: the head's, else the target's, else the
    token embedding, which llama.cpp takes where there is no other. For Session.limit_drafts_to. Raises ModelError.
    """
    import numpy as np

    info = inspect_gguf(path)
    shards = read_shards(Path(path))
    tensors = {tensor.name: (shard, tensor) for shard in shards for tensor in shard.header.tensors}
    own = f"blk.{info.n_layer + head}.nextn.shared_head_head.weight"
    shard, tensor = next(tensors[name] for name in (own, "output.weight", "token_embd.weight") if name in tensors)
    n_rows = tensor.shape[1]
    matrix = np.memmap(shard.path, np.uint8, "r", data_offset(shard, tensor), (n_rows, tensor_bytes(tensor) // n_rows))
    return np.asarray(matrix[np.asarray(tokens)])


class _Keys:
    """Metadata by meaning; architecture-specific keys are given without their prefix."""

    def __init__(self, path: Path, metadata: dict[str, Value]) -> None:
        self._path = path
        self.metadata = metadata
        kind = self.text("general.type") or "model"
        if kind != "model":
            raise ModelError(f"{path} holds a GGUF of type {kind!r}, not a model; name the model's own file")
        self.architecture = self.text("general.architecture") or self._damaged("no general.architecture")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        return value if isinstance(value, int) else self._damaged(f"{self.architecture}.{key} is not an integer")

    def length(self, key: str) -> int:
        value = self.metadata.get(key)
        return value.length if isinstance(value, ArrayLength) else 0

    def _damaged(self, problem: str) -> NoReturn:
        raise ModelError(f"{self._path} has damaged metadata ({problem}); convert or download it again")


def _count_heads(names: set[str], n_layer: int, n_declared: int) -> int:
    # Every head, of whichever family, joins token embedding and hidden state in an eh_proj matrix.
    return sum(f"blk.{n_layer + i}.nextn.eh_proj.weight" in names for i in range(n_declared))


def _file_type_name(file_type: Value | None) -> str | None:
    # Imported here because the package brings NumPy, which nothing else in this module needs.
    from gguf.constants import LlamaFileType

    if not isinstance(file_type, int):
        return None
    try:
        return LlamaFileType(file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return None
