"""Reads bytes of the weights: for a fingerprint, and rows of the output matrices.

Reads samples and single rows through the file system; never loads a model.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pymtp.errors import ModelError
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.header import Shard, TensorInfo
from pymtp.gguf.model_file import DRAFT_TOKENS
from pymtp.gguf.types import TYPE_IDS

if TYPE_CHECKING:  # slow to import, and not needed to inspect a file
    import numpy as np
    import numpy.typing as npt

_N_SAMPLES, _SAMPLE_BYTES = 64, 4096
_EXPERT_TABLE, _TOKEN_TABLE, _I32 = ".ffn_gate_tid2eid.weight", "masked_embd_ordering", TYPE_IDS["i32"]


def fingerprint(shards: Iterable[Shard], metadata: Sequence[tuple[str, object]] = ()) -> str:
    """A fingerprint of the weights in files: 32 hex digits over their headers and samples of their data.

    `metadata` stands in the place of the files' own.

    Reads a few hundred kilobytes, whatever the size of the files.
    """
    digest = hashlib.sha256()
    for shard in shards:
        with shard.path.open("rb") as file:
            digest.update(file.read(shard.header_bytes))
            for i in range(_N_SAMPLES):
                file.seek(max(0, shard.size_bytes - _SAMPLE_BYTES) * i // (_N_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
            digest.update(str(shard.size_bytes).encode())
    if metadata:
        digest.update(repr(sorted(dict(metadata).items())).encode())
    return digest.hexdigest()[:32]


def output_tensor(info: GgufInfo, head: int) -> TensorInfo:
    """The matrix with which MTP head `head` computes logits: its own, else the target's, else the token embedding."""
    tensors = info.draft_file.tensors if info.has_assistant and info.draft_file else info.tensors
    own = f"blk.{info.n_layer + head}.nextn.shared_head_head.weight"
    return next(tensors[name] for name in (own, "output.weight", "token_embd.weight") if name in tensors)


def output_matrix(info: GgufInfo, head: int) -> "npt.NDArray[np.uint8]":
    """The `output_tensor` of a head, mapped from its file: (n_vocab, bytes of a row) uint8, as it is stored.

    For Session.limit_drafts_to.
    """
    tensor = output_tensor(info, head)
    return _mapped(tensor).reshape(tensor.shape[1], -1)


def _mapped(tensor: TensorInfo) -> "npt.NDArray[np.uint8]":
    import numpy as np

    return np.memmap(tensor.path, np.uint8, "r", tensor.offset, (tensor.size_bytes,))


def trimmed_output(info: GgufInfo) -> "tuple[list[int], list[npt.NDArray[np.uint8]], int]":
    """What heads in a file of their own multiply with that draft `info.n_draft_vocab` tokens.

    Returns the tokens that rows stand for, the matrix of each head, (len(tokens), bytes of a row), as stored, and their
    ggml_type. Raises ModelError for tokens that the vocabulary does not have or that are listed twice, for a head
    without a matrix, and for matrices of several types.
    """
    import numpy as np

    assert info.draft_file is not None
    tensors = info.draft_file.tensors
    ids = tensors[DRAFT_TOKENS]
    tokens = _mapped(ids).view(np.int32 if ids.type_id == _I32 else np.int64).astype(np.int64)
    if not ((tokens >= 0) & (tokens < info.n_vocab)).all() or len(np.unique(tokens)) < len(tokens):
        what = f"does not list distinct tokens of a vocabulary of {info.n_vocab}"
        raise ModelError(f"{info.draft_model}: {DRAFT_TOKENS} {what}; convert it again")
    own = [f"blk.{info.n_layer + head}.nextn.shared_head_head.weight" for head in range(info.n_heads)]
    matrices = [found for name in own if (found := tensors.get(name) or tensors.get("output.weight"))]
    if len(matrices) < info.n_heads or len({matrix.type_id for matrix in matrices}) > 1:
        raise ModelError(f"{info.draft_model}: not every head has an output matrix of the same type; convert it again")
    rows = [_mapped(matrix).reshape(len(tokens), -1) for matrix in matrices]
    return tokens.tolist(), rows, matrices[0].type_id


def check_tables(info: GgufInfo) -> None:
    """Raise ModelError if a table names an expert or a token that there is not.

    DeepSeek-V4's say which experts take a token, those of Gemma-4's assistants which tokens are chosen together. Their
    values are used as places in memory. No other weights are, and these are few: they are read before the loading.
    """
    n_experts = info.model_file.number("expert_count")
    for tensor in (tensor for shard in info.shards for tensor in shard.tensors):
        is_of_tokens = tensor.name == _TOKEN_TABLE
        is_table = is_of_tokens or tensor.name.endswith(_EXPERT_TABLE)
        if not is_table or tensor.type_id != _I32 or not tensor.n_elements:
            continue
        import numpy as np

        table = _mapped(tensor).view(np.int32)
        kind, n = ("token", tensor.n_elements) if is_of_tokens else ("expert", n_experts)
        odd = table[(table < 0) | (table >= n)]
        if len(odd):
            raise ModelError(f"{tensor.path}: {tensor.name} names {kind} {odd[0]} of {n}; download it again")
