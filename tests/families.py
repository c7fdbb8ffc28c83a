"""Which model families pymtp drafts with, and what is particular about each: the table that tests check and
docs/families.md shows.

`memory` is where the heads keep their K/V. "shared", in the cells of the trunk's cache, is the rule: it needs a trunk
that keeps K/V by position, be it in a plain cache, one with sliding windows or the attention half of a hybrid memory.
"own", a cache of the heads' own beside it, is for trunks that keep more than that:

    glm-dsa, deepseek32  sparse attention: an index beside K decides what a position attends to. The cache holds both
                         and gives cells for both at once. The heads have the same: K, and an index of their own.
    dots3note            likewise, beside windows of K. The heads have a window and no index.
    glm5-next            recurrent states, K, and an index of pooled keys, which are kept. The heads have K, and the
                         keys of an index, which are pooled when it picks.
    deepseek4            a window of K, keys compressed over 4 and 128 positions, an index, and the states that make
                         them. The heads have nothing but the window.

Knows no PyTorch: what the heads are compared with is in `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from random_gguf import (
    write_bailingmoe2,
    write_bailingmoe3,
    write_cohere2moe,
    write_deepseek3,
    write_deepseek4,
    write_deepseek32,
    write_dots3note,
    write_ernie4_5,
    write_ernie4_5_moe,
    write_exaone4,
    write_exaone4_small,
    write_exaone_moe,
    write_exaone_moe_full,
    write_gemma4,
    write_gemma4_assistant,
    write_gemma4_choosing_assistant,
    write_gemma4_shared,
    write_generic,
    write_glm4,
    write_glm4_flash,
    write_glm4moe,
    write_glm4moe_mrope,
    write_glm5_next,
    write_glm_dsa,
    write_glm_dsa_full,
    write_hy_v3,
    write_mimo2,
    write_mimo2_split,
    write_nemotron_h_moe,
    write_qwen3next,
    write_qwen4exp,
    write_qwen4exp_picking,
    write_qwen35,
    write_qwen35moe,
    write_step35,
)

State = Literal["normed", "plain"]
"""A hidden state after the norm that follows the last layer (of the trunk, or of the head), or before it."""

Deviation = Literal["rotates"]
"""What llama.cpp's heads do otherwise than the published ones."""


class Family(NamedTuple):
    """One family of models; `write` makes a tiny one."""

    models: str
    """As they are published."""
    write: Callable[[Path], Path]
    memory: Literal["shared", "own"]
    write_assistant: Callable[[Path], Path] | None = None
    """Where an assistant drafts, a model of its own, and not heads."""
    n_heads: int = 1
    moves: bool = False
    """Whether positions can move up when others are discarded: sliding windows and recurrent states cannot."""
    fed: State = "normed"
    """The trunk's hidden state that the heads read."""
    shares_index: bool = False
    """Whether the later drafts of a round attend to what the head's index has picked for the first."""
    n_compared: int = 3
    """Drafts of a round that llama.cpp's scheme of two contexts computes alike. It does not know that drafts share what
    an index picks, nor of the index of qwen4exp's head.
    """
    recycled: State = "normed"
    """The hidden state that a head hands on."""
    after: str = ""
    """Published code that says how the head joins token and hidden state, and which state that is; "": none known."""
    deviation: Deviation | None = None
    limits: str = ""
    embeds_layers: bool = False
    """Whether the trunk's layers have embeddings of tokens of their own, which stay on the host."""


TRANSFORMERS = "transformers' MtpModel"

