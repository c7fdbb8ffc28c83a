"""How much of a model goes to the devices, and how long a context may be, so that each has room for what it gets.

What a draft needs (output, heads, their experts) goes to a device first, then the last layers. Of a model with experts
the host keeps those of the first layers before it keeps whole layers. Knows what is free; asks no device.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

    def room_for(n_ctx: int | None) -> _Room:
        return _Room(demand_of(n_ctx), devices, margins_of(params, len(devices)), places)

    room = room_for(None)
    if may_shrink and params.fit_ctx < room.demand.context.n_ctx and not room.holds(params):
        room = room_for(params.fit_ctx)
    if room.holds(params):
        return params
    if room.demand.has_output:
        # the token embedding is on a device only where nothing is said of any tensor; a tied one costs nothing there
        params = replace(params, override_tensor=((EMBEDDING_ALONE, "CPU"),))
        if room.holds(params):
            return params
    return room.with_less(params)


def fit_context(
    params: ModelParams, demand_of: Callable[[int | None], Demand], free: Sequence[int | None], places: Places
) -> int | None:
    """The largest context, of `fit_ctx` tokens at least, that there is room for; None: for what was asked for.

    `free`: bytes of each device and of the host, which keep what `fit_target` says.
    """
    margins = margins_of(params, len(free))

    def has_room(n_ctx: int | None) -> bool:
        demand = demand_of(n_ctx)
        found = places(params, demand)
        if not found:  # each device gets parts of all
            needed = sum(demand.tensors.values()) + demand.context.total_bytes
            return needed + sum(margins[:-1]) <= sum(each or 0 for each in free[:-1])
        return all(map(_has_room, found, free, margins))

    if has_room(None):
        return None
    contexts = range(params.fit_ctx, demand_of(None).context.n_ctx, _CTX_STEP)
    n = bisect_left(contexts, True, key=lambda n_ctx: not has_room(n_ctx))
    return contexts[max(n - 1, 0)]


def _has_room(place: Place, free: int | None, margin: int) -> bool:
    return free is None or not place.needed_bytes or place.needed_bytes + margin <= free


@dataclass(frozen=True)
class _Room:
    """What there is room for on the devices."""

    demand: Demand
    devices: Sequence[Spot]
    margins: Sequence[int]
    places: Places

    def holds(self, params: ModelParams) -> bool:
        """Whether every device has room, and its margin to spare; the host always has."""
        free = [spot.free_bytes for spot in self.devices]
        return all(map(_has_room, self.places(params, self.demand), free, self.margins))

    def with_less(self, params: ModelParams) -> ModelParams:
        """`params` with experts on the host, and where that is not enough, layers."""
        n_layer, n_layer_all = self.demand.n_layer, self.demand.n_layer_all
        if not any(place.expert_bytes for place in self.places(params, self.demand)):
            return self._packed(params)
        tried = [replace(params, n_cpu_moe=n) for n in range(n_layer + 1)]
        n = bisect_left(tried, True, key=lambda each: self._packed(each).n_gpu_layers == n_layer_all + 1)
        with_experts = self._packed(tried[min(n, n_layer)])
        if n <= n_layer or with_experts.n_gpu_layers > n_layer_all - n_layer:
            return with_experts
        return self._packed(replace(params, cpu_moe=True))

    def _packed(self, params: ModelParams) -> ModelParams:
        """As many of the last layers as there is room for, in their order, from the last device to the first."""
        is_output_here = self.devices[-1].is_remote
        n_heads = self.demand.n_layer_all - self.demand.n_layer
        end = self.demand.n_layer if is_output_here else self.demand.n_layer_all + 1
        counts = [0] * len(self.devices)

        def is_too_much(i: int, n: int) -> bool:
            # what the device needs for N layers, with those of the devices after it, the plan for them says
            tried = self._with_counts(params, [*counts[:i], n, *counts[i + 1 :]])
            return not _has_room(self.places(tried, self.demand)[i], self.devices[i].free_bytes, self.margins[i])

        for i in reversed(range(len(counts))):
            n = bisect_left(range(1, end - sum(counts) + 1), True, key=partial(is_too_much, i))
            # output and heads share a device: the next one if this one has no room for all of them
            counts[i] = n if i == 0 or is_output_here or n > n_heads or any(counts) else 0
        return self._with_counts(params, counts)

    def _with_counts(self, params: ModelParams, counts: Sequence[int]) -> ModelParams:
        n = sum(counts)
        n_at_output = self.demand.n_layer_all + 1 - self.demand.n_layer if self.devices[-1].is_remote and n else 0
        shares = tuple(float(count) for count in counts) if len(counts) > 1 and n else ()
        return replace(params, n_gpu_layers=n + n_at_output, tensor_split=shares)
