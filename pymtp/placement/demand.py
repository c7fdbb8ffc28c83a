"""What a model needs of its devices: bytes of each tensor, of each layer's cache, and of what passes compute in.

An estimate that is rather too large than too small: it does not follow each of llama.cpp's caches. Knows headers and
the user's parameters; no device, and not what goes where.
"""

from collections.abc import Mapping
from math import prod

from pymtp.drafting import text_vocab
from pymtp.drafting.choice import DraftChoice
from pymtp.engine.context import ContextParams
from pymtp.gguf.facts import GgufInfo, context_size
from pymtp.gguf.header import TensorInfo, padded, tensor_bytes
from pymtp.gguf.model_file import ModelFile, layer_of, tensors_by_layer
from pymtp.gguf.types import TYPE_IDS
from pymtp.options import Params

_KEPT_BYTES = 64 << 20
"""Inputs of graphs, and what kernels set aside; graphs of drafts and rounds compute where prompts do."""
_CELL_BLOCK, _F32_BYTES, _F16_BYTES = 256, 4, 2
_MLA_TENSOR, _QKV_TENSOR, _KEPT_KEYS_TENSOR = "attn_kv_a_mqa.weight", "attn_qkv.weight", "indexer.k_proj.weight"
_K_TENSORS = ("attn_k.weight", _MLA_TENSOR, "attn_kv.weight", _QKV_TENSOR)  # their rows are the elements of K
_STATE_TENSORS = ("ssm_a", "ssm_conv1d.weight")
_RATIOS = "attention.compress_ratios"
INPUTS = ("token_embd", "token_types", "position_embd", "per_layer_token_embd")
"""How the names of tensors outside of layers begin that are not with the output."""


class MemoryEstimate:
    """Bytes of a context, on all devices together. Weights not included."""

    def __init__(self, info: GgufInfo, context: ContextParams, n_ctx: int, draft_max: int) -> None:
        """Of `n_ctx` tokens for each sequence. `draft_max` 0 loads no heads."""
        # heads in a file of their own say how they attend; the rest of that metadata is the model's
        model = info.model_file if info.has_assistant else info.draft_file or info.model_file
        names, n_seq_max = tensors_by_layer(info.tensors.values()), context.n_seq_max
        n_cells = padded((n_ctx if context.n_cells == 0 else context.n_cells) or n_ctx * n_seq_max, _CELL_BLOCK)
        n_ubatch = max(context.n_ubatch, (draft_max + 2) * n_seq_max if draft_max else n_seq_max)
        n_shown = model.count("attention.sliding_window") * n_seq_max + n_ubatch
        n_window = n_cells if context.invariant else min(n_cells, padded(n_shown, _CELL_BLOCK))
        trunk, heads = (
            [_stored(model, number, names.get(number, {}), context, n_cells, n_window) for number in numbers]
            for numbers in (range(model.n_layer), model.head_layers if draft_max else ())
        )
        states = [n_seq_max * (1 + draft_max) * state_bytes for _, state_bytes, _ in trunk]  # one a verified row
        kv, heads_kv = ([cache_bytes for cache_bytes, _, _ in layers] for layers in (trunk, heads))
        n_scores = max((n for _, _, n in trunk), default=0)
        if context.flash_attn == "off":
            n_scores += max(model.numbers("attention.head_count"), default=0) * n_cells
        n_masked = n_cells + (n_window if model.count("attention.sliding_window") else 0)
        row_bytes = _F16_BYTES * n_masked + _F32_BYTES * (n_scores + _row_elements(model))
        self.n_ctx = n_ctx
        self.kv_bytes = sum(kv)
        """The trunk's cache."""
        self.heads_kv_bytes = sum(heads_kv)
        """What the MTP heads add to it, or store in their own cache."""
        self.state_bytes = sum(states)
        """Recurrent states, including those that rollback restores."""
        self.compute_bytes = min(n_ubatch, n_cells) * row_bytes
        self.compute_bytes += _F32_BYTES * model.n_vocab * n_seq_max * (draft_max + 1)
        """Intermediate results of one ubatch; a rough figure."""
        self.layer_bytes = (*map(sum, zip(kv, states, strict=True)), *heads_kv)
        """What each layer stores of all sequences, those of the heads last."""

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.heads_kv_bytes + self.state_bytes + self.compute_bytes