FAMILIES = {
    # plain caches
    "glm4moe": Family(
        "GLM-4.5 to 4.7",
        write_glm4moe,
        "shared",
        moves=True,
        after=TRANSFORMERS,
    ),
    "glm4moe, M-RoPE": Family("GLM-4.5V, 4.6V", write_glm4moe_mrope, "shared", after="SGLang"),
    "glm4": Family("GLM-OCR", write_glm4, "shared", after="vLLM, SGLang"),
    "deepseek2 (GLM-4.7-Flash)": Family("GLM-4.7-Flash", write_glm4_flash, "shared", moves=True, after="SGLang"),
    "deepseek2 (DeepSeek-V3)": Family(
        "DeepSeek-V3, R1",
        write_deepseek3,
        "shared",
        moves=True,
        after=TRANSFORMERS,
        limits="llama.cpp's converter drops the head: tests/reference/convert.py shows what it takes to keep it",
    ),
    "bailingmoe2": Family("Ling 2.0, Ring 2.0", write_bailingmoe2, "shared", moves=True, after="SGLang"),
    "ernie4_5-moe": Family("ERNIE 4.5", write_ernie4_5_moe, "shared", moves=True, after="FastDeploy"),
    "hy_v3": Family("Hunyuan 3", write_hy_v3, "shared", moves=True, after="SGLang"),
    # sliding windows in some layers
    "mimo2": Family(
        "MiMo-V2.5",
        lambda path: write_mimo2(path, n_heads=3),
        "shared",
        n_heads=3,
        fed="plain",
        recycled="plain",
        after="SGLang",
    ),
    "mimo2, separate": Family(
        "MiMo-V2-Flash", write_mimo2_split, "shared", n_heads=3, fed="plain", recycled="plain", after="SGLang"
    ),
    "exaone4": Family("EXAONE-4.5", write_exaone4, "shared", after="vLLM"),
    "exaone4, no windows": Family("EXAONE-4.5, not of 64 layers", write_exaone4_small, "shared", moves=True),
    "exaone-moe": Family("K-EXAONE", write_exaone_moe, "shared", after="vLLM, SGLang"),
    "exaone-moe, full attention": Family("K-EXAONE, a head without a window", write_exaone_moe_full, "shared"),
    "mimo2, 1 head": Family("MiMo-V2.5", write_mimo2, "shared", fed="plain", recycled="plain"),
    "step35": Family(
        "Step-3.5, 3.7",
        write_step35,
        "shared",
        n_heads=3,
        fed="plain",
        recycled="plain",
        after="vLLM, SGLang",
    ),
    "cohere2moe": Family(
        "Cohere2-MoE",
        write_cohere2moe,
        "shared",
        deviation="rotates",
        limits="no head of it is published",
    ),
    "gemma4": Family(
        "Gemma-4 with its assistant",
        write_gemma4,
        "shared",
        write_assistant=write_gemma4_assistant,
        after="transformers' Gemma4AssistantForCausalLM",
    ),
    "gemma4, shared K/V": Family(
        "Gemma-4 E2B, E4B with their assistants",
        write_gemma4_shared,
        "shared",
        write_assistant=write_gemma4_choosing_assistant,
        embeds_layers=True,
        limits="llama.cpp's converter drops the tensors by which the assistant chooses a part of the vocabulary: "
        "without them it looks at all of it; tests/reference/convert.py shows what it takes to keep them",
    ),
    # recurrent states beside attention
    "qwen35": Family("Qwen3.5, 3.6, 3.8, dense", write_qwen35, "shared", after="vLLM"),
    "qwen35moe": Family("Qwen3.5, 3.6, 3.8, experts", write_qwen35moe, "shared", after="vLLM"),
    "qwen3next": Family("Qwen3-Next", write_qwen3next, "shared", after="vLLM"),
    "qwen4exp": Family(
        "Qwen3.8-Flash-Next",
        write_qwen4exp,
        "own",
        fed="plain",
        recycled="plain",
        after="vLLM, SGLang",
        embeds_layers=True,
    ),
    "qwen4exp, an index that picks": Family(
        "Qwen3.8-Flash-Next, long texts",
        write_qwen4exp_picking,
        "own",
        n_compared=0,
        fed="plain",
        recycled="plain",
        embeds_layers=True,
    ),
    "nemotron_h_moe": Family(
        "Nemotron-H, experts",
        write_nemotron_h_moe,
        "shared",
        after="vLLM, SGLang",
    ),
    "bailingmoe3": Family("Ling 3.0", write_bailingmoe3, "shared", after=TRANSFORMERS),
    # more than K/V by position
    "glm-dsa": Family(
        "GLM-5.2", write_glm_dsa, "own", moves=True, shares_index=True, n_compared=1, after="vLLM, SGLang"
    ),
    "glm-dsa, an index a layer": Family("GLM-5, 5.1", write_glm_dsa_full, "own", moves=True, after="SGLang"),
    "deepseek32": Family("DeepSeek-V3.2", write_deepseek32, "own", moves=True, after="SGLang"),
    "dots3note": Family(
        "dots3",
        write_dots3note,
        "own",
        after="vLLM",
        limits="the trunk's index rotates halves of its queries and keys in llama.cpp, neighbours in transformers: "
        "compared with PyTorch where the index picks everything: up to 2048 positions in the published model",
    ),
    "glm5-next": Family("GLM-5.3-Flash", write_glm5_next, "own", shares_index=True, n_compared=1, after="SGLang"),
    "deepseek4": Family(
        "DeepSeek-V4",
        write_deepseek4,
        "own",
        fed="plain",
        recycled="plain",
        limits="compared with llama.cpp's own scheme alone: its converter writes no F32",
    ),
    # trained for models that have none, see heads.md
    **{
        f"{name}, trained": Family(
            f"{models}, a head trained here",
            write_generic(name),
            "shared",
            moves=name not in ("gemma3", "mellum", "granitehybrid"),
        )
        for name, models in (
            ("llama", "Llama, Mistral"),
            ("qwen2", "Qwen2, Qwen2.5"),
            ("qwen3", "Qwen3"),
            ("qwen3moe", "Qwen3, experts"),
            ("gemma3", "Gemma 3"),
            ("mellum", "Mellum 2"),
            ("phi3", "Phi-3, Phi-4"),
            ("glm4", "GLM-4 (0414)"),
            ("deepseek2", "MLA (DeepSeek-V2 and V3, Kimi-K2, Moonlight)"),
            ("granitehybrid", "Granite 4"),
        )
    },
}


