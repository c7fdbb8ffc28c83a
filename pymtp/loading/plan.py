"""Where the parts of a model go with given parameters, and what each device needs for that.

Owns llama.cpp's rules: which layer goes to which device, which tensor stays elsewhere. Asks no device: knows what is
free on each.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pymtp.gguf.demand import Demand
from pymtp.gguf.model_file import LAYER_TENSOR
from pymtp.loading.params import ModelParams

EXPERTS = r"\.ffn_[a-z_]+_(ch)?exps"
"""Tensors that hold one matrix for each expert, as llama.cpp calls them."""
EMBEDDING = "token_embd.weight"
_INPUTS = ("token_embd", "token_types", "position_embd", "per_layer_token_embd")


@dataclass(frozen=True)
class Spot:
    """A device, or the host: where tensors can be."""

    name: str
    description: str
    free_bytes: int | None
    """None: it does not say."""
    buffer: Any
    """Its buffer type, as llama.cpp's handle or any object that stands for it."""
    is_remote: bool = False
    """Of an RPC server."""
    copies_weights: bool = False
    """Whether it computes prompts with weights that are on the host, which it copies for that."""


@dataclass(frozen=True)
class Place:
    """A device, what goes there, and how many bytes that takes."""

    spot: Spot
    layers: tuple[int, ...] = ()
    """Of the trunk and of the heads; a layer's cache goes with it."""
    has_output: bool = False
    has_embedding: bool = False
    weight_bytes: int = 0
    expert_bytes: int = 0
    """The part of the weights that is routed experts'."""
    expert_layers: tuple[int, ...] = ()
    """Layers whose routed experts are here, all of them or some."""
    cache_bytes: int = 0
    compute_bytes: int = 0
    """What passes compute in; a rough figure."""

    @property
    def needed_bytes(self) -> int:
        """The sum."""
        return self.weight_bytes + self.cache_bytes + self.compute_bytes


Overrides = Sequence[tuple[str, Any]]
"""Patterns of tensors' names, and the buffer types that these go to; the first that matches counts."""


@dataclass
class _Sums:
    layers: list[int] = field(default_factory=list)
    experts: set[int] = field(default_factory=set)
    weights: int = 0
    expert_weights: int = 0
    cache: int = 0


def places(
    params: ModelParams, overrides: Overrides, demand: Demand, devices: Sequence[Spot], host: Spot
) -> list[Place]:
    """The devices in their order, and the host last. `devices`: those that take layers."""
    owners = layer_owners(params, demand.n_layer, demand.n_layer_all, devices)
    spots = [*devices, host]
    by_buffer = {spot.buffer: i for i, spot in reversed([*enumerate(devices)])} | {host.buffer: len(devices)}
    sums = [_Sums() for _ in spots]
    compiled = [(re.compile(pattern), by_buffer.get(buffer, len(devices))) for pattern, buffer in overrides]
    copied = 0  # a weight at a time
    embedding = set()
    for name, size, layer in _tensors(demand):
        forced = next((spot for pattern, spot in compiled if pattern.search(name)), None)
        # a second copy, which is the output matrix, goes where that does
        natural = len(devices) if layer is None else owners[min(layer, demand.n_layer_all)]
        at = natural if forced is None else forced
        if name == EMBEDDING and layer is None:
            embedding.add(at)
        elif name == EMBEDDING and at in embedding:
            continue
        sums[at].weights += size
        if re.search(EXPERTS, name):
            sums[at].expert_weights += size
            sums[at].experts.add(layer or 0)
        if at == len(devices) and layer is not None:
            copied = max(copied, size)
    for layer, size in enumerate(demand.layer_bytes):
        sums[owners[layer]].cache += size
        sums[owners[layer]].layers.append(layer)
    output = owners[demand.n_layer_all]
    computing = {owners[layer] for layer in range(demand.n_layer_all)} | {output}

    def compute_bytes(i: int) -> int:
        found = demand.compute_bytes if i in computing else 0
        if i == output:
            found += demand.kept_bytes
        if i < len(devices):
            found += demand.assistant_bytes * (not spots[i].is_remote)
            # the first one that can, for all of them
            found += copied if spots[i].copies_weights and i == 0 else 0
        return found

    return [
        Place(
            spot,
            layers=tuple(each.layers),
            has_output=i == output,
            has_embedding=i in embedding,
            weight_bytes=each.weights,
            expert_bytes=each.expert_weights,
            expert_layers=tuple(sorted(each.experts)),
            cache_bytes=each.cache,
            compute_bytes=compute_bytes(i),
        )
        for i, (spot, each) in enumerate(zip(spots, sums, strict=True))
    ]


def layer_owners(params: ModelParams, n_layer: int, n_layer_all: int, devices: Sequence[Spot]) -> list[int]:
    """The index of the device of each layer, and last of the output; len(devices): the host.

    Heads count where the output does: a draft stays on one device (mtp-remote.h).
    """
    host = len(devices)
    n_asked = n_layer_all + 1 if params.n_gpu_layers < 0 else min(params.n_gpu_layers, n_layer_all + 1)
    first = n_layer_all + 1 - n_asked
    n = n_asked if devices else 0
    if devices and devices[-1].is_remote:  # heads and output stay here: see mtp-remote.h
        n = max(0, min(n_layer - first, n))
    shares = [*params.tensor_split, *[0.0] * (host - len(params.tensor_split))][:host]
    if not any(shares):
        shares = [float(spot.free_bytes or 0) for spot in devices]
    ends = split_points(shares)
    return [
        bisect_right(ends, _float32(((layer if layer < n_layer else n_layer_all) - first) / n))
        if first <= layer < first + n
        else host
        for layer in range(n_layer_all + 1)
    ]


def split_points(shares: Sequence[float]) -> list[float]:
    """Where each share ends, the last at 1, in the arithmetic of llama.cpp."""
    ends, total = [], 0.0
    for share in shares:
        total = _float32(total + _float32(share))
        ends.append(total)
    return [_float32(end / total) if total else 1.0 for end in ends]


def _float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def _tensors(demand: Demand) -> list[tuple[str, int, int | None]]:
    """Name, bytes and layer of each; the output's is the one after the last; None: an input."""
    found: list[tuple[str, int, int | None]] = []
    for name, size in demand.tensors.items():
        match = LAYER_TENSOR.fullmatch(name)
        is_input = name.startswith(_INPUTS)
        found.append((name, size, int(match[1]) if match else None if is_input else demand.n_layer_all))
    if not demand.has_output and EMBEDDING in demand.tensors:
        found.append((EMBEDDING, demand.tensors[EMBEDDING], demand.n_layer_all))
    return found
