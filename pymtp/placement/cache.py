"""The bytes of a context: what each layer stores of its sequences, and what passes compute in.

Owns the arithmetic of llama.cpp's caches for the families that have MTP heads. Reads metadata and names of tensors;
needs no native library.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pymtp.gguf.header import TensorInfo
from pymtp.gguf.model_file import ModelFile, tensors_by_layer
from pymtp.gguf.types import TENSOR_TYPES

_CELL_BLOCK, _F32_BYTES, _F16_BYTES = 256, 4, 2
# how far drafts in the heads' own cache may reach beyond the trunk's last position: the engine's PYMTP_OWN_CACHE_MARGIN
_OWN_CACHE_MARGIN = 64

# whose heads attend as the first layers do where the file does not say how (see head-graph.h), or all to a window
_HEADS_LIKE_FIRST_LAYERS, _HEADS_WITH_WINDOWS = {"exaone4", "exaone-moe"}, {"dots3note"}

_HEAD_TENSOR, _NGRAM_TENSOR = "nextn.eh_proj.weight", "ple_conv1d.weight"
_MLA_TENSOR, _INDEX_TENSOR = "attn_kv_a_mqa.weight", "indexer.proj.weight"
_KEPT_KEYS_TENSOR = "indexer.k_proj.weight"  # of an index that keeps the key of each position, to pool them later
_K_TENSORS = ("attn_k.weight", "attn_qkv.weight", "attn_kv.weight", _MLA_TENSOR)
_STATE_TENSORS = ("ssm_a", "ssm_conv1d.weight")
_RATIOS, _WINDOWS = "attention.compress_ratios", "attention.sliding_window_pattern"


@dataclass(frozen=True)
class Layer:
    """What one layer stores of a sequence; MTP heads are layers like the others."""

    k_width: int = 0
    """Elements of K per position; 0: the layer stores no K/V."""
    v_width: int = 0
    """Elements of V per position; 0 if K includes it (MLA)."""
    has_window: bool = False
    index_width: int = 0
    """Elements per position of the index that sparse attention stores."""
    n_pooled: int = 1
    """Positions that one score of the index stands for."""
    ratio: int = 1
    """Positions that one cell of compressed K stands for."""
    state_bytes: int = 0


@dataclass(frozen=True)
class Shape:
    """What the memory of a model's context depends on."""

    trunk: tuple[Layer, ...]
    heads: tuple[Layer, ...]
    n_window: int
    n_vocab: int
    row_elements: int
    """Floats that the widest layer holds of a row while it is computed."""
    n_head: int
    """Attention heads of the layer that has most."""

    @property
    def kind(self) -> str:
        """What llama.cpp calls the memory of the trunk."""
        layers = self.trunk
        if any(layer.ratio > 1 for layer in layers):
            return "compressed"
        if any(layer.index_width for layer in layers):
            return "sparse"
        if any(layer.state_bytes for layer in layers):
            return "hybrid" if any(layer.k_width for layer in layers) else "recurrent"
        return "sliding-window" if any(layer.has_window for layer in layers) else "full"

    @property
    def has_recurrent_states(self) -> bool:
        """Whether some layers of the trunk are recurrent, whatever the others are."""
        return self.kind != "compressed" and any(layer.state_bytes for layer in self.trunk)

    @property
    def is_shared(self) -> bool:
        """Whether the heads' K/V is in the cells of the trunk's cache; else the heads have their own cache."""
        return self.kind not in ("sparse", "compressed")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a context, on all devices together. Weights not included."""

    n_ctx: int
    type_k: str
    type_v: str
    kv_bytes: int
    """The trunk's cache."""
    heads_kv_bytes: int
    """What the MTP heads add to it, or store in their own cache."""
    state_bytes: int
    """Recurrent states, including those that rollback restores."""
    compute_bytes: int
    """Intermediate results of one ubatch; a rough figure."""
    layer_bytes: tuple[int, ...]
    """What each layer stores of all sequences, those of the heads last."""

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.heads_kv_bytes + self.state_bytes + self.compute_bytes