class Upstream(NamedTuple):
    """What there is of heads that the pinned llama.cpp cannot run as it is."""

    models: str
    converter: str
    """What llama.cpp's converter does with the head."""
    loader: str
    """What llama.cpp's loader does with its tensors."""
    published: str
    """Published code of the head; "": none known."""


OWN_GRAPHS = {
    "glm4": Upstream("GLM-OCR", "keeps it", "skips it", "vLLM, SGLang"),
    "exaone4": Upstream("EXAONE-4.5", "keeps it", "skips it", "vLLM"),
    "exaone-moe": Upstream("K-EXAONE", "keeps it", "skips it", "vLLM, SGLang"),
    "bailingmoe2": Upstream("Ling 2.0, Ring 2.0", "keeps it", "skips it", "SGLang"),
    "dots3note": Upstream("dots3", "keeps it", "skips it", "vLLM"),
    "ernie4_5-moe": Upstream("ERNIE 4.5", "drops it", "refuses a file with it", "FastDeploy; others in vLLM, SGLang"),
    "qwen4exp": Upstream(
        "Qwen3.8-Flash-Next", "keeps it", "loads it; its graph norms each stream by itself", "vLLM, SGLang"
    ),
    "glm4moe, M-RoPE": Upstream("GLM-4.5V, 4.6V", "keeps it", "loads it; its graph has no M-RoPE", "SGLang"),
    "glm5-next": Upstream("GLM-5.3-Flash", "keeps it", "loads it; its graph has the trunk's kind of memory", "SGLang"),
    "mimo2, separate": Upstream(
        "MiMo-V2-Flash", "keeps it", "loads it; its graph wants Q, K and V in one tensor", "vLLM, SGLang"
    ),
}
"""By the family that drafts."""


class Refused(NamedTuple):
    """A family that decodes plainly."""

    upstream: Upstream
    missing: str
    write: Callable[[Path], Path] | None = None
    """None: llama.cpp has nothing to load."""
    reason: str = "it has no graph for them"


REFUSED = {
    "ernie4_5": Refused(Upstream("ERNIE 4.5 dense", "", "loads it", ""), "heads: none are published", write_ernie4_5),
    "glm4, without sections": Refused(
        Upstream("GLM-4 dense (0414)", "", "", ""), "heads: none are published; the architecture's are GLM-OCR's"
    ),
}


def one_of_each_kind(names: Iterable[str], also: Collection[str] = ()) -> list[Any]:
    """The names as parameters. The fast tier runs the first of each kind of memory and heads, and what `also` names."""
    kinds, params = set(), []
    for name in names:
        family = FAMILIES[name]
        kind = (family.memory, family.moves, family.n_heads, family.shares_index, family.fed, family.recycled)
        params.append(pytest.param(name, marks=pytest.mark.slow if kind in kinds and name not in also else ()))
        kinds.add(kind)
    return params