class Demand:
    """What a model needs, in bytes."""

    def __init__(self, info: GgufInfo, params: Params, choice: DraftChoice, n_ctx: int | None = None) -> None:
        """`n_ctx`: of another context than that of `params`."""
        context, drafting = params.context, params.drafting
        n_ctx = context_size(context.n_ctx, info.n_ctx_train, context.n_ctx_max) if n_ctx is None else n_ctx
        has_states = any(name.endswith(_STATE_TENSORS) for name in info.tensors)
        draft_max = choice.n_draft_of_session(drafting, context.n_seq_max, has_states=has_states)
        self.n_layer = info.n_layer
        """Layers of the trunk; those of the heads come after them."""
        self.n_layer_all = info.n_layer_all
        self.tensors = {
            name: tensor.size_bytes
            for name, tensor in info.tensors.items()
            if choice.uses_heads or (layer_of(name) or 0) < info.n_layer
        }
        """Bytes of the tensors, by their names in the file."""
        self.has_output = "output.weight" in self.tensors
        """Whether there is an output matrix; else it is the token embedding, of which a device gets a copy."""
        self.context = MemoryEstimate(info, context, n_ctx, draft_max if choice.uses_heads else 0)
        """Each device that computes prompts needs what this says for it."""
        self.kept_bytes = _KEPT_BYTES
        """What passes take besides, and what drafts multiply with instead of the output."""
        if info.n_draft_vocab or not isinstance(drafting.draft_vocab, str):
            self.kept_bytes += self.tensors.get("output.weight") or self.tensors.get("token_embd.weight", 0)
        elif choice.follows_texts(info, drafting):
            self.kept_bytes += text_vocab.kept_bytes(info)
        assistant = info.draft_file.tensors.values() if info.draft_file and info.has_assistant else ()
        self.assistant_bytes = sum(tensor.size_bytes for tensor in assistant)
        """Weights of a model that drafts in the place of heads."""
        self.moe_cache_bytes = context.moe_cache_mib << 20
        """A cache of experts, on all devices together."""
        self.has_cache_on_host = not context.offload_kqv
        """Whether the caches of all layers are there, wherever the layers are."""

    def layer_of(self, name: str) -> int | None:
        """The layer that a tensor is placed with; n_layer_all: the output, None: none, it is an input."""
        layer = layer_of(name)
        if layer is None:
            return None if name.startswith(INPUTS) else self.n_layer_all
        return min(layer, self.n_layer_all)


def _stored(
    model: ModelFile, number: int, names: Mapping[str, TensorInfo], context: ContextParams, n_cells: int, n_window: int
) -> tuple[int, int, int]:
    """What one layer stores: bytes of its cache, bytes of a sequence's state, and scores of an index for a row."""
    if any(name in names for name in _STATE_TENSORS):
        width = model.count("kda.head_dim")
        n_inner = model.count("ssm.inner_size") or model.count("attention.head_count", number) * width
        n_taps = max(0, model.count("ssm.conv_kernel") - 1)  # inputs that are kept, of up to three times n_inner
        return 0, _F32_BYTES * n_inner * ((model.count("ssm.state_size") or width) + 3 * n_taps), 0
    n_shared = model.count("attention.shared_kv_layers")  # the last layers read what earlier ones store
    source = next((name for name in _K_TENSORS if name in names), None)
    if source is None or (n_shared and number >= model.count("block_count") - n_shared):
        return 0, 0, 0
    k_width = v_width = model.n_loops * prod(names[source].shape[1:])
    if source == _QKV_TENSOR:
        n_head, length = (model.count(f"attention.{key}", number) for key in ("head_count", "key_length"))
        k_width = v_width = max(0, k_width - model.n_loops * (n_head * length or model.count("embedding_length"))) // 2
    elif "attn_v.weight" in names:
        v_width = model.n_loops * prod(names["attn_v.weight"].shape[1:])
    index_width = model.count("attention.indexer.key_length") * any(name.startswith("indexer.") for name in names)
    keeps_keys = _KEPT_KEYS_TENSOR in names
    if keeps_keys or model.count("attention.indexer.kpool") > 1:  # with a key its gate, and the key of its pool
        index_width *= 3
    k_bytes, v_bytes, index_bytes = (
        tensor_bytes((width,), TYPE_IDS[kind])
        for kind, width in ((context.type_k, k_width), (context.type_v, v_width), (context.type_k, index_width))
    )
    has_ratios = model.value(_RATIOS) is not None and not keeps_keys
    if not has_ratios or number >= model.n_layer:
        # of this layer, or how many layers have one full
        pattern = model.count("attention.sliding_window_pattern", number)
        has_window = has_ratios or pattern == 1 or (number < model.n_layer and pattern and (number + 1) % pattern)
        stored_bytes = (k_bytes + (0 if source == _MLA_TENSOR else v_bytes)) * (n_window if has_window else n_cells)
        return stored_bytes + index_bytes * n_cells, 0, 2 * n_cells if index_width else 0
    # K of a window, and one for `ratio` positions; each sequence has cells of its own
    ratio = max(1, model.count(_RATIOS, number))
    n_compressed = padded(n_cells // ratio, _CELL_BLOCK) if ratio > 1 else 0
    # sums and weights of the cells that are not complete yet; with an index, windows overlap by half
    n_elements = 2 * ratio * (4 * (k_width + index_width) if index_width else k_width) if n_compressed else 0
    stored_bytes = k_bytes * n_window + (k_bytes + index_bytes) * n_compressed
    return context.n_seq_max * stored_bytes, _F32_BYTES * n_elements, 2 * n_compressed if index_width else 0


def _row_elements(model: ModelFile) -> int:
    """Floats that the widest layer holds of a row while it is computed."""
    n_embd = model.count("embedding_length")
    head_lengths = sum(model.count(f"attention.{each}_length") for each in ("key", "value"))
    attention = max(model.numbers("attention.head_count"), default=0) * head_lengths
    routed = model.count("expert_used_count") * (2 * model.count("expert_feed_forward_length") + n_embd)
    n_streams = model.count("hyper_connection.count", default=1)
    n_ff = max(model.numbers("feed_forward_length"), default=0)
    return 3 * n_embd * n_streams + max(attention, 2 * n_embd, 3 * n_ff, routed)
