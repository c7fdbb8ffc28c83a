"""Where the parts of a model go with given parameters, and what each device needs for that.

Owns llama.cpp's rules: which layer goes to which device, which tensor stays elsewhere. Asks no device: knows what is
free on each.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from pymtp.gguf.model_file import layer_of
from pymtp.loading.params import ModelParams
from pymtp.placement.weights import Demand

EXPERTS = r"\.ffn_[a-z_]+_(ch)?exps"
"""Tensors that hold one matrix for each expert, as llama.cpp calls them."""
EMBEDDING, EMBEDDING_ALONE = "token_embd.weight", r"^token_embd\.weight$"
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
    """Whether it is a device of an RPC server."""
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


class _Put(NamedTuple):
    name: str
    size_bytes: int
    layer: int | None  # the output's is the one after the last; None: an input
    at: int  # which spot


def places(
    params: ModelParams, overrides: Overrides, demand: Demand, devices: Sequence[Spot], host: Spot
) -> list[Place]:
    """The devices in their order, and the host last. `devices`: those that take layers."""
    owners = layer_owners(params, demand.n_layer, demand.n_layer_all, devices)
    stored = dict(enumerate(demand.context.layer_bytes))
    put = _put(overrides, demand, devices, host, owners)
    on_host = (each.size_bytes for each in put if each.at == len(devices) and each.layer is not None)
    copied_bytes = max(on_host, default=0)  # for prompts, a weight at a time
    found = []
    for i, spot in enumerate([*devices, host]):
        here = [each for each in put if each.at == i]
        experts = [each for each in here if re.search(EXPERTS, each.name)]
        layers = tuple(layer for layer, owner in enumerate(owners[:-1]) if owner == i)
        compute_bytes = demand.context.compute_bytes if i in owners else 0
        compute_bytes += demand.kept_bytes if i == owners[-1] else 0
        compute_bytes += demand.assistant_bytes if spot is not host and not spot.is_remote else 0
        compute_bytes += copied_bytes if i == 0 and spot.copies_weights else 0  # the first one that can, for all
        place = Place(
            spot,
            layers=layers,
            has_output=i == owners[-1],
            has_embedding=any(each.name == EMBEDDING and each.layer is None for each in here),
            weight_bytes=sum(each.size_bytes for each in here),
            expert_bytes=sum(each.size_bytes for each in experts),
            expert_layers=tuple(sorted({each.layer or 0 for each in experts})),
            cache_bytes=sum(stored.get(layer, 0) for layer in layers),
            compute_bytes=compute_bytes,
        )
        found.append(place)
    return found


def _put(
    overrides: Overrides, demand: Demand, devices: Sequence[Spot], host: Spot, owners: Sequence[int]
) -> list[_Put]:
    by_buffer = {spot.buffer: i for i, spot in reversed([*enumerate(devices)])} | {host.buffer: len(devices)}
    patterns = [(re.compile(pattern), by_buffer.get(buffer, len(devices))) for pattern, buffer in overrides]
    found = []
    for name, size in demand.tensors.items():
        layer = layer_of(name)
        if layer is None and not name.startswith(_INPUTS):
            layer = demand.n_layer_all
        natural = len(devices) if layer is None else owners[min(layer, demand.n_layer_all)]
        at = next((at for pattern, at in patterns if pattern.search(name)), None)
        found.append(_Put(name, size, layer, natural if at is None else at))
        if name == EMBEDDING and not demand.has_output and at is None and owners[-1] != natural:
            found.append(_Put(name, size, demand.n_layer_all, owners[-1]))  # a second copy: the output matrix
    return found


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
    ends = _ends(shares)
    return [
        bisect_right(ends, _float32(((layer if layer < n_layer else n_layer_all) - first) / n))
        if first <= layer < first + n
        else host
        for layer in range(n_layer_all + 1)
    ]


def _ends(shares: Sequence[float]) -> list[float]:
    """Where each share ends, the last at 1, in the arithmetic of llama.cpp."""
    ends = [*accumulate((_float32(share) for share in shares), lambda total, share: _float32(total + share))]
    return [_float32(end / ends[-1]) if ends[-1] else 1.0 for end in ends]


def _float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found
