"""What a model needs of its devices: bytes of each tensor, of each layer's cache, and of what passes compute in.

Reads headers only. Knows no device, and not what goes where.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.header import TensorInfo
from pymtp.gguf.layers import Keys, Tensors, shape_of
from pymtp.gguf.memory import estimate_memory
from pymtp.gguf.model_file import DRAFT_TOKENS, LAYER_TENSOR, ModelFile
from pymtp.gguf.shards import tensor_bytes

# The engine's mtp_graph_bytes_max: what the graphs of rounds may take that it keeps.
_KEPT_SHARE, _KEPT_BYTES_LEAST, _KEPT_BYTES_MOST = 32, 64 << 20, 1 << 30


@dataclass(frozen=True)
class Demand:
    """Bytes, all of them."""

    n_ctx: int
    """Tokens of context of each sequence."""
    n_layer: int
    """Layers of the trunk; those of the heads come after them."""
    n_layer_all: int
    tensors: dict[str, int]
    """By their names in the file."""
    layer_bytes: tuple[int, ...]
    """Caches and recurrent states of each layer."""
    compute_bytes: int
    """Of each device that computes prompts; a rough figure."""
    kept_bytes: int
    """The most that graphs of drafts and rounds take besides, and what drafts multiply with instead of the output."""
    assistant_bytes: int
    """Weights of a model that drafts in the place of heads."""

    @property
    def has_output(self) -> bool:
        """Whether there is an output matrix; else it is the token embedding, of which a device gets a copy."""
        return "output.weight" in self.tensors


def demand_of(
    info: GgufInfo,
    *,
    with_heads: bool,
    n_ctx: int | None,
    n_ubatch: int,
    draft_max: int,
    draft_max_of_states: int,
    type_k: str,
    type_v: str,
    n_seq_max: int,
    n_cells: int | None,
    has_flash_attn: bool,
    has_own_output: bool = False,
) -> Demand:
    """The demand of a model whose context has these parameters; see estimate_memory.

    `n_ctx` None: Model's default, 0: as the model was trained. `draft_max_of_states`: the most drafts of a model with
    recurrent states. `has_own_output`: drafts multiply with an output matrix
    of another type, or with a part of it, beside the model's.
    """
    model, heads = info.model_file, info.draft_file
    own = heads if heads and not heads.is_assistant else None
    loaded = {**_of_heads(own), **model.tensors}
    names = loaded if with_heads else {name: each for name, each in loaded.items() if _layer(name) < info.n_layer}
    tensors = {name: tensor_bytes(each) for name, each in names.items()}
    first = own or model
    parts = Tensors(info, [*(own.shards if own else []), *model.shards])
    shape = shape_of(info, Keys(info.architecture, first.shards[0]), parts)
    if shape.has_recurrent_states:
        draft_max = draft_max_of_states
    estimate = estimate_memory(
        shape,
        n_ctx=info.context_size(n_ctx),
        n_ubatch=n_ubatch,
        draft_max=draft_max if with_heads else 0,
        type_k=type_k,
        type_v=type_v,
        n_seq_max=n_seq_max,
        n_cells=n_cells,
        has_flash_attn=has_flash_attn,
    )
    unused = (0,) * (info.n_layer_all - len(estimate.layer_bytes))
    kept_bytes = min(max(sum(tensors.values()) // _KEPT_SHARE, _KEPT_BYTES_LEAST), _KEPT_BYTES_MOST)
    if has_own_output:
        kept_bytes += tensors.get("output.weight") or tensors.get("token_embd.weight", 0)
    return Demand(
        n_ctx=estimate.n_ctx,
        n_layer=info.n_layer,
        n_layer_all=info.n_layer_all,
        tensors=tensors,
        layer_bytes=(*estimate.layer_bytes, *unused)[: info.n_layer_all],
        compute_bytes=estimate.compute_bytes,
        kept_bytes=kept_bytes,
        assistant_bytes=sum(map(tensor_bytes, heads.tensors.values())) if heads and heads.is_assistant else 0,
    )


def _of_heads(heads: ModelFile | None) -> dict[str, TensorInfo]:
    """Tensors of heads in a file of their own, which repeats some of the model's."""
    if heads is None:
        return {}
    if heads.n_draft_vocab is None:
        return dict(heads.tensors)
    return {name: each for name, each in heads.tensors.items() if name != DRAFT_TOKENS and not heads.is_output(name)}


def _layer(name: str) -> int:
    match = LAYER_TENSOR.fullmatch(name)
    return int(match[1]) if match else -1
