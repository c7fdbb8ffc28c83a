"""Which architectures can draft with their own MTP heads, with how many of them, and on what conditions.

For code that looks at a file without the native library. What llama.cpp has graphs for is listed in
native/src/engine/mtp-architectures.cpp; a test compares the two lists.
"""

from collections.abc import Callable
from typing import NamedTuple

NEEDS = {
    "LORA_Q": ("it needs attn_q_a and attn_q_b", ("attention.q_lora_rank",)),
    "MLA": ("it needs attn_k_b and attn_v_b", ("attention.key_length_mla", "attention.value_length_mla")),
}
"""What the graph of heads may need: why a model without it cannot draft, and the numbers that models with it have."""


class Architecture(NamedTuple):
    """An architecture that can draft. `n_heads_max` None: any number of heads."""

    n_heads_max: int | None = 1
    needs: tuple[str, ...] = ()
    """Of NEEDS."""


_WITH_ONE_HEAD = (
    "bailingmoe2 bailingmoe3 cohere2moe deepseek4 dots3note ernie4_5-moe exaone4 exaone-moe glm4 glm4moe "
    "nemotron_h_moe qwen35 qwen35moe qwen3next qwen4exp"
)
ARCHITECTURES = {
    **dict.fromkeys(_WITH_ONE_HEAD.split(), Architecture()),
    **dict.fromkeys(("hy_v3", "mimo2", "step35"), Architecture(None)),
    **dict.fromkeys(("deepseek32", "glm5-next", "glm-dsa"), Architecture(needs=("MLA",))),
    "deepseek2": Architecture(needs=("LORA_Q", "MLA")),
}


def head_obstacle(architecture: str, n_heads: int, count: Callable[[str], int]) -> str:
    """Why llama.cpp cannot run `n_heads` heads of a model; "" if it can. `count`: a number of its metadata by key."""
    known = ARCHITECTURES.get(architecture)
    if known is None:
        return "it has no graph for them"
    if known.n_heads_max is not None and n_heads > known.n_heads_max:
        return "it runs a single head of them"
    needed = (NEEDS[name] for name in known.needs)
    return next((reason for reason, keys in needed if not all(count(key) > 0 for key in keys)), "")
