"""Which architectures can draft with their own MTP heads, with how many of them, and on what conditions.

For code that looks at a file without the native library. What llama.cpp has graphs for is listed in
native/src/engine/mtp-architectures.cpp; a test compares the two lists.
"""

from __future__ import annotations

from enum import Flag, auto
from typing import NamedTuple


class Needs(Flag):
    """What the graph of an architecture's heads requires."""

    NOTHING = 0
    LORA_Q = auto()
    """Low-rank queries."""
    MLA = auto()
    """Low-rank K and V, in separate tensors."""


class Architecture(NamedTuple):
    """An architecture that can draft. `n_heads_max` None: any number of heads."""

    n_heads_max: int | None = 1
    needs: Needs = Needs.NOTHING


ARCHITECTURES = {
    "bailingmoe2": Architecture(),
    "bailingmoe3": Architecture(),
    "cohere2moe": Architecture(),
    "deepseek2": Architecture(needs=Needs.LORA_Q | Needs.MLA),
    "deepseek32": Architecture(needs=Needs.MLA),
    "deepseek4": Architecture(),
    "dots3note": Architecture(),
    "ernie4_5-moe": Architecture(),
    "exaone4": Architecture(),
    "exaone-moe": Architecture(),
    "glm4": Architecture(),
    "glm4moe": Architecture(),
    "glm5-next": Architecture(needs=Needs.MLA),
    "glm-dsa": Architecture(needs=Needs.MLA),
    "hy_v3": Architecture(None),
    "mimo2": Architecture(None),
    "nemotron_h_moe": Architecture(),
    "qwen35": Architecture(),
    "qwen35moe": Architecture(),
    "qwen3next": Architecture(),
    "qwen4exp": Architecture(),
    "step35": Architecture(None),
}

_REASONS = {
    Needs.LORA_Q: "it needs attn_q_a and attn_q_b",
    Needs.MLA: "it needs attn_k_b and attn_v_b",
}


def head_obstacle(architecture: str, n_heads: int, meets: Needs) -> str:
    """Why llama.cpp cannot run `n_heads` heads of a model that meets the needs `meets`; "" if it can."""
    known = ARCHITECTURES.get(architecture)
    if known is None:
        return "it has no graph for them"
    if known.n_heads_max is not None and n_heads > known.n_heads_max:
        return "it runs a single head of them"
    return next((reason for need, reason in _REASONS.items() if need in known.needs and need not in meets), "")
