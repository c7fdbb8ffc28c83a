"""Interprets the headers of a model's files: architecture, layers, MTP heads.

Owns the names of metadata keys and tensors. Knows one model at a time; side_files.py checks whether heads in a separate
file fit a model.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

from pymtp.errors import ModelError, require
from pymtp.gguf.header import ArrayLength, Shard, TensorInfo, Value, read_numbers
from pymtp.gguf.limits import MAX_LAYERS, index_problem, metadata_problem
from pymtp.gguf.shards import read_shards
from pymtp.text.files import StrPath

DRAFT_TOKENS = "d2t"
"""The tensor that says which tokens the rows of a trimmed output matrix stand for ("draft to target")."""
TRAINED_FOR = "pymtp.head.trunk"
"""The key of heads in pymtp's own form, which were trained for a model that has none: its `trunk_id`."""
LAYER_TENSOR = re.compile(r"blk\.(\d{1,9})\.(.+)")
"""The name of a layer's tensor: its number, and the part after it."""


def layer_of(name: str) -> int | None:
    """The number of the layer that a tensor belongs to; None: it is outside of layers."""
    match = LAYER_TENSOR.fullmatch(name)
    return int(match[1]) if match else None


def tensors_by_layer(tensors: Iterable[TensorInfo]) -> dict[int, dict[str, TensorInfo]]:
    """Tensors by layer, and there by the part of their names after its number; -1: those outside of layers."""
    found: dict[int, dict[str, TensorInfo]] = {}
    for tensor in tensors:
        match = LAYER_TENSOR.fullmatch(tensor.name)
        layer, name = (int(match[1]), match[2]) if match else (-1, tensor.name)
        found.setdefault(layer, {})[name] = tensor
    return found


def read_model(path: StrPath, metadata: Mapping[str, Value] | None = None) -> "ModelFile":
    """The GGUF at `path`, with `metadata` in the place of its own; a ModelFile is what was read before.

    Raises InvalidParameter for metadata of another type than the file's.
    """
    if isinstance(path, ModelFile) and (not metadata or path.replaced == metadata):
        return path
    return ModelFile(Path(path), metadata)


