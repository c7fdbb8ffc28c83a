"""What the memory of a model's context depends on, from the metadata and tensor names of its files.

Owns the reading of layers: which attend to what, and what they store of a sequence. memory.py has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.header import ArrayLength, TensorInfo, Value, read_array
from pymtp.gguf.limits import MAX_LAYERS
from pymtp.gguf.memory import Layer, Shape
from pymtp.gguf.model_file import LAYER_TENSOR
from pymtp.gguf.shards import Shard

# Whose heads attend as the first layers do where the file does not say how (see native/src/heads/head-graph.h), and
# whose all attend to a window.
_HEADS_LIKE_FIRST_LAYERS = frozenset({"exaone4", "exaone-moe"})
_HEADS_WITH_WINDOWS = frozenset({"dots3note"})

_HEAD_TENSOR = "nextn.eh_proj.weight"
_MLA_TENSOR = "attn_kv_a_mqa.weight"
_INDEX_TENSOR = "indexer.proj.weight"
_KEPT_KEYS_TENSOR = "indexer.k_proj.weight"
"""Of an index that keeps the key of each position and pools them when it picks."""
_NGRAM_TENSOR = "ple_conv1d.weight"
_K_TENSORS = ("attn_k.weight", "attn_qkv.weight", "attn_kv.weight", _MLA_TENSOR)
_STATE_TENSORS = ("ssm_a", "ssm_conv1d.weight")
_N_POOLED = "attention.indexer.kpool"
_RATIOS = "attention.compress_ratios"
_WINDOWS = "attention.sliding_window_pattern"


class Keys:
    """Metadata of the architecture; keys without its prefix."""

    def __init__(self, architecture: str, shard: Shard) -> None:
        self.architecture = architecture
        self._path = shard.path
        self.metadata = shard.header.metadata
        self._by_layer: dict[str, list[int | float | str]] = {}

    def value(self, key: str) -> Value | None:
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int = 0) -> int:
        value = self.value(key)
        return value if isinstance(value, int) else default

    def at(self, key: str, layer: int, default: int = 0) -> int:
        """A number that may differ by layer."""
        value = self.value(key)
        if not isinstance(value, ArrayLength):
            return self.number(key, default)
        if key not in self._by_layer:
            self._by_layer[key] = read_array(self._path, value, MAX_LAYERS)
        element = dict(enumerate(self._by_layer[key])).get(layer)
        return element if isinstance(element, int) else default

    def texts(self, key: str) -> list[int | float | str]:
        value = self.metadata.get(key)
        return read_array(self._path, value) if isinstance(value, ArrayLength) and value.holds_texts else []

    def numbers(self, key: str, n_max: int) -> list[int | float | str]:
        value = self.metadata.get(key)
        return read_array(self._path, value, n_max) if isinstance(value, ArrayLength) else []


class Tensors:
    """The tensors of all parts, by the layer that they belong to."""

    def __init__(self, info: GgufInfo, shards: Sequence[Shard]) -> None:
        self.all = [tensor for shard in shards for tensor in shard.header.tensors]
        self._n_layer = info.n_layer
        self._layers: dict[int, dict[str, TensorInfo]] = {}
        self._outside: dict[str, TensorInfo] = {}
        for tensor in self.all:
            match = LAYER_TENSOR.fullmatch(tensor.name)
            if match:
                self._layers.setdefault(int(match[1]), {})[match[2]] = tensor
            else:
                self._outside[tensor.name] = tensor
        last = info.n_layer + info.n_heads_declared
        self.head_layers = [i for i in range(info.n_layer, last) if _HEAD_TENSOR in self.layer(i)]

    def layer(self, number: int) -> dict[str, TensorInfo]:
        """Tensors of a layer, by the part of their names after its number."""
        return self._layers.get(number, {})

    def of_layers(self, numbers: Iterable[int]) -> list[TensorInfo]:
        return [tensor for number in numbers for tensor in self.layer(number).values()]

    def output(self) -> list[TensorInfo]:
        """The trunk's output matrix; the token embedding if there is no other."""
        names = [name for name in ("output.weight", "token_embd.weight") if name in self._outside]
        return [self._outside[name] for name in names[:1]]

    def trunk(self) -> list[TensorInfo]:
        """What the trunk reads for a token, without its rows of embeddings."""
        apart = {"output.weight", "token_embd.weight", "per_layer_token_embd.weight"}
        others = [tensor for name, tensor in self._outside.items() if name not in apart]
        return [*self.of_layers(range(self._n_layer)), *others, *self.output()]


def shape_of(info: GgufInfo, keys: Keys, tensors: Tensors) -> Shape:
    numbers = [*range(info.n_layer), *tensors.head_layers]
    layers = [_layer(keys, number, tensors.layer(number)) for number in numbers]
    return Shape(
        trunk=tuple(layers[: info.n_layer]),
        heads=tuple(layers[info.n_layer :]),
        n_window=keys.number("attention.sliding_window"),
        n_vocab=info.n_vocab,
        row_elements=max((_row_elements(keys, number) for number in numbers), default=0),
        n_head=max((keys.at("attention.head_count", number, 1) for number in numbers), default=0),
        n_scores=2 + (_n_head_scores(keys, numbers) if any(layer.shares_cells for layer in layers) else 0),
    )


