"""Reads bytes of the weights: for a fingerprint, and rows of the output matrices.

Reads samples and single rows through the file system; never loads a model.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pymtp.gguf.facts import model_facts
from pymtp.gguf.shards import Shard, data_offset, read_shards, tensor_bytes

if TYPE_CHECKING:  # slow to import, and not needed to inspect a file
    import numpy as np
    import numpy.typing as npt

_N_SAMPLES, _SAMPLE_BYTES = 64, 4096


def fingerprint(path: str | os.PathLike[str], draft_model: str | os.PathLike[str] | None = None) -> str:
    """A fingerprint of the weights of the GGUF at `path`: 32 hex digits over its headers and samples of its data.

    Reads a few hundred kilobytes, whatever the size of the files. Raises ModelError as `model_facts` does.
    """
    digest = hashlib.sha256()
    for shard in _shards(path, draft_model):
        with shard.path.open("rb") as file:
            digest.update(file.read(shard.header.size_bytes))
            for i in range(_N_SAMPLES):
                file.seek(max(0, shard.size_bytes - _SAMPLE_BYTES) * i // (_N_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
            digest.update(str(shard.size_bytes).encode())
    return digest.hexdigest()[:32]


def output_rows(
    path: str | os.PathLike[str],
    head: int,
    tokens: Sequence[int] | None = None,
    draft_model: str | os.PathLike[str] | None = None,
) -> npt.NDArray[np.uint8]:
    """Rows of the matrix with which MTP head `head` computes logits, as stored in the GGUF at `path`.

    Returns (len(tokens), bytes of a row) uint8 in the matrix's own type; without tokens all rows, mapped from the
    file. The matrix is the head's, else the target's,
    else the token embedding, as in llama.cpp. For Session.limit_drafts_to and
    Session.requantize_drafts. Raises ModelError.
    """
    import numpy as np

    info = model_facts(path, draft_model)
    shards = read_shards(Path(draft_model)) if info.has_assistant and draft_model else _shards(path, draft_model)
    tensors = {tensor.name: (shard, tensor) for shard in shards for tensor in shard.header.tensors}
    own = f"blk.{info.n_layer + head}.nextn.shared_head_head.weight"
    shard, tensor = next(tensors[name] for name in (own, "output.weight", "token_embd.weight") if name in tensors)
    n_rows = tensor.shape[1]
    matrix = np.memmap(shard.path, np.uint8, "r", data_offset(shard, tensor), (n_rows, tensor_bytes(tensor) // n_rows))
    return matrix if tokens is None else np.asarray(matrix[np.asarray(tokens)])


def _shards(path: str | os.PathLike[str], draft_model: str | os.PathLike[str] | None) -> list[Shard]:
    heads = read_shards(Path(draft_model)) if draft_model is not None else []
    return [*heads, *read_shards(Path(path))]