def shape_of(model: ModelFile, more: Iterable[TensorInfo] = ()) -> Shape:
    """The shape of a model, or, if its heads are in a file of their own, of that file with the model's tensors."""
    tensors = tensors_by_layer([*model.tensors.values(), *more])
    numbers = [*range(model.n_layer), *model.head_layers]
    layers = [_layer(model, number, tensors.get(number, {})) for number in numbers]
    return Shape(
        trunk=tuple(layers[: model.n_layer]),
        heads=tuple(layers[model.n_layer :]),
        n_window=model.count("attention.sliding_window"),
        n_vocab=model.n_vocab,
        row_elements=max((_row_elements(model, number) for number in numbers), default=0),
        n_head=max((model.count("attention.head_count", number, 1) for number in numbers), default=0),
    )


def _layer(model: ModelFile, number: int, names: Mapping[str, TensorInfo]) -> Layer:
    if model.is_trained and number >= model.n_layer:
        values = names.get("attn_v.weight")
        return Layer(names["attn_k.weight"].shape[1], values.shape[1] if values else 0)
    if any(name in names for name in _STATE_TENSORS):
        return Layer(state_bytes=_F32_BYTES * _state_elements(model, number, has_ngrams=_NGRAM_TENSOR in names))
    reads_earlier = number >= model.count("block_count") - model.count("attention.shared_kv_layers")
    if reads_earlier or not any(name in names for name in _K_TENSORS):
        return Layer()
    k_width, v_width = (model.n_loops * width for width in _kv_widths(model, number))
    has_index = _INDEX_TENSOR in names or _KEPT_KEYS_TENSOR in names
    index_width = model.count("attention.indexer.key_length") if has_index else 0
    if _KEPT_KEYS_TENSOR in names:  # each beside that of the block that ends there
        n_pooled = max(1, *(model.count(_RATIOS, each) for each in range(model.count("block_count"))))
        return Layer(k_width, v_width, index_width=2 * index_width, n_pooled=n_pooled)
    is_head, has_ratios = _HEAD_TENSOR in names, model.value(_RATIOS) is not None
    n_pooled = max(1, model.count("attention.indexer.kpool"))
    if n_pooled > 1:  # with a key its gate, and in the trunk the key of the pool that ends there
        index_width *= 2 if is_head else 3
    if has_ratios and not is_head:
        ratio = max(1, model.count(_RATIOS, number))
        # sums and weights of the cells that are not complete yet; with an index, windows overlap by half
        n_elements = 2 * ratio * (4 * (k_width + index_width) if index_width else k_width)
        state_bytes = _F32_BYTES * n_elements if ratio > 1 else 0
        return Layer(k_width, 0, True, index_width, ratio=ratio, state_bytes=state_bytes)
    # whatever the trunk has, a head attends to K and V of its window or of all positions
    has_window = has_ratios or _has_window(model, number)
    return Layer(k_width, 0 if _MLA_TENSOR in names else v_width, has_window, index_width, n_pooled)


def _kv_widths(model: ModelFile, number: int) -> tuple[int, int]:
    n_head = model.count("attention.head_count", number, 1)
    n_head_kv = model.count("attention.head_count_kv", number, n_head)
    width = model.count("embedding_length") // max(1, n_head)
    k_width, v_width = (model.count(f"attention.{x}_length", default=width) for x in ("key", "value"))
    if _has_window(model, number):  # heads may have another size here
        k_width = model.count("attention.key_length_swa", default=k_width)
        v_width = model.count("attention.value_length_swa", default=v_width)
    return n_head_kv * k_width, n_head_kv * v_width


def _has_window(model: ModelFile, number: int) -> bool:
    if not model.count("attention.sliding_window"):
        return False
    of_head = number - model.count("block_count") + model.count("nextn_predict_layers")
    if model.architecture in _HEADS_WITH_WINDOWS and of_head >= 0:
        return True
    unsaid = model.count(_WINDOWS, of_head) if model.architecture in _HEADS_LIKE_FIRST_LAYERS else 0
    return bool(model.count(_WINDOWS, number, unsaid))


