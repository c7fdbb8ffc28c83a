"""Everything that a GGUF says about drafting with the model in it: heads, their cost, memory, tokens.

Owns the reading of tensor names and metadata for `pymtp inspect`. Reads headers only, never a weight, and needs no
native library; what loading needs is in facts.py.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pymtp.errors import PymtpError
from pymtp.gguf.architectures import Needs, head_obstacle
from pymtp.gguf.facts import GgufInfo, facts_of, file_facts
from pymtp.gguf.header import ArrayLength, TensorInfo, Value, read_array
from pymtp.gguf.limits import MAX_LAYERS
from pymtp.gguf.memory import Layer, MemoryEstimate, MemoryKind, Shape, estimate_memory
from pymtp.gguf.model_file import LAYER_TENSOR, ModelFile
from pymtp.gguf.shards import Shard, tensor_bytes
from pymtp.gguf.types import TENSOR_TYPES
from pymtp.text.thinking import TAGS

# Whose heads attend as the first layers do where the file does not say how (see native/src/heads/head-graph.h), and
# whose all attend to a window.
_HEADS_LIKE_FIRST_LAYERS = frozenset({"exaone4", "exaone-moe"})
_HEADS_WITH_WINDOWS = frozenset({"dots3note"})

_SIDE_FILES = "mtp-*.gguf"
_HEAD_TENSOR = "nextn.eh_proj.weight"
_MLA_TENSOR = "attn_kv_a_mqa.weight"
_INDEX_TENSOR = "indexer.proj.weight"
_K_TENSORS = ("attn_k.weight", "attn_qkv.weight", "attn_kv.weight", _MLA_TENSOR)
_STATE_TENSORS = ("ssm_a", "ssm_conv1d.weight")
_RATIOS = "attention.compress_ratios"
_WINDOWS = "attention.sliding_window_pattern"
_CONTROL = 3  # a token type: not text


@dataclass(frozen=True)
class Head:
    """One MTP head whose tensors are in the file."""

    layer: int
    """Its block number, as in the names of its tensors."""
    n_parameters: int
    size_bytes: int
    tensor_types: tuple[str, ...]
    """Types of its matrices, the one with the most bytes first."""
    lm_head: Literal["own", "shared"]
    """Whose output matrix scores the vocabulary: its own, or the trunk's."""
    pass_bytes: int
    """Weights that one draft token reads, output matrix included."""


@dataclass(frozen=True)
class Token:
    """A token with a special role."""

    role: str
    id: int
    text: str


@dataclass(frozen=True)
class SideFile:
    """A GGUF of MTP heads next to the model, named mtp-*.gguf. `problem`: why it could not be read, else ""."""

    path: Path
    architecture: str
    quantization: str | None
    size_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Inspection:
    """What a model file shows without being loaded."""

    info: GgufInfo
    n_files: int
    """Parts of a split model; 1 if it is not split."""
    n_experts: int
    n_experts_used: int
    tensor_types: dict[str, int]
    """Bytes of each type, the largest first."""
    has_trunk: bool
    """False for a side file, which has only the heads."""
    heads: tuple[Head, ...]
    obstacle: str
    """Why the model cannot draft with its own heads, or ""."""
    mtp_context: Literal["chained", "target"]
    """What the rows of the heads read by default: see Model."""
    trunk_pass_bytes: int
    """Weights that the trunk reads for one token."""
    memory_kind: MemoryKind
    shares_cache: bool
    """Whether the heads' K/V lies in the cells of the trunk's cache."""
    memory: MemoryEstimate | None
    """None for a side file."""
    special_tokens: tuple[Token, ...]
    thinking_tokens: tuple[Token, ...]
    """The tokens that open and close the model's thinking, if the vocabulary has them."""
    n_control_tokens: int
    side_files: tuple[SideFile, ...]

    @property
    def draft_cost(self) -> float | None:
        """Weights that a draft pass reads, as a share of those of a trunk pass; the mean of the heads."""
        if not self.heads or not self.trunk_pass_bytes:
            return None
        return sum(head.pass_bytes for head in self.heads) / len(self.heads) / self.trunk_pass_bytes