def _n_head_scores(keys: Keys, numbers: Sequence[int]) -> int:
    """Of each of the index's heads, before and after what is below 0 is cut off; cells that are pooled have one."""
    ratio = max(1, *(keys.at(_RATIOS, number) for number in numbers))
    return -(-2 * keys.number("attention.indexer.head_count") // ratio)


def _layer(keys: Keys, number: int, names: Container[str]) -> Layer:
    if any(name in names for name in _STATE_TENSORS):
        n_elements = _state_elements(keys, number) + (_ngram_elements(keys) if _NGRAM_TENSOR in names else 0)
        return Layer(state_bytes=4 * n_elements)
    reads_earlier = number >= keys.number("block_count") - keys.number("attention.shared_kv_layers")
    if reads_earlier or not any(name in names for name in _K_TENSORS):
        return Layer()
    k_width, v_width = _kv_widths(keys, number)
    has_index = _INDEX_TENSOR in names or _KEPT_KEYS_TENSOR in names
    index_width = keys.number("attention.indexer.key_length") if has_index else 0
    if _KEPT_KEYS_TENSOR in names:
        return Layer(k_width, v_width, index_width=index_width, shares_cells=True)
    n_pooled = max(1, keys.number(_N_POOLED))
    if n_pooled > 1:  # beside a key its gate, and in the trunk the key of the pool that ends there
        index_width *= 2 if _HEAD_TENSOR in names else 3
    if _HEAD_TENSOR in names:  # whatever the trunk has, a head attends to K and V of its window or of all positions
        is_windowed = keys.value(_RATIOS) is not None or _has_window(keys, number)
        return Layer(k_width, 0 if _MLA_TENSOR in names else v_width, is_windowed, index_width, n_pooled)
    if keys.value(_RATIOS) is None:
        is_windowed = _has_window(keys, number)
        return Layer(k_width, 0 if _MLA_TENSOR in names else v_width, is_windowed, index_width, n_pooled)
    ratio = max(1, keys.at(_RATIOS, number))
    state_bytes = 4 * _compressor_elements(ratio, k_width, index_width) if ratio > 1 else 0
    return Layer(k_width, 0, True, index_width, ratio=ratio, state_bytes=state_bytes)


def _kv_widths(keys: Keys, number: int) -> tuple[int, int]:
    n_head = keys.at("attention.head_count", number, 1)
    n_head_kv = keys.at("attention.head_count_kv", number, n_head)
    width = keys.number("embedding_length") // max(1, n_head)
    widths = [keys.number(f"attention.{x}_length", width) for x in ("key", "value")]
    if _has_window(keys, number):  # heads may have another size here
        widths = [keys.number(f"attention.{x}_length_swa", w) for x, w in zip(("key", "value"), widths, strict=True)]
    return n_head_kv * widths[0], n_head_kv * widths[1]


def _has_window(keys: Keys, number: int) -> bool:
    if not keys.number("attention.sliding_window"):
        return False
    of_head = number - keys.number("block_count") + keys.number("nextn_predict_layers")
    unsaid = keys.at(_WINDOWS, of_head) if keys.architecture in _HEADS_LIKE_FIRST_LAYERS else 0
    if keys.architecture in _HEADS_WITH_WINDOWS and of_head >= 0:
        return True
    return bool(keys.at(_WINDOWS, number, unsaid))


def _state_elements(keys: Keys, number: int) -> int:
    """Elements of a recurrent layer's state, and of the inputs that its convolution still needs."""
    n_taps = max(0, keys.number("ssm.conv_kernel") - 1)
    if width := keys.number("kda.head_dim"):
        n_head = keys.at("attention.head_count", number, 1)
        return n_head * width * width + 3 * n_taps * n_head * width
    n_inner, n_state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    return n_state * n_inner + n_taps * (n_inner + 2 * keys.number("ssm.group_count") * n_state)


def _ngram_elements(keys: Keys) -> int:
    """Inputs that the convolution after a table of n-grams still needs, of all streams of hidden states."""
    n_positions = max(0, keys.number("ple.conv_kernel") - 1) * keys.number("ple.ngram_size")
    return n_positions * keys.number("hyper_connection.count") * keys.number("embedding_length")


def _compressor_elements(ratio: int, k_width: int, index_width: int) -> int:
    """Elements of a layer with compressed keys: sums and weights of the cells that are not complete yet."""
    if not index_width:
        return 2 * ratio * k_width
    return 2 * (2 * ratio) * 2 * (k_width + index_width)  # windows that overlap by half


def _row_elements(keys: Keys, number: int) -> int:
    n_embd = keys.number("embedding_length")
    n_head = keys.at("attention.head_count", number, 1)
    attention = n_head * (keys.number("attention.key_length") + keys.number("attention.value_length"))
    dense = 3 * keys.at("feed_forward_length", number)
    routed = keys.number("expert_used_count") * (2 * keys.number("expert_feed_forward_length") + n_embd)
    n_streams = keys.number("hyper_connection.count", 1)
    return 3 * n_embd * n_streams + max(attention + sum(_kv_widths(keys, number)), dense, routed)
