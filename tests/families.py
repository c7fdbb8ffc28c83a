"""Which model families pymtp drafts with, and what is particular about each.

`memory` is where the heads keep their K/V. "shared", in the cells of the trunk's cache, is the rule: it needs a trunk
that keeps K/V by position, be it in a plain cache, one with sliding windows or the attention half of a hybrid memory.
"own", a cache of the heads' own beside it, is for trunks that keep more than that:

    glm-dsa, deepseek32  sparse attention: an index beside K/V decides what a position attends to. The cache holds both
                         and gives cells for both at once. The heads attend to everything and have no index.
    deepseek4            a window of K, keys compressed over 4 and 128 positions, an index, and the states that make
                         them. The heads have nothing but the window.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from random_gguf import (
    write_bailingmoe3,
    write_cohere2moe,
    write_deepseek4,
    write_deepseek32,
    write_glm4,
    write_glm4_flash,
    write_glm4moe,
    write_glm5_next,
    write_glm_dsa,
    write_hy_v3,
    write_mimo2,
    write_nemotron_h_moe,
    write_qwen3next,
    write_qwen35,
    write_qwen35moe,
    write_step35,
)


class Family(NamedTuple):
    """One family of models; `write` makes a tiny one."""

    write: Callable[[Path], Path]
    memory: Literal["shared", "own"]
    n_heads: int = 1
    rolls_back: bool = True
    """Whether llama.cpp can take recurrent states back; else pymtp puts them back and decodes again."""
    moves: bool = False
    """Whether positions can move up when others are discarded: sliding windows and recurrent states cannot."""


FAMILIES = {
    # plain caches
    "glm4moe": Family(write_glm4moe, "shared", moves=True),
    "deepseek2 (GLM-4.7-Flash)": Family(write_glm4_flash, "shared", moves=True),
    "hy_v3": Family(write_hy_v3, "shared", moves=True),
    # sliding windows in some layers
    "mimo2": Family(write_mimo2, "shared"),
    "mimo2, 3 heads": Family(lambda path: write_mimo2(path, n_heads=3), "shared", n_heads=3),
    "step35": Family(write_step35, "shared", n_heads=3),
    "cohere2moe": Family(write_cohere2moe, "shared"),
    # recurrent states beside attention
    "qwen35": Family(write_qwen35, "shared"),
    "qwen35moe": Family(write_qwen35moe, "shared"),
    "qwen3next": Family(write_qwen3next, "shared", rolls_back=False),
    "nemotron_h_moe": Family(write_nemotron_h_moe, "shared"),
    "bailingmoe3": Family(write_bailingmoe3, "shared"),
    # more than K/V by position
    "glm-dsa": Family(write_glm_dsa, "own", moves=True),
    "deepseek32": Family(write_deepseek32, "own", moves=True),
    "deepseek4": Family(write_deepseek4, "own"),
}

# llama.cpp loads the heads of these and cannot run them
REFUSED = {
    "glm4": write_glm4,
    "glm5-next": write_glm5_next,
}