def inspect_model(
    path: str | os.PathLike[str],
    *,
    n_ctx: int | None = None,
    n_ubatch: int = 512,
    draft_max: int = 3,
    type_k: str = "f16",
    type_v: str = "f16",
) -> Inspection:
    """Inspect the GGUF at `path`; memory is estimated for a context with these parameters.

    `n_ctx` in tokens; None: Model's default, 0: as the model was trained. Raises ModelError as `file_facts` does.
    """
    model = ModelFile(Path(path))
    info, shards = facts_of(model), model.shards
    tensors = _Tensors(info, shards)
    keys = _Keys(info.architecture, shards[0])
    has_trunk = bool(tensors.of_layers(range(info.n_layer)))
    shape = _shape(info, keys, tensors)
    heads = tuple(_head(tensors, keys, layer) for layer in tensors.head_layers)
    memory = estimate_memory(
        shape,
        n_ctx=info.n_ctx_default if n_ctx is None else n_ctx or info.n_ctx_train,
        n_ubatch=n_ubatch,
        draft_max=draft_max if heads else 0,
        type_k=type_k,
        type_v=type_v,
    )
    tokens = _TokenTable(keys)
    return Inspection(
        info=info,
        n_files=len(shards),
        n_experts=keys.number("expert_count"),
        n_experts_used=keys.number("expert_used_count"),
        tensor_types=_bytes_by_type(tensors.all),
        has_trunk=has_trunk,
        heads=heads,
        obstacle=_obstacle(info, has_trunk, keys, tensors),
        mtp_context="chained" if len(heads) > 1 else "target",
        trunk_pass_bytes=_pass_bytes(tensors.trunk(), keys) if has_trunk else 0,
        memory_kind=shape.kind,
        shares_cache=shape.is_shared,
        memory=memory if has_trunk else None,
        special_tokens=tokens.special(),
        thinking_tokens=tokens.thinking(),
        n_control_tokens=tokens.n_control,
        side_files=_side_files(info.path),
    )


def _obstacle(info: GgufInfo, has_trunk: bool, keys: _Keys, tensors: _Tensors) -> str:
    if info.is_assistant:
        return "an assistant: it drafts for another model, whose cache it reads"
    if not has_trunk:
        return "a side file: it holds MTP heads without a trunk"
    if info.n_heads_declared == 0:
        return "the metadata names no MTP heads (nextn_predict_layers = 0)"
    if not info.has_heads:
        return f"the metadata names {info.n_heads_declared} MTP heads, the file holds the tensors of {info.n_heads}"
    if reason := head_obstacle(info.architecture, info.n_heads_declared, _meets(keys, tensors)):
        return f"the pinned llama.cpp cannot run the MTP heads of this {info.architecture} model ({reason})"
    return ""


def _meets(keys: _Keys, tensors: _Tensors) -> Needs:
    """The needs of heads' graphs that the model meets."""
    met = {
        Needs.LORA_Q: keys.number("attention.q_lora_rank") > 0,
        Needs.MLA: keys.number("attention.key_length_mla") > 0 and keys.number("attention.value_length_mla") > 0,
    }
    return Needs(sum(need.value for need, is_met in met.items() if is_met))


class _Keys:
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


class _Tensors:
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
        """What the trunk reads for a token, without the one row of the token embedding."""
        apart = {"output.weight", "token_embd.weight"}
        others = [tensor for name, tensor in self._outside.items() if name not in apart]
        return [*self.of_layers(range(self._n_layer)), *others, *self.output()]


def _head(tensors: _Tensors, keys: _Keys, layer: int) -> Head:
    own = tensors.layer(layer)
    lm_head = own.get("nextn.shared_head_head.weight")
    read = [tensor for name, tensor in own.items() if name != "nextn.embed_tokens.weight"]
    return Head(
        layer=layer,
        n_parameters=sum(tensor.n_elements for tensor in own.values()),
        size_bytes=sum(map(tensor_bytes, own.values())),
        tensor_types=tuple(_bytes_by_type(tensor for tensor in own.values() if len(tensor.shape) > 1)),
        lm_head="own" if lm_head else "shared",
        pass_bytes=_pass_bytes(read if lm_head else [*read, *tensors.output()], keys),
    )


def _pass_bytes(tensors: Sequence[TensorInfo], keys: _Keys) -> int:
    """Bytes of weights that one token reads: of routed experts, only those that it is sent to."""
    n_experts, n_used = keys.number("expert_count"), keys.number("expert_used_count")
    share = n_used / n_experts if n_experts else 1.0
    routed = sum(tensor_bytes(tensor) for tensor in tensors if "_exps." in tensor.name)
    return sum(map(tensor_bytes, tensors)) - routed + round(routed * share)


