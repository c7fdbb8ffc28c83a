"""Writes tiny models with MTP heads and random F32 weights that llama.cpp can load: seconds to test, no meaning.

Tensors and metadata are those that llama.cpp's converters write for the architecture. One module a maker of models;
`blocks` has what architectures share.
"""

from .bailing import write_bailingmoe2, write_bailingmoe3
from .cohere import write_cohere2moe
from .deepseek import write_deepseek3, write_deepseek4, write_deepseek32
from .dots import write_dots3note
from .ernie import write_ernie4_5, write_ernie4_5_moe
from .exaone import write_exaone4, write_exaone4_small, write_exaone_moe, write_exaone_moe_full
from .gemma import write_gemma4, write_gemma4_assistant, write_gemma4_choosing_assistant, write_gemma4_shared
from .generic import write_generic
from .glm import (
    write_glm4,
    write_glm4_flash,
    write_glm4moe,
    write_glm4moe_mrope,
    write_glm5_next,
    write_glm_dsa,
    write_glm_dsa_full,
)
from .hunyuan import write_hy_v3
from .hybrids import write_falcon_h1, write_granite_hybrid, write_jamba, write_lfm2
from .mimo import write_mimo2, write_mimo2_split
from .nemotron import write_nemotron_h_moe
from .qwen import write_qwen3next, write_qwen4exp, write_qwen4exp_picking, write_qwen35, write_qwen35moe
from .step import write_step35
from .writer import N_VOCAB

__all__ = [
    "N_VOCAB",
    "write_bailingmoe2",
    "write_bailingmoe3",
    "write_cohere2moe",
    "write_deepseek3",
    "write_deepseek32",
    "write_deepseek4",
    "write_dots3note",
    "write_ernie4_5",
    "write_ernie4_5_moe",
    "write_exaone4",
    "write_exaone4_small",
    "write_exaone_moe",
    "write_exaone_moe_full",
    "write_falcon_h1",
    "write_gemma4",
    "write_gemma4_assistant",
    "write_gemma4_choosing_assistant",
    "write_gemma4_shared",
    "write_generic",
    "write_glm4",
    "write_glm4_flash",
    "write_glm4moe",
    "write_glm4moe_mrope",
    "write_glm5_next",
    "write_glm_dsa",
    "write_glm_dsa_full",
    "write_granite_hybrid",
    "write_hy_v3",
    "write_jamba",
    "write_lfm2",
    "write_mimo2",
    "write_mimo2_split",
    "write_nemotron_h_moe",
    "write_qwen35",
    "write_qwen35moe",
    "write_qwen3next",
    "write_qwen4exp",
    "write_qwen4exp_picking",
    "write_step35",
]
