"""`pymtp inspect`: what is in a GGUF, what drafting with it costs, and which device would get what.

Owns both layouts, text and JSON. Loads no weights.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pymtp.embedded import model_path
from pymtp.errors import ModelError
from pymtp.gguf.model_file import read_model
from pymtp.gguf.passes import Head, draft_cost
from pymtp.inspection import Inspection, SideFile
from pymtp.loading.params import ModelParams
from pymtp.placement.devices import host_free_bytes
from pymtp.placement.places import Place
from pymtp.placement.plan import MemoryPlan
from pymtp.placement.plan import plan as plan_for
from pymtp.sampling.recommended import recommended_sampling
from pymtp.text.spans import spans

from .asked import params_of
from .context import find_model, named_model, warn_beyond_training
from .flags import Values
from .output import Output
from .text import block, harmless, in_units, printable, size_text

_NOT_SHOWN = {"model_file", "draft_file", "shards", "tensors"}
"""What of a file's facts the JSON leaves out: whole headers."""
_UNITS = {"billion": 10**9, "million": 10**6, "thousand": 10**3}


def inspect(own: Values) -> None:
    output = Output()
    given = named_model(own)
    if own.hf is None:
        output.write(_inspected(find_model(given, None, offline=own.offline), own))
        return
    with TemporaryDirectory() as folder:
        local, there = f"{folder}{os.sep}", f"{own.hf.partition(':')[0]}/"
        try:
            path = find_model(given, own.hf, offline=own.offline, headers_in=Path(folder))
            output.write(_inspected(path, own).replace(local, there))
        except ModelError as error:
            raise ModelError(str(error).replace(local, there)) from error


def _inspected(path: str | None, own: Values) -> str:
    file = read_model(path or model_path(), dict(own.override_kv))
    found = Inspection(file)
    warn_beyond_training(own.n_ctx, found.info.n_ctx_train)
    plan = None
    if found.has_trunk and not file.is_assistant:
        params = params_of(own)
        try:
            plan = plan_for(file, params)
        except ModelError:  # what the file says shows also if it is no whole model
            if own.draft_model or replace(params.model, n_gpu_layers=-1) != ModelParams():
                raise
    return (_as_json(found, plan) if own.as_json else _as_text(found, plan, own.draft_model)) + "\n"


def _as_json(found: Inspection, plan: MemoryPlan | None) -> str:
    memory = plan and plan.memory
    facts = {
        **{name: value for name, value in vars(found.info).items() if name not in _NOT_SHOWN},
        **{name: value for name, value in vars(found).items() if name != "info"},
        "memory": memory and {**vars(memory), "total_bytes": memory.total_bytes},
        "devices": [_place_facts(place, found.info.n_layer) for place in plan.places] if plan else [],
        "room_note": plan and plan.note,
    }
    return json.dumps(facts, ensure_ascii=False, default=lambda one: str(one) if isinstance(one, Path) else vars(one))


def _as_text(found: Inspection, plan: MemoryPlan | None, draft_model: str | None = None) -> str:
    blocks = [
        _model_rows(found),
        _head_rows(found, draft_model),
        *([_context_rows(plan), _total_rows(found, plan)] if plan else []),
        _token_rows(found),
        [("side file", _side_file(file, found.trunk_pass_bytes)) for file in found.side_files],
    ]
    return harmless("\n\n".join(filter(None, (block(rows, width=17) for rows in blocks))))


def _model_rows(found: Inspection) -> list[tuple[str, str]]:
    info = found.info
    types = ", ".join(f"{name} {size_text(size)}" for name, size in found.tensor_types.items())
    alone = "is an assistant" if info.model_file.is_assistant else "holds only the MTP heads"
    n_parameters = in_units(info.n_parameters, _UNITS) or str(info.n_parameters)
    experts = f"{found.n_experts}, {found.n_experts_used} per token"
    return [
        ("file", str(info.path) + (f" and {found.n_files - 1} more" if found.n_files > 1 else "")),
        ("name", printable(info.name or "-")),
        ("architecture", printable(info.architecture)),
        ("layers", f"{info.n_layer}" if found.has_trunk else f"none: this file {alone}"),
        ("experts", experts if found.n_experts else ""),
        ("parameters", f"{n_parameters} in {info.n_tensors} tensors"),
        ("quantisation", f"{info.quantization or 'unnamed'}: {types}"),
        ("size", size_text(info.size_bytes)),
    ]


