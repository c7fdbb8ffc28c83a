"""What a model needs of its devices with the user's parameters, and the plan of what goes where.

Opens no model and no session.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pymtp.drafting.choice import DraftChoice, choose_drafter
from pymtp.drafting.params import StrPath
from pymtp.drafting.policy import AUTO_DRAFT_MAX
from pymtp.gguf.demand import Demand, demand_of
from pymtp.gguf.facts import GgufInfo
from pymtp.loading.params import ModelParams
from pymtp.loading.placement import Placement
from pymtp.loading.plan import Place
from pymtp.options import Params

_NOT_COMPUTED = "which device gets which part of a tensor is not computed (--split-mode)"


class Plan(NamedTuple):
    """Where the parts of a model would go."""

    params: Params
    """What was asked for, or what has room in its place."""
    places: list[Place]
    """Each device that takes layers, and the host last; [] where devices get parts of tensors."""
    note: str | None
    """One line for people, where not all has room on the devices."""


def plan(path: StrPath, params: Params) -> Plan:
    """Where the model at `path` would go: its weights, caches and what passes compute in.

    Raises what Model does for a file, devices and buffer types.
    """
    info, choice = choose_drafter(path, params.drafting)
    of = partial(demand, info, params, choice)
    placement = Placement(params.model, info, of, may_shrink=may_shrink(params))
    try:
        found = with_room(params, placement.params, placement.n_ctx)
        places = placement.places
        note = room_note(params, found, info.n_layer_all) if places else _NOT_COMPUTED
        return Plan(found, places, note)
    finally:
        placement.close()


def demand(info: GgufInfo, params: Params, choice: DraftChoice, n_ctx: int | None = None) -> Demand:
    """What a model needs of its devices, with another context than that of `params` if `n_ctx` is given."""
    context, drafting = params.context, params.drafting
    return demand_of(
        info,
        with_heads=choice.uses_heads,
        n_ctx=context.n_ctx if n_ctx is None else n_ctx,
        n_ubatch=context.n_ubatch,
        draft_max=longest_draft(params, choice, has_states=False),
        draft_max_of_states=longest_draft(params, choice, has_states=True),
        type_k=context.type_k,
        type_v=context.type_v,
        n_seq_max=context.n_seq_max,
        n_cells=context.n_cells,
        has_flash_attn=context.flash_attn != "off",
        has_own_output=bool(drafting.draft_head_type or drafting.draft_vocab or info.n_draft_vocab),
    )


def longest_draft(params: Params, choice: DraftChoice, *, has_states: bool) -> int:
    """Drafts that a round can verify. Each needs memory in each sequence: logits, and recurrent states."""
    if params.drafting.draft_max != "auto":
        return choice.n_draft_max
    n = min(choice.n_draft_max, AUTO_DRAFT_MAX // params.context.n_seq_max)
    return min(choice.n_draft_max, 4) if has_states else max(n, min(choice.n_draft_max, 4))


def may_shrink(params: Params) -> bool:
    """Whether nobody asked for a size of the context."""
    return params.context.n_ctx is None and params.context.n_cells is None


def with_room(params: Params, model: ModelParams, n_ctx: int | None) -> Params:
    """How a model is loaded and run: `params`, with what has room where they leave that open."""
    context = params.context if n_ctx is None else replace(params.context, n_ctx=n_ctx)
    return params._replace(model=model, context=context)


def room_note(asked: Params, params: Params, n_layer_all: int) -> str | None:
    """One line for people, where not all that was asked for has room on the devices; None if it has."""
    model, stay = params.model, []
    if 0 <= model.n_gpu_layers <= n_layer_all and model.n_gpu_layers != asked.model.n_gpu_layers:
        stay.append(f"{min(n_layer_all + 1 - model.n_gpu_layers, n_layer_all)} of {n_layer_all} layers")
    if model.n_gpu_layers == 0:
        pass  # experts are parts of layers
    elif model.cpu_moe and not asked.model.cpu_moe:
        stay.append("all experts")
    elif model.n_cpu_moe > asked.model.n_cpu_moe:
        stay.append(f"the experts of the first {model.n_cpu_moe} layers")
    parts = [f"{' and '.join(stay)} stay on the CPU"] if stay else []
    if params.context.n_ctx != asked.context.n_ctx:
        parts.append(f"the context is {params.context.n_ctx} tokens")
    return f"{', '.join(parts)}: the devices have no room for more" if parts else None
