"""Where the parts of a model go with given parameters, and what each device needs for that.

Owns llama.cpp's rules: which layer goes to which device, which tensor stays elsewhere. Asks no device: knows what is
free on each.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pymtp.loading.params import ModelParams
from pymtp.placement.demand import Demand

EXPERTS = r"\.ffn_[a-z_]+_(ch)?exps"  # tensors that hold one matrix for each expert
EMBEDDING, EMBEDDING_ALONE = "token_embd.weight", r"^token_embd\.weight$"


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

    @property
    def share(self) -> float:
        """Its share of the layers: free MiB, as sums of these are exact in llama.cpp's single precision."""
        return float(max(1, (self.free_bytes or 0) >> 20))


@dataclass
class Place:
    """A device, what goes there, and how many bytes that takes."""

    spot: Spot
    layers: list[int] = field(default_factory=list)
    """The layers there, of the trunk and of the heads; a layer's cache goes with it."""
    has_output: bool = False
    has_embedding: bool = False
    expert_layers: list[int] = field(default_factory=list)
    """Layers whose routed experts are here, all of them or some."""
    weight_bytes: int = 0
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
    *owners, output = layer_owners(params, demand.n_layer, demand.n_layer_all, devices)
    found, n_computing = [Place(spot) for spot in [*devices, host]], len({*owners, output} - {len(devices)})
    for i, place in enumerate(found):
        place.layers, place.has_output = [layer for layer, owner in enumerate(owners) if owner == i], i == output
        place.compute_bytes += demand.assistant_bytes * (place.spot is not host and not place.spot.is_remote)
        if place.layers or place.has_output:
            place.compute_bytes += demand.context.compute_bytes + demand.kept_bytes * place.has_output
            place.compute_bytes += demand.moe_cache_bytes // n_computing if place.spot is not host else 0
    for owner, size in zip(owners, demand.context.layer_bytes, strict=False):
        found[-1 if demand.has_cache_on_host else owner].cache_bytes += size
    by_buffer = {spot.buffer: i for i, spot in reversed([*enumerate(devices)])}
    patterns = [(re.compile(pattern), by_buffer.get(buffer, len(devices))) for pattern, buffer in overrides]
    copied_bytes = 0
    for name, size in demand.tensors.items():
        layer = demand.layer_of(name)
        natural = len(devices) if layer is None else [*owners, output][layer]
        forced = next((at for pattern, at in patterns if pattern.search(name)), None)
        place = found[natural if forced is None else forced]
        place.weight_bytes += size
        if name == EMBEDDING:
            place.has_embedding = True
            if not demand.has_output and forced is None and output != natural:
                found[output].weight_bytes += size  # a second copy: the output matrix
        elif place.spot is host and layer is not None:
            copied_bytes = max(copied_bytes, size)
        if layer is not None and re.search(EXPERTS, name):
            place.expert_layers = sorted({*place.expert_layers, layer})
    if found[0].spot.copies_weights:  # weights that prompts need from the host go to the first device, one at a time
        found[0].compute_bytes += copied_bytes
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
    ends = [*accumulate(shares if any(shares) else [spot.share for spot in devices])]
    return [
        bisect_right(ends[:-1], ((layer if layer < n_layer else n_layer_all) - first) * ends[-1] / n)
        if first <= layer < first + n
        else host
        for layer in range(n_layer_all + 1)
    ]
