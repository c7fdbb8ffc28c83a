"""Where the parts of a model go with given parameters, and what each device needs for that.

Owns llama.cpp's rules: which layer goes to which device, which tensor stays elsewhere. Asks no device: knows what is
free on each.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from ctypes import c_float  # llama.cpp divides layers in single precision
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pymtp.gguf.model_file import layer_of
from pymtp.loading.params import ModelParams
from pymtp.placement.demand import Demand

EXPERTS = r"\.ffn_[a-z_]+_(ch)?exps"  # tensors that hold one matrix for each expert
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
    copies_weights: bool = False
    """Whether it computes prompts with weights that are on the host, which it copies for that."""


@dataclass(frozen=True)
class Place:
    """A device, what goes there, and how many bytes that takes."""

    spot: Spot
    layers: tuple[int, ...] = ()
    """The layers there, of the trunk and of the heads; a layer's cache goes with it."""
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
        return self.weight_bytes + self.cache_bytes + self.compute_bytes


Overrides = Sequence[tuple[str, Any]]  # patterns of tensors' names, and buffer types; the first that matches counts


def places(
    params: ModelParams, overrides: Overrides, demand: Demand, devices: Sequence[Spot], host: Spot
) -> list[Place]:
    """The devices in their order, and the host last. `devices`: those that take layers."""
    owners = layer_owners(params, demand.n_layer, demand.n_layer_all, devices)
    stored = dict(enumerate(demand.context.layer_bytes))
    tensors = _by_spot(overrides, demand, devices, host, owners)
    # weights that prompts need from the host are copied to the first device that can, one at a time
    copied_bytes = max((size for _, size, layer in tensors[-1] if layer is not None), default=0)
    moe_cache_bytes = demand.moe_cache_bytes // max(1, len({*owners} - {len(devices)}))
    found = []
    for i, (spot, here) in enumerate(zip([*devices, host], tensors, strict=True)):
        experts = [(size, layer or 0) for name, size, layer in here if re.search(EXPERTS, name)]
        layers = tuple(layer for layer, owner in enumerate(owners[:-1]) if owner == i)
        cached: Iterable[int] = layers
        if demand.has_cache_on_host:
            cached = stored if spot is host else ()
        compute_bytes = demand.context.compute_bytes if i in owners else 0
        compute_bytes += demand.kept_bytes if i == owners[-1] else 0
        compute_bytes += demand.assistant_bytes if spot is not host and not spot.is_remote else 0
        compute_bytes += moe_cache_bytes if i in owners and spot is not host else 0
        compute_bytes += copied_bytes if i == 0 and spot.copies_weights else 0
        found.append(
            Place(
                spot,
                layers=layers,
                has_output=i == owners[-1],
                has_embedding=any(name == EMBEDDING and layer is None for name, _, layer in here),
                weight_bytes=sum(size for _, size, _ in here),
                expert_bytes=sum(size for size, _ in experts),
                expert_layers=tuple(sorted({layer for _, layer in experts})),
                cache_bytes=sum(stored.get(layer, 0) for layer in cached),
                compute_bytes=compute_bytes,
            )
        )
    return found


def _by_spot(
    overrides: Overrides, demand: Demand, devices: Sequence[Spot], host: Spot, owners: Sequence[int]
) -> list[list[tuple[str, int, int | None]]]:
    """Name, bytes and layer of what goes to each spot; the output's layer is after the last, None: an input."""
    by_buffer = {spot.buffer: i for i, spot in reversed([*enumerate(devices)])} | {host.buffer: len(devices)}
    patterns = [(re.compile(pattern), by_buffer.get(buffer, len(devices))) for pattern, buffer in overrides]
    found: list[list[tuple[str, int, int | None]]] = [[] for _ in (*devices, host)]
    for name, size in demand.tensors.items():
        layer = layer_of(name)
        if layer is None and not name.startswith(_INPUTS):
            layer = demand.n_layer_all
        natural = len(devices) if layer is None else owners[min(layer, demand.n_layer_all)]
        forced = next((at for pattern, at in patterns if pattern.search(name)), None)
        found[natural if forced is None else forced].append((name, size, layer))
        if name == EMBEDDING and not demand.has_output and forced is None and owners[-1] != natural:
            found[owners[-1]].append((name, size, demand.n_layer_all))  # a second copy: the output matrix
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
    sums = [*accumulate((c_float(share).value for share in shares), lambda a, b: c_float(a + b).value)]
    ends = [c_float(end / sums[-1]).value if sums[-1] else 1.0 for end in sums]
    return [
        bisect_right(ends, c_float(((layer if layer < n_layer else n_layer_all) - first) / n).value)
        if first <= layer < first + n
        else host
        for layer in range(n_layer_all + 1)
    ]
