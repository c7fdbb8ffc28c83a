"""The weights that a pass reads: of the trunk for one token, and of each head for one draft token.

Reads headers only, never a weight.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pymtp.gguf.header import TensorInfo
from pymtp.gguf.model_file import ModelFile, tensors_by_layer
from pymtp.gguf.types import TENSOR_TYPES

_NOT_READ = {"output.weight", "token_embd.weight", "per_layer_token_embd.weight"}
"""Tensors outside of layers of which a token reads a row, or that output_of names."""


class Head:
    """One MTP head whose tensors are in the file."""

    def __init__(self, model: ModelFile, layer: int, own: Mapping[str, TensorInfo], output: list[TensorInfo]) -> None:
        """`own`: its tensors; `output`: the matrix that scores the vocabulary, unless it has one itself."""
        self.layer = layer
        """Its block number, as in the names of its tensors."""
        self.n_parameters = sum(tensor.n_elements for tensor in own.values())
        self.size_bytes = sum(tensor.size_bytes for tensor in own.values())
        self.tensor_types = tuple(bytes_by_type(tensor for tensor in own.values() if len(tensor.shape) > 1))
        """Types of its matrices, the one with the most bytes first."""
        has_output = "nextn.shared_head_head.weight" in own
        self.lm_head: Literal["own", "shared"] = "own" if has_output else "shared"
        """Whose output matrix scores the vocabulary: its own, or the trunk's."""
        read = [tensor for name, tensor in own.items() if name != "nextn.embed_tokens.weight"]
        self.pass_bytes = _pass_bytes(model, read if has_output else [*read, *output])
        """Weights that one draft token reads, output matrix included."""
        self.tensors = [
            {"name": each.name, "type": type_name(each), "shape": each.shape, "size_bytes": each.size_bytes}
            for each in own.values()
        ]
        """Shapes: the fastest dimension first."""


def heads_of(model: ModelFile, trunk: ModelFile | None = None) -> tuple[Head, ...]:
    """The heads of a model, or in a file of their own; `trunk` has the output matrix that such a file may leave out."""
    layers = tensors_by_layer(model.tensors.values())
    output = output_of(model) or output_of(trunk or model)
    return tuple(Head(model, layer, layers[layer], output) for layer in model.head_layers)


def trunk_pass_bytes(model: ModelFile) -> int | None:
    """Weights that the trunk reads for one token; None if the file has no trunk."""
    layers = tensors_by_layer(model.tensors.values())
    outside = [tensor for name, tensor in layers.get(-1, {}).items() if name not in _NOT_READ]
    trunk = [tensor for layer in range(model.n_layer) for tensor in layers.get(layer, {}).values()]
    return _pass_bytes(model, [*trunk * model.n_loops, *outside, *output_of(model)]) if trunk else None


def draft_cost(heads: Sequence[Head], trunk_bytes: int) -> float | None:
    """Weights that a draft pass reads, as a share of those of a trunk pass; the mean of the heads."""
    return sum(head.pass_bytes for head in heads) / len(heads) / trunk_bytes if heads and trunk_bytes else None


def output_of(model: ModelFile) -> list[TensorInfo]:
    """The trunk's output matrix; the token embedding if there is no other; [] if the file has neither."""
    names = [name for name in ("output.weight", "token_embd.weight") if name in model.tensors]
    return [model.tensors[name] for name in names[:1]]


def bytes_by_type(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    """Bytes of each type, the largest first."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[type_name(tensor)] += tensor.size_bytes
    return dict(sizes.most_common())


def type_name(tensor: TensorInfo) -> str:
    known = TENSOR_TYPES.get(tensor.type_id)
    return known.name if known else f"type {tensor.type_id}"


def _pass_bytes(model: ModelFile, tensors: Iterable[TensorInfo]) -> int:
    """Bytes of weights that one token reads: of routed experts, only those that it is sent to."""

    def share(name: str) -> float:
        experts = "attention.value_expert" if "attn_v_exps." in name else "expert"
        n = model.count(f"{experts}_count") if "_exps." in name else 0
        return model.count(f"{experts}_used_count") / n if n else 1.0

    return round(sum(tensor.size_bytes * share(tensor.name) for tensor in tensors))