def _head_rows(found: Inspection, draft_model: str | None) -> list[tuple[str, str]]:
    info, heads = found.info, found.heads
    chained = "chained: each head reads the one before it (--mtp-context target: all read the trunk)"
    read = chained if len(heads) > 1 else "the trunk's hidden states"
    return [
        ("MTP heads", f"{info.n_heads_declared} in the metadata, {info.n_heads} in the tensors"),
        ("drafting", f"by {draft_model}" if draft_model else found.obstacle or "yes"),
        *((f"head {i}", _head(head)) for i, head in enumerate(heads)),
        ("draft pass", _draft_pass(heads, found.trunk_pass_bytes) if heads else ""),
        ("context rows", read if heads and found.has_trunk else ""),
    ]


def _draft_pass(heads: Sequence[Head], trunk_bytes: int) -> str:
    sizes = [head.pass_bytes for head in heads]
    reads = f"reads {' to '.join(map(size_text, sorted({min(sizes), max(sizes)})))} of weights"
    cost = draft_cost(heads, trunk_bytes)
    return reads if cost is None else f"{reads}, a trunk pass {size_text(trunk_bytes)} ({cost:.0%})"


def _head(head: Head) -> str:
    lm_head = "its own lm_head" if head.lm_head == "own" else "the trunk's lm_head"
    return f"layer {head.layer}, {size_text(head.size_bytes)} {'/'.join(head.tensor_types)}, {lm_head}"


def _context_rows(plan: MemoryPlan) -> list[tuple[str, str]]:
    memory, context = plan.memory, plan.params.context
    return [
        ("context", f"{memory.n_ctx} tokens, K {context.type_k}, V {context.type_v}"),
        ("K/V", f"{size_text(memory.kv_bytes)}, and {size_text(memory.heads_kv_bytes)} for the heads"),
        ("states", size_text(memory.state_bytes) if memory.state_bytes else ""),
    ]


def _total_rows(found: Inspection, plan: MemoryPlan) -> list[tuple[str, str]]:
    """A line for each device, the host last, and the sum; or what is known where it is not known what goes to each."""
    if plan.places:
        rows = [(place.spot.name, _place(place, found.info.n_layer)) for place in plan.places]
        rows.append(("total", f"up to {size_text(sum(place.needed_bytes for place in plan.places))}"))
    else:
        memory = plan.memory
        total = size_text(memory.total_bytes + found.info.size_bytes)
        rows = [("compute", f"about {size_text(memory.compute_bytes)}"), ("total", f"about {total} with the weights")]
    return [*rows, ("note", plan.note or "")]


def _place(place: Place, n_layer: int) -> str:
    facts = _place_facts(place, n_layer)
    strange = sorted({*place.expert_layers} - {*place.layers})  # experts whose layers are elsewhere
    parts = [
        _named("layer", facts["layers"]),
        _named("head", facts["heads"]),
        "output" if place.has_output else "",
        "token embedding" if place.has_embedding else "",
        f"experts of {_named('layer', strange)}" if strange else "",
    ]
    free, where = size_text(facts["free_bytes"]), f" ({printable(place.spot.description)})"
    needed = (
        f"{size_text(place.weight_bytes)} of weights, {size_text(place.cache_bytes)} of cache, "
        f"up to {size_text(place.compute_bytes)} to compute: {size_text(place.needed_bytes)} of {free} free"
    )
    return f"{', '.join(filter(None, parts))}; {needed}{where}" if any(parts) else f"nothing; {free} free{where}"


def _place_facts(place: Place, n_layer: int) -> dict[str, Any]:
    spot = place.spot
    return {
        "name": spot.name,
        "description": spot.description,
        "free_bytes": host_free_bytes() if spot.free_bytes is None else spot.free_bytes,
        "heads": [layer - n_layer for layer in place.layers if layer >= n_layer],
        **{name: value for name, value in vars(place).items() if name != "spot"},
        "layers": [layer for layer in place.layers if layer < n_layer],
    }


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {spans(numbers, ' to ', ', ')}" if numbers else ""


def _token_rows(found: Inspection) -> list[tuple[str, str]]:
    info = found.info
    return [
        ("trained context", f"{info.n_ctx_train} tokens"),
        ("vocabulary", f"{info.n_vocab} tokens"),
        ("chat template", f"{len(info.chat_template)} characters" if info.chat_template else "none"),
        ("sampling", _sampling(info.sampling) if info.sampling else ""),
    ]


def _sampling(values: Mapping[str, Any]) -> str:
    recommended = recommended_sampling(values)
    texts = [f"{name} {';'.join(value) if name == 'samplers' else value}" for name, value in recommended.items()]
    return f"{', '.join(texts) or 'nothing usable'} (recommended by the file: the defaults of run and chat)"


def _side_file(file: SideFile, trunk_bytes: int) -> str:
    if file.problem:
        return file.problem
    draft_pass = f"; a draft pass {_draft_pass(file.heads, trunk_bytes)}" if file.heads else ""
    return f"{file.path.name}, {file.architecture} {file.quantization or ''}, {size_text(file.size_bytes)}{draft_pass}"