class ModelFile:
    """The model in the GGUF at `path`, or the heads of one, whose headers are read once.

    Stands for its path wherever a path is asked for. Raises ModelError as `read_shards` does.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Value] | None = None) -> None:
        self.path = path
        self.shards: list[Shard] = read_shards(path)
        self.replaced = metadata or {}
        """What stands in the place of the file's own metadata."""
        own = self.shards[0].metadata
        for key, value in self.replaced.items():
            here = own.get(key, value)
            require(not isinstance(here, ArrayLength), "override_kv", f"left out for {key}, an array", value)
            require(type(here) is type(value), "override_kv", f"{type(here).__name__} for {key}, as in the file", value)
        self.metadata: dict[str, Value] = {**own, **self.replaced}
        self._by_layer: dict[str, list[int | float]] = {}
        self.tensors: dict[str, TensorInfo] = {tensor.name: tensor for shard in self.shards for tensor in shard.tensors}
        kind = self.text("general.type") or "model"
        if kind != "model":
            raise ModelError(f"{path} holds a GGUF of type {kind!r}, not a model; name the model's own file")
        self.architecture = self.text("general.architecture") or self._damaged("no general.architecture")
        self.n_heads_declared = self.number("nextn_predict_layers")
        self.n_layer = self.number("block_count") - self.n_heads_declared
        self._check_numbers()
        self.n_vocab = self.length("tokenizer.ggml.tokens")
        self.n_loops = self.count("num_loops", default=1)
        """How often a pass goes through the layers of the target, each time with K/V of its own."""
        self.n_layers_read = self.length(f"{self.architecture}.target_layers")
        """Layers of another model from whose hidden states this one drafts, as EAGLE-3 and DFlash do; else 0."""
        self.is_trained = TRAINED_FOR in self.metadata
        """Whether the head is in pymtp's own form, which drafts for any architecture."""
        has_target = self.n_layer > 0 and any(name.startswith("blk.0.") for name in self.tensors)
        self.is_heads_alone = self.n_heads_declared > 0 and not has_target
        """Whether the layers of the target are in another file."""
        tokens = self.tensors.get(DRAFT_TOKENS)
        self.n_draft_vocab = tokens.n_elements if tokens else None
        """Tokens that these heads draft, if their output matrices have rows for a part of the vocabulary only."""
        # the heads of every family combine token embedding and hidden state with an eh_proj matrix
        layers = range(self.n_layer, self.n_layer + self.n_heads_declared)
        self.head_layers = [layer for layer in layers if f"blk.{layer}.nextn.eh_proj.weight" in self.tensors]
        """The layers that are heads and whose tensors are in the file."""
        self.n_heads = len(self.head_layers)
        self.is_assistant = self.architecture.endswith("-assistant")
        """Whether this is a small model that drafts for another and reads its cache, as Gemma-4's assistants do."""
        if self.is_assistant:  # all its layers together count as one head
            self.n_heads_declared = min(1, self.n_heads_declared)
            self.n_heads = int("nextn.pre_projection.weight" in self.tensors)
        self.head_prefixes = tuple(f"blk.{self.n_layer + i}." for i in range(self.n_heads_declared))

    def __fspath__(self) -> str:
        return str(self.path)

    def is_output(self, name: str) -> bool:
        """Whether a tensor is an output matrix that the heads may use: the model's, or a head's own."""
        own = (f"{prefix}nextn.shared_head_head.weight" for prefix in self.head_prefixes)
        return name in ("output.weight", *own)

    @property
    def trunk_id(self) -> str:
        """Names the trunk by its first norms, which stay F32 in whatever type its matrices are."""
        digest = hashlib.sha256()
        for tensor in sorted(self.tensors.values(), key=attrgetter("name")):
            if len(tensor.shape) == 1 and "norm" in tensor.name and layer_of(tensor.name) in (None, 0):
                with tensor.path.open("rb") as file:
                    file.seek(tensor.offset)
                    digest.update(tensor.name.encode() + file.read(tensor.size_bytes))
        return digest.hexdigest()[:16]

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def value(self, key: str) -> Value | None:
        """The value of a key, given without the architecture's prefix."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str) -> int:
        """The value of a key, given without the architecture's prefix."""
        value = self.value(key) or 0
        return value if isinstance(value, int) else self._damaged(f"{self.architecture}.{key} is not an integer")

    def count(self, key: str, layer: int | None = None, default: int = 0) -> int:
        """The value of a key, of `layer` where it differs by layer; `default` if it is missing or no integer."""
        value: object = self.value(key)
        if layer is not None and isinstance(value, ArrayLength):
            value = dict(enumerate(self.by_layer(key))).get(layer)
        return value if isinstance(value, int) else default

    def by_layer(self, key: str) -> list[int | float]:
        """The values of a key that has one for each layer, given without the architecture's prefix; else []."""
        value = self.value(key)
        if key not in self._by_layer:
            self._by_layer[key] = read_numbers(self.path, value, MAX_LAYERS) if isinstance(value, ArrayLength) else []
        return self._by_layer[key]

    def numbers(self, key: str) -> list[int]:
        """The integers of a key, given without the architecture's prefix: one, or one for each layer."""
        values: Sequence[object] = self.by_layer(key) or [self.value(key)]
        return [each for each in values if isinstance(each, int)]

    def length(self, key: str) -> int:
        value = self.metadata.get(key)
        return value.length if isinstance(value, ArrayLength) else 0

    def _check_numbers(self) -> None:
        """Refuse numbers that no model has, before anything loops over them."""
        if problem := metadata_problem(self.architecture, self.numbers):
            self._damaged(problem)
        held = {int(match[1]) for match in map(LAYER_TENSOR.fullmatch, self.tensors) if match}
        if 0 in held and max(held) < self.n_layer - 1:  # without layer 0 the file holds only heads
            self._damaged(f"it names {self.n_layer} layers, the last tensors are those of layer {max(held)}")
        if 0 in held and (problem := index_problem(self.architecture, self.numbers, self.n_layer, self.tensors)):
            self._damaged(problem)

    def _damaged(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.path} has damaged metadata ({problem}); convert or download it again")
