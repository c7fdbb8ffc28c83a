"""Everything that a GGUF says about drafting with the model in it: heads, their cost, memory, tokens.

Owns the reading of tensor names and metadata for `pymtp inspect`. Reads headers only, never a weight, and needs no
native library; what loading needs is in facts.py.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pymtp.errors import PymtpError
from pymtp.gguf.architectures import Needs, head_obstacle
from pymtp.gguf.facts import GgufInfo, file_facts
from pymtp.gguf.header import TensorInfo
from pymtp.gguf.layers import Keys, Tensors, shape_of
from pymtp.gguf.memory import MemoryEstimate, MemoryKind, estimate_memory
from pymtp.gguf.model_file import read_model
from pymtp.gguf.shards import tensor_bytes
from pymtp.gguf.types import TENSOR_TYPES
from pymtp.text.thinking import TAGS

_SIDE_FILES = "mtp-*.gguf"
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
    model = read_model(path)
    info, shards = file_facts(model), model.shards
    tensors = Tensors(info, shards)
    keys = Keys(info.architecture, shards[0])
    has_trunk = bool(tensors.of_layers(range(info.n_layer)))
    shape = shape_of(info, keys, tensors)
    heads = tuple(_head(tensors, keys, layer) for layer in tensors.head_layers)
    memory = estimate_memory(
        shape,
        n_ctx=info.context_size(n_ctx),
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


def _obstacle(info: GgufInfo, has_trunk: bool, keys: Keys, tensors: Tensors) -> str:
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


def _meets(keys: Keys, tensors: Tensors) -> Needs:
    """The needs of heads' graphs that the model meets."""
    met = {
        Needs.LORA_Q: keys.number("attention.q_lora_rank") > 0,
        Needs.MLA: keys.number("attention.key_length_mla") > 0 and keys.number("attention.value_length_mla") > 0,
    }
    return Needs(sum(need.value for need, is_met in met.items() if is_met))


def _head(tensors: Tensors, keys: Keys, layer: int) -> Head:
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


def _pass_bytes(tensors: Sequence[TensorInfo], keys: Keys) -> int:
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


class _TokenTable:
    """Special and thinking tokens of the vocabulary."""

    def __init__(self, keys: Keys) -> None:
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
