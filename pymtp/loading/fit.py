"""Chooses where a model's parts go, so that each device has room for what it gets.

What a draft needs (output, heads, their experts) goes to a device first, then the last layers. Of a model with experts
the host keeps those of the first layers before it keeps whole layers. Knows what is free; asks no device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pymtp.gguf.demand import Demand
from pymtp.loading.params import ModelParams
from pymtp.loading.plan import Place, Spot

Places = Callable[[ModelParams, Demand], list[Place]]
"""Where everything goes with other parameters; the host is last."""
_CTX_STEP = 256


class Fit(NamedTuple):
    """What has room."""

    params: ModelParams
    n_ctx: int | None = None
    """Tokens of a smaller context of each sequence; None: as many as before."""


def is_open(params: ModelParams) -> bool:
    """Whether the user leaves it open where tensors go."""
    given = (params.tensor_split, params.override_tensor, params.cpu_moe, params.n_cpu_moe)
    return params.fit and params.n_gpu_layers == -1 and not any(given) and params.split_mode in ("layer", "none")


def fits(placed: Sequence[Place], margins: Sequence[int]) -> bool:
    """Whether every device has room, and as many bytes to spare as `margins` says of it; the host always has."""
    return all(
        place.spot.free_bytes is None or place.needed_bytes == 0 or place.needed_bytes + margin <= place.spot.free_bytes
        for place, margin in zip(placed[:-1], margins, strict=True)
    )


def fit(
    params: ModelParams,
    demand_of: Callable[[int | None], Demand],
    devices: Sequence[Spot],
    places: Places,
    *,
    may_shrink: bool,
) -> Fit:
    """`params`, or if something has no room with them: others with which all has, and as much as possible on devices.

    `demand_of`: what the model needs with a context of N tokens, None: of what was asked for; `may_shrink`:
    whether nothing was.
    """
    margins = margins_of(params, len(devices))
    demand = demand_of(None)

    def has_room(tried: ModelParams, demand: Demand) -> bool:
        return fits(places(tried, demand), margins)

    if has_room(params, demand):
        return Fit(params)
    smaller = None
    if may_shrink and params.fit_ctx < demand.n_ctx:
        contexts = range(params.fit_ctx, demand.n_ctx, _CTX_STEP)
        n = bisect_left(contexts, True, key=lambda n_ctx: not has_room(params, demand_of(n_ctx)))
        smaller = contexts[max(n - 1, 0)]
        if n > 0:
            return Fit(params, smaller)
        demand = demand_of(smaller)
    # the token embedding is on a device only where nothing is said of any tensor; a tied one costs nothing there
    here = replace(params, override_tensor=((r"^token_embd\.weight$", "CPU"),))
    if demand.has_output and has_room(here, demand):
        return Fit(here, smaller)
    less = _with_less(here if demand.has_output else params, demand, devices, margins, places)
    return Fit(less, smaller if less.n_gpu_layers else None)


def _with_less(
    params: ModelParams, demand: Demand, devices: Sequence[Spot], margins: Sequence[int], places: Places
) -> ModelParams:
    def packed(tried: ModelParams) -> ModelParams:
        return _pack(tried, demand, devices, margins, places)

    def is_whole(n: int) -> bool:
        return packed(replace(params, n_cpu_moe=n)).n_gpu_layers == demand.n_layer_all + 1

    if not any(place.expert_bytes for place in places(params, demand)):
        return packed(params)
    n = bisect_left(range(demand.n_layer + 1), True, key=is_whole)
    if n <= demand.n_layer:
        return packed(replace(params, n_cpu_moe=n))
    n_least = demand.n_layer_all - demand.n_layer + 1
    with_experts = packed(replace(params, n_cpu_moe=demand.n_layer))
    return with_experts if with_experts.n_gpu_layers >= n_least else packed(replace(params, cpu_moe=True))


def margins_of(params: ModelParams, n_devices: int) -> list[int]:
    """Bytes that each device keeps free; the last number that is given is that of all further devices."""
    given = [mib << 20 for mib in params.fit_target]
    return [*given, *[given[-1]] * n_devices][:n_devices]


def _pack(
    params: ModelParams, demand: Demand, devices: Sequence[Spot], margins: Sequence[int], places: Places
) -> ModelParams:
    """As many of the last layers as there is room for, in their order, from the last device to the first."""
    is_output_here = devices[-1].is_remote
    end = demand.n_layer if is_output_here else demand.n_layer_all + 1
    n_heads = demand.n_layer_all - demand.n_layer
    counts = [0] * len(devices)
    for i in reversed(range(len(devices))):
        # what the device needs for N layers, with those of the devices after it, the plan for them says
        low, high = 0, end - sum(counts)
        while low < high:
            middle = (low + high + 1) // 2
            tried = _with_counts(params, demand, [*counts[:i], middle, *counts[i + 1 :]], is_output_here)
            place = places(tried, demand)[i]
            free = place.spot.free_bytes
            if free is None or place.needed_bytes + margins[i] <= free:
                low = middle
            else:
                high = middle - 1
        # output and heads lie on one device: on the next one if this one has no room for all of them
        counts[i] = low if i == 0 or is_output_here or low > n_heads or any(counts) else 0
    return _with_counts(params, demand, counts, is_output_here)


def _with_counts(params: ModelParams, demand: Demand, counts: Sequence[int], is_output_here: bool) -> ModelParams:
    n = sum(counts)
    n_gpu_layers = n + (demand.n_layer_all + 1 - demand.n_layer if is_output_here and n else 0)
    shares = tuple(float(count) for count in counts) if len(counts) > 1 and n else ()
    return replace(params, n_gpu_layers=n_gpu_layers, tensor_split=shares)
