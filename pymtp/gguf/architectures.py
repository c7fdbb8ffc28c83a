"""Which architectures can draft with their own MTP heads, with how many of them, and on what conditions.

For code that looks at a file without the native library. What llama.cpp has graphs for is listed in
native/src/engine/mtp-architectures.cpp; a test compares the two lists.
"""

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


_WITH_ONE_HEAD = (
    "bailingmoe2 bailingmoe3 cohere2moe deepseek4 dots3note ernie4_5-moe exaone4 exaone-moe glm4 glm4moe "
    "nemotron_h_moe qwen35 qwen35moe qwen3next qwen4exp"
)
ARCHITECTURES = {
    **dict.fromkeys(_WITH_ONE_HEAD.split(), Architecture()),
    **dict.fromkeys(("hy_v3", "mimo2", "step35"), Architecture(None)),
    **dict.fromkeys(("deepseek32", "glm5-next", "glm-dsa"), Architecture(needs=Needs.MLA)),
    "deepseek2": Architecture(needs=Needs.LORA_Q | Needs.MLA),
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
