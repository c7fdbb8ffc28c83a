"""The plan of what goes where: made from what a model needs and what is free on each device, before it is loaded.

Opens no model and no session.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from pymtp.drafting.choice import DraftChoice, choose_drafter
from pymtp.errors import InvalidParameter
from pymtp.gguf.facts import GgufInfo, context_size
from pymtp.gguf.model_file import read_model
from pymtp.options import Params
from pymtp.placement.demand import Demand, MemoryEstimate
from pymtp.placement.devices import host_free_bytes
from pymtp.placement.fit import fit, fit_context, is_open
from pymtp.placement.places import Place
from pymtp.placement.target import LoadTarget
from pymtp.text.files import StrPath

_SMALL_BYTES = 1 << 28
"""Of caches that have room anywhere: to ask the host takes as long as to load a small model."""


@dataclass(frozen=True)
class MemoryPlan:
    """Where the parts of a model go."""

    params: Params
    """What was asked for, or what has room in its place."""
    places: tuple[Place, ...]
    """Each device that takes layers, and the host last; () where devices get parts of tensors."""
    memory: MemoryEstimate
    """The context on all devices together; what passes compute in is the sum of what `places` have for it."""
    note: str | None
    """One line for people, where not all has room on the devices."""


def plan(path: StrPath, params: Params) -> MemoryPlan:
    """Where the model at `path` would go: its weights, caches and what passes compute in.

    Raises what Model does for a file, devices and buffer types.
    """
    info, choice = choose_drafter(read_model(path, dict(params.model.override_kv)), params.drafting)
    with closing(LoadTarget(params.model, info)) as target:
        found = plan_memory(info, params, choice, target)
    note = found.note if found.places else "which device gets which part of a tensor is not computed (--split-mode)"
    return replace(found, note=note)


def plan_memory(info: GgufInfo, params: Params, choice: DraftChoice, target: LoadTarget) -> MemoryPlan:
    """Where a model goes of which the files have been read, on the devices of `target`."""
    demand_of = partial(Demand, info, params, choice)
    context, model, n_ctx = params.context, params.model, None
    may_shrink = context.n_ctx is None and not context.n_cells  # nobody asked for a size
    if target.spots and is_open(model):
        model = fit(model, demand_of, target.spots, target.places, may_shrink=may_shrink)
    if may_shrink and model.fit and model.fit_ctx < context_size(None, info.n_ctx_train, context.n_ctx_max):
        free = [*(spot.free_bytes for spot in target.spots), host_free_bytes()]
        n_ctx = fit_context(model, demand_of, free, target.places)
    needed = demand_of(n_ctx)
    places, memory = tuple(target.places(model, needed)), needed.context
    if places:
        memory.compute_bytes = sum(place.compute_bytes for place in places)
    context = context if n_ctx is None else replace(context, n_ctx=n_ctx)
    planned = params._replace(model=model, context=context)
    return MemoryPlan(planned, places, memory, _note(params, planned, info.n_layer_all))


def check_host(found: MemoryPlan) -> None:
    """Raise InvalidParameter if the host has no room for its caches: Linux would end the process that fills them."""
    needed = found.places[-1].cache_bytes if found.places else 0
    if needed > _SMALL_BYTES and needed > (free := host_free_bytes()):
        least = f"smaller: its caches take {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"
        raise InvalidParameter("n_ctx", least, value=found.memory.n_ctx)


def _note(asked: Params, planned: Params, n_layer_all: int) -> str | None:
    model, stay = planned.model, []
    if 0 <= model.n_gpu_layers <= n_layer_all and model.n_gpu_layers != asked.model.n_gpu_layers:
        stay.append(f"{min(n_layer_all + 1 - model.n_gpu_layers, n_layer_all)} of {n_layer_all} layers")
    if model.n_gpu_layers and model.cpu_moe and not asked.model.cpu_moe:  # experts are parts of layers
        stay.append("all experts")
    elif model.n_gpu_layers and model.n_cpu_moe > asked.model.n_cpu_moe:
        stay.append(f"the experts of the first {model.n_cpu_moe} layers")
    parts = [f"{' and '.join(stay)} stay on the CPU"] if stay else []
    if planned.context.n_ctx != asked.context.n_ctx:
        parts.append(f"the context is {planned.context.n_ctx} tokens")
    return f"{', '.join(parts)}: there is no room for more" if parts else None