def _bytes_by_type(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[_type_name(tensor.type_id)] += tensor_bytes(tensor)
    return dict(sizes.most_common())


def _type_name(type_id: int) -> str:
    known = TENSOR_TYPES.get(type_id)
    return known.name if known else f"type {type_id}"


def _shape(info: GgufInfo, keys: _Keys, tensors: _Tensors) -> Shape:
    numbers = [*range(info.n_layer), *tensors.head_layers]
    layers = [_layer(keys, number, tensors.layer(number)) for number in numbers]
    return Shape(
        trunk=tuple(layers[: info.n_layer]),
        heads=tuple(layers[info.n_layer :]),
        n_window=keys.number("attention.sliding_window"),
        n_vocab=info.n_vocab,
        row_elements=max((_row_elements(keys, number) for number in numbers), default=0),
    )


def _layer(keys: _Keys, number: int, names: Container[str]) -> Layer:
    if any(name in names for name in _STATE_TENSORS):
        return Layer(state_bytes=4 * _state_elements(keys, number))
    reads_earlier = number >= keys.number("block_count") - keys.number("attention.shared_kv_layers")
    if reads_earlier or not any(name in names for name in _K_TENSORS):
        return Layer()
    k_width, v_width = _kv_widths(keys, number)
    if _HEAD_TENSOR in names:  # whatever the trunk has, a head attends to K and V of its window or of all positions
        is_windowed = keys.value(_RATIOS) is not None or _has_window(keys, number)
        return Layer(k_width, 0 if _MLA_TENSOR in names else v_width, is_windowed)
    index_width = keys.number("attention.indexer.key_length") if _INDEX_TENSOR in names else 0
    if keys.value(_RATIOS) is None:
        return Layer(k_width, 0 if _MLA_TENSOR in names else v_width, _has_window(keys, number), index_width)
    ratio = max(1, keys.at(_RATIOS, number))
    state_bytes = 4 * _compressor_elements(ratio, k_width, index_width) if ratio > 1 else 0
    return Layer(k_width, 0, True, index_width, ratio, state_bytes)


def _kv_widths(keys: _Keys, number: int) -> tuple[int, int]:
    n_head = keys.at("attention.head_count", number, 1)
    n_head_kv = keys.at("attention.head_count_kv", number, n_head)
    width = keys.number("embedding_length") // max(1, n_head)
    widths = [keys.number(f"attention.{x}_length", width) for x in ("key", "value")]
    if _has_window(keys, number):  # heads may have another size here
        widths = [keys.number(f"attention.{x}_length_swa", w) for x, w in zip(("key", "value"), widths, strict=True)]
    return n_head_kv * widths[0], n_head_kv * widths[1]


def _has_window(keys: _Keys, number: int) -> bool:
    if not keys.number("attention.sliding_window"):
        return False
    of_head = number - keys.number("block_count") + keys.number("nextn_predict_layers")
    unsaid = keys.at(_WINDOWS, of_head) if keys.architecture in _HEADS_LIKE_FIRST_LAYERS else 0
    if keys.architecture in _HEADS_WITH_WINDOWS and of_head >= 0:
        return True
    return bool(keys.at(_WINDOWS, number, unsaid))


def _state_elements(keys: _Keys, number: int) -> int:
    """Elements of a recurrent layer's state, and of the inputs that its convolution still needs."""
    n_taps = max(0, keys.number("ssm.conv_kernel") - 1)
    if width := keys.number("kda.head_dim"):
        n_head = keys.at("attention.head_count", number, 1)
        return n_head * width * width + 3 * n_taps * n_head * width
    n_inner, n_state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    return n_state * n_inner + n_taps * (n_inner + 2 * keys.number("ssm.group_count") * n_state)


def _compressor_elements(ratio: int, k_width: int, index_width: int) -> int:
    """Elements of a layer with compressed keys: sums and weights of the cells that are not complete yet."""
    if not index_width:
        return 2 * ratio * k_width
    return 2 * (2 * ratio) * 2 * (k_width + index_width)  # windows that overlap by half


def _row_elements(keys: _Keys, number: int) -> int:
    n_embd = keys.number("embedding_length")
    n_head = keys.at("attention.head_count", number, 1)
    attention = n_head * (keys.number("attention.key_length") + keys.number("attention.value_length"))
    dense = 3 * keys.at("feed_forward_length", number)
    routed = keys.number("expert_used_count") * (2 * keys.number("expert_feed_forward_length") + n_embd)
    n_streams = keys.number("hyper_connection.count", 1)
    return 3 * n_embd * n_streams + max(attention + sum(_kv_widths(keys, number)), dense, routed)


class _TokenTable:
    """Special and thinking tokens of the vocabulary."""

    def __init__(self, keys: _Keys) -> None:
        self._keys = keys
        self._texts = keys.texts("tokenizer.ggml.tokens")
        self.n_control = keys.numbers("tokenizer.ggml.token_type", len(self._texts)).count(_CONTROL)

    def special(self) -> tuple[Token, ...]:
        """The tokens that the metadata names, such as bos and eos."""
        pattern = re.compile(r"tokenizer\.ggml\.(\w+)_token_id")
        found = [(pattern.fullmatch(key), value) for key, value in self._keys.metadata.items()]
        return tuple(
            Token(match[1], value, str(self._texts[value]))
            for match, value in found
            if match and isinstance(value, int) and 0 <= value < len(self._texts)
        )

    def thinking(self) -> tuple[Token, ...]:
        ids = {text: i for i, text in enumerate(self._texts)}
        return tuple(
            Token(role, ids[text], text)
            for opening, closing in TAGS
            if opening in ids and closing in ids
            for role, text in (("open", opening), ("close", closing))
        )


def _side_files(path: Path) -> tuple[SideFile, ...]:
    found = sorted(file for file in path.parent.glob(_SIDE_FILES) if file.name != path.name)
    return tuple(map(_side_file, found))


def _side_file(path: Path) -> SideFile:
    try:
        info = file_facts(path)
    except PymtpError as error:
        return SideFile(path, "", None, 0, problem=str(error))
    return SideFile(path, info.architecture, info.quantization, info.size_bytes)
