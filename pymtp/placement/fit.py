"""How much of a model goes to the devices, and how long a context may be, so that each has room for what it gets.

What a draft needs (output, heads, their experts) goes to a device first, then the last layers. Of a model with experts
the host keeps those of the first layers before it keeps whole layers. Knows what is free; asks no device.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pymtp.loading.params import ModelParams
from pymtp.placement.demand import Demand
from pymtp.placement.places import EMBEDDING_ALONE, Place, Spot

Places = Callable[[ModelParams, Demand], list[Place]]  # where everything goes with parameters; the host is last
_CTX_STEP = 256


def is_open(params: ModelParams) -> bool:
    """Whether the user leaves it open where tensors go."""
    given = (params.tensor_split, params.override_tensor, params.cpu_moe, params.n_cpu_moe)
    return params.fit and params.n_gpu_layers == -1 and not any(given) and params.split_mode in ("layer", "none")


def margins_of(params: ModelParams, n_devices: int) -> list[int]:
    """Bytes that each device keeps free; the last number that is given is that of all further devices."""
    given = [mib << 20 for mib in params.fit_target]
    return [*given, *[given[-1]] * n_devices][:n_devices]


def fit(
    params: ModelParams,
    demand_of: Callable[[int | None], Demand],
    devices: Sequence[Spot],
    places: Places,
    *,
    may_shrink: bool,
) -> ModelParams:
    """`params`, or if something has no room with them: others with which all has, and as much as possible on devices.

    `demand_of`: what the model needs with a context of N tokens, None: of what was asked for; `may_shrink`:
    whether nothing was, so that the context may be as short as `fit_ctx`; see `fit_context`.
    """
    free = [spot.free_bytes for spot in devices]
    demand = demand_of(None)
    if may_shrink and params.fit_ctx < demand.context.n_ctx and not _have_room(params, places, demand, free):
        demand = demand_of(params.fit_ctx)
    if _have_room(params, places, demand, free):
        return params
    if demand.has_output:
        # the token embedding is on a device only where nothing is said of any tensor; a tied one costs nothing there
        params = replace(params, override_tensor=((EMBEDDING_ALONE, "CPU"),))
        if _have_room(params, places, demand, free):
            return params
    n_layer, n_layer_all = demand.n_layer, demand.n_layer_all

    def packed(n_cpu_moe: int = 0, *, cpu_moe: bool = False) -> ModelParams:
        return _packed(replace(params, n_cpu_moe=n_cpu_moe, cpu_moe=cpu_moe), places, demand, devices)

    if not any(place.expert_layers for place in places(params, demand)):
        return packed()
    n = bisect_left(range(n_layer), True, key=lambda n: packed(n).n_gpu_layers > n_layer_all)
    with_experts = packed(n)  # of the heads
    return with_experts if with_experts.n_gpu_layers > n_layer_all - n_layer else packed(cpu_moe=True)


def fit_context(
    params: ModelParams, demand_of: Callable[[int | None], Demand], free: Sequence[int | None], places: Places
) -> int | None:
    """The largest context, of `fit_ctx` tokens at least, that there is room for; None: for what was asked for.

    `free`: bytes of each device and of the host, which keep what `fit_target` says.
    """
    if _have_room(params, places, demand_of(None), free):
        return None
    contexts = range(params.fit_ctx, demand_of(None).context.n_ctx, _CTX_STEP)
    n = bisect_left(contexts, True, key=lambda n_ctx: not _have_room(params, places, demand_of(n_ctx), free))
    return contexts[max(n - 1, 0)]


def _have_room(params: ModelParams, places: Places, demand: Demand, free: Sequence[int | None]) -> bool:
    """Whether each device, and the host if `free` has its bytes, has room, and its margin to spare."""
    found, margins = places(params, demand), margins_of(params, len(free))
    if not found:  # each device gets parts of all
        needed = sum(demand.tensors.values()) + demand.context.total_bytes
        return needed + sum(margins[:-1]) <= sum(each or 0 for each in free[:-1])
    return all(map(_has_room, found, free, margins))


def _has_room(place: Place, free: int | None, margin: int) -> bool:
    return free is None or not place.needed_bytes or place.needed_bytes + margin <= free


def _packed(params: ModelParams, places: Places, demand: Demand, devices: Sequence[Spot]) -> ModelParams:
    """As many of the last layers as there is room for, in their order, from the last device to the first."""
    counts, margins = [0] * len(devices), margins_of(params, len(devices))
    is_output_here = devices[-1].is_remote
    n_heads = demand.n_layer_all - demand.n_layer
    end = demand.n_layer if is_output_here else demand.n_layer_all + 1

    def with_count(i: int, n: int) -> ModelParams:
        tried = [*counts[:i], n, *counts[i + 1 :]]
        shares = tuple(map(float, tried)) if len(tried) > 1 and any(tried) else ()
        n_at_output = n_heads + 1 if is_output_here and any(tried) else 0
        return replace(params, n_gpu_layers=sum(tried) + n_at_output, tensor_split=shares)

    def is_too_much(i: int, n: int) -> bool:
        # what the device needs for N layers, with those of the devices after it, the plan for them says
        return not _has_room(places(with_count(i, n), demand)[i], devices[i].free_bytes, margins[i])

    for i in reversed(range(len(counts))):
        n = bisect_left(range(1, end - sum(counts) + 1), True, key=partial(is_too_much, i))
        # output and heads share a device: the next one if this one has no room for all of them
        counts[i] = n if i == 0 or is_output_here or n > n_heads or any(counts) else 0
    return with_count(0, counts[0])