def _state_elements(model: ModelFile, number: int, *, has_ngrams: bool) -> int:
    """Elements of a recurrent layer's state, and of the inputs that its convolutions still need."""
    n = 0
    if has_ngrams:  # after a table of n-grams, of all streams of hidden states
        n_positions = max(0, model.count("ple.conv_kernel") - 1) * model.count("ple.ngram_size")
        n = n_positions * model.count("hyper_connection.count") * model.count("embedding_length")
    n_taps = max(0, model.count("ssm.conv_kernel") - 1)
    if width := model.count("kda.head_dim"):
        return n + model.count("attention.head_count", number, 1) * width * (width + 3 * n_taps)
    n_inner, n_state = model.count("ssm.inner_size"), model.count("ssm.state_size")
    return n + n_state * n_inner + n_taps * (n_inner + 2 * model.count("ssm.group_count") * n_state)


def _row_elements(model: ModelFile, number: int) -> int:
    n_embd = model.count("embedding_length")
    n_head = model.count("attention.head_count", number, 1)
    attention = n_head * (model.count("attention.key_length") + model.count("attention.value_length"))
    dense = 3 * model.count("feed_forward_length", number)
    routed = model.count("expert_used_count") * (2 * model.count("expert_feed_forward_length") + n_embd)
    n_streams = model.count("hyper_connection.count", default=1)
    return 3 * n_embd * n_streams + max(attention + sum(_kv_widths(model, number)), dense, routed)


def estimate_memory(
    shape: Shape,
    *,
    n_ctx: int,
    n_ubatch: int,
    draft_max: int,
    type_k: str = "f16",
    type_v: str = "f16",
    n_seq_max: int = 1,
    n_cells: int | None = None,
    has_flash_attn: bool = True,
) -> MemoryEstimate:
    """The memory of a context of `n_seq_max` sequences of `n_ctx` tokens each. `draft_max` 0 loads no heads.

    `n_cells`: tokens that all of them together can hold; None: n_ctx of each.
    """
    n_tokens = n_cells or n_ctx * n_seq_max
    n_cells = _padded(n_tokens)
    n_ubatch = max(n_ubatch, (draft_max + 2) * n_seq_max if draft_max else n_seq_max)
    n_window = shape.n_window * n_seq_max + n_ubatch
    n_own_cells = n_cells if shape.is_shared else _padded(n_tokens + _OWN_CACHE_MARGIN * n_seq_max)

    def cache(layer: Layer, n: int) -> int:
        k_bytes, v_bytes = _row_bytes(type_k, layer.k_width), _row_bytes(type_v, layer.v_width)
        n_compressed = _padded(-(-n // layer.ratio)) if layer.ratio > 1 else n
        compressed_bytes = _row_bytes(type_k, layer.index_width) + (k_bytes if layer.ratio > 1 else 0)
        n_full = _padded(min(n, n_window)) if layer.has_window else n
        return (k_bytes + v_bytes) * n_full + compressed_bytes * n_compressed

    trunk = [cache(layer, n_cells) for layer in shape.trunk]
    heads = [cache(layer, n_own_cells) if draft_max else 0 for layer in shape.heads]
    states = [n_seq_max * (1 + draft_max) * layer.state_bytes for layer in shape.trunk]  # one a row of a verify pass
    n_masked = n_cells + (_padded(min(n_cells, n_window)) if any(each.has_window for each in shape.trunk) else 0)
    # the selected scores of the index, and those before: of pooled cells one
    n_pooled = max((layer.n_pooled for layer in shape.trunk), default=1)
    n_scores = n_cells // n_pooled + n_cells if shape.kind == "sparse" else 0
    n_scores += 0 if has_flash_attn else shape.n_head * n_cells  # of all heads of a layer's attention
    row_bytes = _F16_BYTES * n_masked + _F32_BYTES * (n_scores + shape.row_elements)
    return MemoryEstimate(
        n_ctx=n_ctx,
        type_k=type_k,
        type_v=type_v,
        kv_bytes=sum(trunk),
        heads_kv_bytes=sum(heads),
        state_bytes=sum(states),
        compute_bytes=min(n_ubatch, n_tokens) * row_bytes + _F32_BYTES * shape.n_vocab * n_seq_max * (draft_max + 1),
        layer_bytes=(*map(sum, zip(trunk, states, strict=True)), *heads),
    )


def _row_bytes(kind: str, n_elements: int) -> int:
    found = next(each for each in TENSOR_TYPES.values() if each.name == kind.upper())
    return -(-n_elements // found.block_elements) * found.block_bytes


def _padded(n: int) -> int:
    return -(-n // _CELL_BLOCK) * _CELL_BLOCK
