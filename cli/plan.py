"""`pymtp inspect`'s plan: which part of a model goes to which device, and how much of its memory that takes.

Owns both layouts, lines and JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymtp.text.spans import spans

from .layout import printable, size_text

if TYPE_CHECKING:
    from pymtp.loading.plan import Place


def plan_rows(places: Sequence[Place], n_layer: int, host_bytes: int) -> list[tuple[str, str]]:
    """A line for each device, the host last. `n_layer`: layers of the trunk; `host_bytes`: what the host has free."""
    return [(place.spot.name, _place(place, n_layer, host_bytes)) for place in places]


def plan_facts(places: Sequence[Place], n_layer: int, host_bytes: int) -> list[dict[str, Any]]:
    """The same as values for JSON."""
    return [_facts(place, n_layer, host_bytes if place is places[-1] else place.spot.free_bytes) for place in places]


def _facts(place: Place, n_layer: int, free_bytes: int | None) -> dict[str, Any]:
    layers, heads = _layers_and_heads(place, n_layer)
    return {
        "name": place.spot.name,
        "description": place.spot.description,
        "free_bytes": free_bytes,
        "layers": layers,
        "heads": heads,
        "has_output": place.has_output,
        "has_embedding": place.has_embedding,
        "expert_layers": list(place.expert_layers),
        "expert_bytes": place.expert_bytes,
        "weight_bytes": place.weight_bytes,
        "cache_bytes": place.cache_bytes,
        "compute_bytes": place.compute_bytes,
    }


def _place(place: Place, n_layer: int, host_bytes: int) -> str:
    layers, heads = _layers_and_heads(place, n_layer)
    parts = [
        *([_named("layer", layers)] if layers else []),
        *([_named("head", heads)] if heads else []),
        *(["output"] if place.has_output else []),
        *(["token embedding"] if place.has_embedding else []),
        *_experts(place),
    ]
    free = host_bytes if place.spot.free_bytes is None else place.spot.free_bytes
    needed = (
        f"{size_text(place.weight_bytes)} of weights, {size_text(place.cache_bytes)} of cache, "
        f"up to {size_text(place.compute_bytes)} to compute: {size_text(place.needed_bytes)} of {size_text(free)} free"
    )
    where = f" ({printable(place.spot.description)})"
    return f"{', '.join(parts)}; {needed}{where}" if parts else f"nothing; {size_text(free)} free{where}"


def _experts(place: Place) -> list[str]:
    """Experts whose layers are elsewhere, and layers whose experts are."""
    here, layers = set(place.expert_layers), set(place.layers)
    if strange := sorted(here - layers):
        return [f"experts of {_named('layer', strange)}"]
    return []


def _layers_and_heads(place: Place, n_layer: int) -> tuple[list[int], list[int]]:
    """The numbers of each, from 0."""
    layers = [layer for layer in place.layers if layer < n_layer]
    return layers, [layer - n_layer for layer in place.layers if layer >= n_layer]


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {spans(numbers, ' to ', ', ')}"
