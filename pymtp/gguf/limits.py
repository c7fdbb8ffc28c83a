"""Numbers of a model's metadata that cannot be meant, found before anything is built from them.

Tables of rules by key (without the architecture's prefix), each with its reason: llama.cpp divides by some numbers,
makes graphs and caches of the size of others, and checks neither. What only a graph shows is checked there:
native/src/engine/mtp-graph-check.cpp. Knows keys and numbers; reads no file itself.
"""

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

MAX_LAYERS = 512
"""LLAMA_MAX_LAYERS of the pinned llama.cpp; MTP heads are layers too."""


class Range(NamedTuple):
    """The least and the greatest number that a key may have, why, and in which architectures."""

    least: int
    most: int
    reason: str
    architectures: frozenset[str] | None = None
    """None: in all."""


_DELTA_NETS = frozenset({"qwen35", "qwen35moe", "qwen3next"})
_INDEXED, _INDEX_TYPES = frozenset({"glm-dsa"}), "attention.indexer.types"
_SHARE_KV = frozenset({"gemma3n", "gemma4"})
"""Layers read the cache of others. Elsewhere a layer without K/V heads is one without attention."""

RANGES = {
    "block_count": Range(0, MAX_LAYERS, f"llama.cpp takes at most {MAX_LAYERS} layers"),
    "full_attention_interval": Range(1, MAX_LAYERS, "the numbers of the layers are divided by it"),
    "attention.head_count_kv": Range(1, 1024, "the heads are divided by it", _SHARE_KV),
    "attention.output_group_count": Range(1, 1024, "the heads are divided by it"),
    **{
        f"attention.{which}_length{kind}": Range(0, 8192, "the cache holds so many numbers for each head")
        for which in ("key", "value")
        for kind in ("", "_swa", "_mla", "_mla_swa")
    },
    "num_loops": Range(1, MAX_LAYERS, "llama.cpp counts the layers once for each loop"),
    "hyper_connection.count": Range(1, 64, "it multiplies the width of a row"),
    "hyper_connection.sinkhorn_iterations": Range(0, 256, "the graph of every layer repeats them"),
    "ssm.conv_kernel": Range(1, 256, "states hold so many rows, less one"),
}

AT_MOST = {  # in no layer above another key's number, and why
    "nextn_predict_layers": ("block_count", "heads are layers too"),
    "attention.shared_kv_layers": ("block_count", "they are layers"),
    "attention.head_count_kv": ("attention.head_count", "the cache would hold more heads than there are"),
}


def metadata_problem(architecture: str, numbers: Callable[[str], list[int]]) -> str | None:
    """What is wrong with the numbers of a model of `architecture`, in words that name the key; None if nothing is.

    numbers: the numbers of a key, one for each layer if they differ by layer; none if there is no such key.
    """
    for key, bound in RANGES.items():
        applies = bound.architectures is None or architecture in bound.architectures
        for number in numbers(key) if applies else ():
            if not bound.least <= number <= bound.most:
                return f"{key} is {number}, not {bound.least} to {bound.most}: {bound.reason}"
    for key, (other, reason) in AT_MOST.items():
        for number, limit in _pairs(numbers(key), numbers(other) or [0]):
            if not 0 <= number <= limit:
                return f"{key} is {number}, {other} is {limit}: {reason}"
    if architecture in _DELTA_NETS:
        factors = _pairs(numbers("ssm.time_step_rank"), numbers("ssm.state_size"))
        for inner, (rank, size) in _pairs(numbers("ssm.inner_size"), factors):
            if inner != rank * size:
                what = f"ssm.inner_size is {inner}, ssm.time_step_rank times ssm.state_size is {rank * size}"
                return f"{what}: states of that size do not fit the tensors"
    return None


def index_problem(architecture: str, numbers: Callable[[str], list[int]], n_layer: int, tensors: Container[str]) -> str:
    """Why layers cannot find the positions that they attend to (GLM-5); "" if they can.

    Those of type 1 have an index of their own, which llama.cpp reads without looking whether it is there; others share
    that of a layer before them. tensors: the names of all.
    """
    if architecture not in _INDEXED:
        return ""
    types = numbers(_INDEX_TYPES)
    if not types:  # as llama.cpp fills them in, by the version of the model
        is_old = max(numbers("context_length"), default=0) < 2**20
        types = [int(is_old or i < 3 or i % 4 == 2) for i in range(n_layer)]
    for i, kind in enumerate(_of_layers(types, n_layer)[:n_layer]):
        if i == 0 and not kind:
            return f"{_INDEX_TYPES} is 0 in the first layer, which has none before it whose index it could share"
        if kind and f"blk.{i}.indexer.attn_k.weight" not in tensors:
            return f"{_INDEX_TYPES} is {kind} in layer {i}, for which the file has no index"
    return ""


def _pairs(numbers: Sequence[int], others: Sequence[T]) -> list[tuple[int, T]]:
    """Numbers of the same layers. A single number is that of all layers."""
    n = max(len(numbers), len(others)) if numbers and others else 0
    return list(zip(_of_layers(numbers, n), _of_layers(others, n), strict=False))


def _of_layers(values: Sequence[T], n: int) -> Sequence[T]:
    return [*values] * n if len(values) == 1 else values
