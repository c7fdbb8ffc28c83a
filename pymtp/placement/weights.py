"""What a model needs of its devices: bytes of each tensor, of each layer's cache, and of what passes compute in.

Knows headers and the user's parameters; no device, and not what goes where.
"""

from dataclasses import dataclass

from pymtp.drafting.choice import DraftChoice
from pymtp.gguf.facts import GgufInfo, context_size
from pymtp.gguf.model_file import layer_of
from pymtp.options import Params
from pymtp.placement.cache import MemoryEstimate, estimate_memory, shape_of

_KEPT_BYTES = 64 << 20
"""Inputs of graphs, and what kernels set aside; graphs of drafts and rounds compute where prompts do."""


@dataclass(frozen=True)
class Demand:
    """What a model needs, in bytes."""

    n_layer: int
    """Layers of the trunk; those of the heads come after them."""
    n_layer_all: int
    tensors: dict[str, int]
    """Bytes of the tensors, by their names in the file."""
    context: MemoryEstimate
    """Each device that computes prompts needs what this says for it."""
    kept_bytes: int
    """What passes take besides, and what drafts multiply with instead of the output."""
    assistant_bytes: int
    """Weights of a model that drafts in the place of heads."""
    moe_cache_bytes: int = 0
    """A cache of experts, on all devices together."""
    has_cache_on_host: bool = False
    """Whether the caches of all layers are there, wherever the layers are."""

    @property
    def has_output(self) -> bool:
        """Whether there is an output matrix; else it is the token embedding, of which a device gets a copy."""
        return "output.weight" in self.tensors


def demand(info: GgufInfo, params: Params, choice: DraftChoice, n_ctx: int | None = None) -> Demand:
    """What a model needs of its devices, with another context than that of `params` if `n_ctx` is given."""
    context, drafting = params.context, params.drafting
    heads = None if info.has_assistant else info.draft_file
    shape = shape_of(heads, info.model_file.tensors.values()) if heads else shape_of(info.model_file)
    draft_max = choice.longest_draft(drafting, context.n_seq_max, has_states=shape.has_recurrent_states)
    n_ctx = context_size(context.n_ctx, info.n_ctx_train, context.n_ctx_max) if n_ctx is None else n_ctx
    memory = estimate_memory(
        shape,
        n_ctx=n_ctx,
        n_ubatch=context.n_ubatch,
        draft_max=draft_max if choice.uses_heads else 0,
        type_k=context.type_k,
        type_v=context.type_v,
        n_seq_max=context.n_seq_max,
        n_cells=n_ctx if context.n_cells == 0 else context.n_cells,
        has_flash_attn=context.flash_attn != "off",
    )
    tensors = {
        name: tensor.size_bytes
        for name, tensor in info.tensors.items()
        if choice.uses_heads or (layer_of(name) or 0) < info.n_layer
    }
    kept_bytes = _KEPT_BYTES
    if drafting.draft_head_type or drafting.draft_vocab or info.n_draft_vocab:
        kept_bytes += tensors.get("output.weight") or tensors.get("token_embd.weight", 0)
    assistant = info.draft_file.tensors.values() if info.draft_file and info.has_assistant else ()
    return Demand(
        info.n_layer,
        info.n_layer_all,
        tensors,
        memory,
        kept_bytes,
        sum(tensor.size_bytes for tensor in assistant),
        context.moe_cache_mib << 20,
        not context.offload_kqv,
    )
