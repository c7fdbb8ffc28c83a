"""How each family's checkpoints are published: what transformers builds the layers from, names of tensors, config.json.

A table; `checkpoints` writes by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from random_gguf.writer import HEAD, N_EMBD, N_EXPERT, N_EXPERT_USED, N_FF, N_FF_EXPERT, N_HEAD, N_KV, N_VOCAB

N_LAYER = 4

BASE = {
    "vocab_size": N_VOCAB,
    "hidden_size": N_EMBD,
    "intermediate_size": N_FF,
    "num_attention_heads": N_HEAD,
    "num_key_value_heads": N_KV,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "pad_token_id": 0,
}
EXPERTS = {
    "n_routed_experts": N_EXPERT,
    "num_experts_per_tok": N_EXPERT_USED,
    "n_shared_experts": 1,
    "moe_intermediate_size": N_FF_EXPERT,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MLA = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 64,
    "num_key_value_heads": N_HEAD,
    "head_dim": 32,  # what rotates
}
YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
INDEX = {"index_topk": 16, "index_head_dim": 64, "index_n_heads": 16}
DELTA = {
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
QWEN_EXPERTS = {
    "num_experts": N_EXPERT,
    "num_experts_per_tok": N_EXPERT_USED,
    "moe_intermediate_size": N_FF_EXPERT,
    "shared_expert_intermediate_size": N_FF_EXPERT,
}

# where a published checkpoint has the parts of head {k}, which is layer {i}; "block": the layer itself
DEEPSEEK_NAMES = {
    "block": "model.layers.{i}.",
    "eh_proj": "model.layers.{i}.eh_proj.weight",
    "enorm": "model.layers.{i}.enorm.weight",
    "hnorm": "model.layers.{i}.hnorm.weight",
    "norm": "model.layers.{i}.shared_head.norm.weight",
}
FINAL_NORM_NAMES = {**DEEPSEEK_NAMES, "norm": "model.layers.{i}.final_layernorm.weight"}
QWEN_NAMES = {
    "block": "mtp.layers.{k}.",
    "eh_proj": "mtp.fc.weight",
    "enorm": "mtp.pre_fc_norm_embedding.weight",
    "hnorm": "mtp.pre_fc_norm_hidden.weight",
    "norm": "mtp.norm.weight",
}
QWEN_STREAM_NAMES = {
    "block": "mtp.layers.{k}.",
    "fc_embedding": "mtp.fc_embedding.weight",
    "fc_hidden": "mtp.fc_hidden.weight",
    "enorm": "mtp.pre_fc_norm_embedding.weight",
    "hnorm": "mtp.pre_fc_norm_hidden.weight",
    "norm": "mtp.hyper_connection_mixer.",
}
MIMO_NAMES = {
    "block": "model.mtp.layers.{k}.",
    "eh_proj": "model.mtp.layers.{k}.eh_proj.weight",
    "enorm": "model.mtp.layers.{k}.enorm.weight",
    "hnorm": "model.mtp.layers.{k}.hnorm.weight",
    "norm": "model.mtp.layers.{k}.final_layernorm.weight",
}
NEMOTRON_NAMES = {
    "block": "mtp.layers.{k}.",
    "eh_proj": "mtp.layers.0.eh_proj.weight",
    "enorm": "mtp.layers.0.enorm.weight",
    "hnorm": "mtp.layers.0.hnorm.weight",
    "norm": "mtp.layers.1.final_layernorm.weight",
}
STEP_NAMES = {
    "block": "model.layers.{i}.",
    "eh_proj": "model.layers.{i}.eh_proj.weight",
    "enorm": "model.layers.{i}.enorm.weight",
    "hnorm": "model.layers.{i}.hnorm.weight",
    "norm": "model.layers.{i}.transformer.shared_head.norm.weight",
    "output": "model.layers.{i}.transformer.shared_head.output.weight",
}
ERNIE_NAMES = {
    "block": "model.mtp_block.{k}.",
    "eh_proj": "model.mtp_linear_proj.{k}.weight",
    "enorm": "model.mtp_emb_norm.{k}.weight",
    "hnorm": "model.mtp_hidden_norm.{k}.weight",
}
OCR_NAMES = {part: name.replace("model.", "model.language_model.") for part, name in DEEPSEEK_NAMES.items()}
STEP_TYPES = ["full_attention", *["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 3]
STEP_ROTARY = [0.5 if kind == "full_attention" else 1.0 for kind in STEP_TYPES]


@dataclass(frozen=True)
class Recipe:
    """How to make a family's checkpoint."""

    model_type: str
    """In transformers."""
    architecture: str
    """In the published config.json."""
    config: Mapping[str, Any]
    """Of transformers' class, for the layers of trunk and heads together."""
    names: Mapping[str, str]
    """Of the parts that a head has of its own; its norm and output are the trunk's otherwise. One that ends in a period
    is that of a module."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that transformers' class has not, or has under other names."""
    n_layer: int = N_LAYER
    """Of the trunk."""
    n_heads: int = 1
    n_blocks: int = 1
    """Layers of transformers that make up the block of a head."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Tensors of a block that have other names in a head than in the trunk."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """What parts of all names are called in the published checkpoint, by what transformers calls them."""
    is_fused: bool = False
    """Queries, keys and values are one matrix, which they are not in transformers."""
    is_exported: bool = True
    """llama.cpp's converter can write the heads to a file of their own."""
    has_plain_residual: bool = False
    """The trunk has several streams of hidden states, the heads have one."""


def layer_types(one: str, other: str, head: str) -> list[str]:
    """Kinds of layers in turn, then that of the head."""
    return [one, other] * (N_LAYER // 2) + [head]


HYBRID = {"layer_types": layer_types("linear_attention", "full_attention", "full_attention")}

# of dots3's layers with a window
WINDOWED = {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    "kv_lora_rank": 96,
    "head_dim": 96,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}

# positions in sections, of a model that reads images
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [4, 6, 6]}
VISION = {"hidden_size": 64, "depth": 1, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": N_EMBD}

# llama.cpp wants query heads of these that are as wide as the model together
NARROW = {**BASE, "num_attention_heads": N_EMBD // HEAD, "num_key_value_heads": 1}

RECIPES = {
    "glm4moe": Recipe(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        {**BASE, **EXPERTS, "attention_bias": True, "partial_rotary_factor": 0.5},
        DEEPSEEK_NAMES,
        {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    ),
    "deepseek2 (GLM-4.7-Flash)": Recipe(
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        {**BASE, **EXPERTS, **MLA},
        DEEPSEEK_NAMES,
        # llama.cpp takes GLM's router from the size of the published model; here it has to be said
        {"rope_theta": 10000.0, "first_k_dense_replace": 1, "scoring_func": "sigmoid"},
    ),
    "mimo2": Recipe(
        "mimo_v2_flash",
        "MiMoV2ForCausalLM",
        {
            **BASE,
            **EXPERTS,
            "v_head_dim": HEAD // 2,
            "routed_scaling_factor": 1.0,
            "sliding_window": 16,
            "attention_value_scale": 0.7,
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 3],
            "mlp_layer_types": ["dense", *["sparse"] * 3, *["dense"] * 3],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
            },
        },
        MIMO_NAMES,
        {
            "hybrid_layer_pattern": [0, 1, 1, 0],
            "swa_num_key_value_heads": 2 * N_KV,
            "swa_num_attention_heads": N_HEAD,
            "swa_head_dim": HEAD,
            "swa_v_head_dim": HEAD // 2,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "moe_layer_freq": [0, 1, 1, 1],
            "rope_parameters": None,
            "rope_theta": 10000.0,
            "swa_rope_theta": 1000.0,
            "partial_rotary_factor": 0.5,
            "layernorm_epsilon": 1e-5,
        },
        n_heads=3,
        renamed={"post_attention_layernorm.weight": "pre_mlp_layernorm.weight"},
        is_fused=True,
    ),
    "step35": Recipe(
        "step3p7",
        "Step3p5ForCausalLM",
        {
            "text_config": {
                **BASE,
                "num_hidden_layers": N_LAYER + 3,
                "n_routed_experts": N_EXPERT,
                "num_experts_per_tok": N_EXPERT_USED,
                "moe_intermediate_size": N_FF_EXPERT,
                "share_expert_dim": N_FF_EXPERT,
                "moe_router_scaling_factor": 1.5,
                "sliding_window": 16,
                "num_sliding_attention_heads": N_HEAD + 2,
                "layer_types": STEP_TYPES,
                "mlp_layer_types": ["dense", *["sparse"] * 3, *["dense"] * 3],
                "rope_theta": [10000.0 if kind == "full_attention" else 1000.0 for kind in STEP_TYPES],
                "partial_rotary_factors": STEP_ROTARY,
            },
            "vision_config": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
        },
        STEP_NAMES,
        {
            **BASE,
            "text_config": None,
            "vision_config": None,
            "num_attention_groups": N_KV,
            "attention_other_setting": {"num_attention_heads": N_HEAD + 2, "num_attention_groups": N_KV},
            "sliding_window": 16,
            "layer_types": STEP_TYPES,
            "partial_rotary_factors": STEP_ROTARY,
            "rope_theta": [10000.0, 1000.0],
            "moe_num_experts": N_EXPERT,
            "moe_top_k": N_EXPERT_USED,
            "moe_intermediate_size": N_FF_EXPERT,
            "share_expert_dim": N_FF_EXPERT,
            "moe_layers_enum": "1,2,3",
            "moe_router_scaling_factor": 1.5,
            "norm_expert_weight": True,
            "scoring_func": "sigmoid",
        },
        n_heads=3,
    ),
    "cohere2moe": Recipe(
        "cohere2_moe",
        "Cohere2MoeForCausalLM",
        {
            **BASE,
            "rms_norm_eps": None,
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "num_experts": N_EXPERT,
            "num_experts_per_tok": N_EXPERT_USED,
            "num_shared_experts": 1,
            "intermediate_size": N_FF_EXPERT,
            "prefix_dense_intermediate_size": N_FF,
            "expert_selection_fn": "sigmoid",
            "sliding_window": 16,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2,
            "mlp_layer_types": ["dense"] + ["sparse"] * 4,
        },
        DEEPSEEK_NAMES,
        {"rope_theta": 10000.0},
    ),
    "nemotron_h_moe": Recipe(
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            **BASE,
            **{key: EXPERTS[key] for key in ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")},
            "moe_shared_expert_intermediate_size": N_FF_EXPERT,
            "routed_scaling_factor": 1.5,
            "num_hidden_layers": None,
            "layers_block_type": ["mamba", "moe", "attention", "moe", "attention", "moe"],
            "ssm_state_size": 32,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "chunk_size": 16,
        },
        NEMOTRON_NAMES,
        {"hybrid_override_pattern": "ME*E", "mamba_n_groups": 2},
        n_blocks=2,
    ),
    "bailingmoe3": Recipe(
        "bailing_hybrid",
        "BailingMoeV3ForCausalLM",
        {
            **BASE,
            **EXPERTS,
            **MLA,
            "q_lora_rank": None,
            "num_experts": N_EXPERT,
            "head_dim": HEAD,
            "layer_group_size": 2,
            "layer_types": layer_types("linear_attention", "full_attention", "full_attention"),
            "mlp_layer_types": ["dense", *["sparse"] * 4],
        },
        FINAL_NORM_NAMES,
        {
            "no_kda_lora": True,
            "gated_attention_proj_granularity_type": "head_wise",
            "moe_shared_expert_intermediate_size": N_FF_EXPERT,
            "num_experts": N_EXPERT,
            "norm_topk_prob": True,
            "num_experts_per_tok": N_EXPERT_USED,
            "score_function": "sigmoid",
            "mtp_layer_types": ["full_attention"],
            "mtp_mlp_layer_types": ["sparse"],
            "head_dim": HEAD,
        },
    ),
    "glm-dsa": Recipe(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        {**BASE, **EXPERTS, **MLA, **INDEX, "indexer_types": layer_types("full", "shared", "full")},
        DEEPSEEK_NAMES,
        {"rope_theta": 10000.0, "scoring_func": "sigmoid"},
    ),
    "glm-dsa, an index a layer": Recipe(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        {**BASE, **EXPERTS, **MLA, **INDEX, "indexer_types": layer_types("full", "full", "full")},
        DEEPSEEK_NAMES,
        {"rope_theta": 10000.0, "scoring_func": "sigmoid"},
    ),
    "glm5-next": Recipe(
        "glm5_next",
        "Glm5NextForConditionalGeneration",
        {
            "text_config": {
                **BASE,
                **EXPERTS,
                **MLA,
                **INDEX,
                "num_hidden_layers": N_LAYER + 1,
                "qk_rope_head_dim": 0,
                "head_dim": 0,
                "index_kpool": 4,
                "indexer_types": ["full"] * (N_LAYER + 1),
                "layer_types": layer_types("linear_attention", "indexed_attention", "indexed_attention"),
                "mlp_layer_types": ["dense", *["sparse"] * N_LAYER],
                "linear_head_dim": 64,
                "linear_num_heads": N_HEAD,
                "swiglu_limit": 7.0,
            },
            "vision_config": VISION,
        },
        DEEPSEEK_NAMES,
        {
            **BASE,
            **EXPERTS,
            **MLA,
            **INDEX,
            "text_config": None,
            "vision_config": None,
            "qk_rope_head_dim": 0,
            "mla_use_nope": True,
            "index_kpool": 4,
            "layer_types": layer_types("linear_attention", "full_attention", "full_attention")[:N_LAYER],
            "linear_attn_config": {
                "num_heads": N_HEAD,
                "head_dim": 64,
                "short_conv_kernel_size": 4,
                "gate_lower_bound": -5.0,
            },
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "swiglu_limit": 7.0,
        },
        has_plain_residual=True,
    ),
    "hy_v3": Recipe(
        "hy_v3",
        "HYV3ForCausalLM",
        {
            **BASE,
            "num_experts": N_EXPERT,
            "num_experts_per_tok": N_EXPERT_USED,
            "num_shared_experts": 1,
            "moe_intermediate_size": N_FF_EXPERT,
            "router_scaling_factor": 1.5,
        },
        FINAL_NORM_NAMES,
        {"qk_norm": True, "route_norm": True},
    ),
    "qwen35": Recipe(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        {**BASE, **DELTA, **HYBRID},
        QWEN_NAMES,
        {"mtp_num_hidden_layers": 1, "full_attention_interval": 2},
    ),
    "qwen35moe": Recipe(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        {**BASE, **DELTA, **QWEN_EXPERTS, **HYBRID},
        QWEN_NAMES,
        {"mtp_num_hidden_layers": 1, "full_attention_interval": 2},
    ),
    "qwen3next": Recipe(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {**BASE, **DELTA, **QWEN_EXPERTS, **HYBRID},
        QWEN_NAMES,
        {"full_attention_interval": 2},
    ),
    "qwen4exp": Recipe(
        "qwen4_exp_text",
        "Qwen4ExpForCausalLM",
        {
            **BASE,
            **DELTA,
            **QWEN_EXPERTS,
            **HYBRID,
            "hc_count": 4,
            "hc_lowrank": 16,
            "ple_layer_ids": [3],
            "ngram_size": 3,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 30,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 2,
            "ple_conv_kernel_size": 4,
            "indexer_n_heads": 16,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 64,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
            "output_gate_type": "sigmoid",
            "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]},
        },
        QWEN_STREAM_NAMES,
        {
            "mtp_num_hidden_layers": 1,
            "full_attention_interval": 2,
            "layer_types": ["linear_attention", "full_attention"] * (N_LAYER // 2),
        },
        is_exported=False,
    ),
    "deepseek2 (DeepSeek-V3)": Recipe(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {**BASE, **EXPERTS, **MLA, "n_group": 2, "rope_parameters": {"rope_theta": 10000.0, **YARN}},
        DEEPSEEK_NAMES,
        {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": YARN, "scoring_func": "sigmoid"},
        is_exported=False,
    ),
    "deepseek32": Recipe(
        "deepseek_v32",
        "DeepseekV32ForCausalLM",
        {**BASE, **EXPERTS, **MLA, **INDEX},
        DEEPSEEK_NAMES,
        {"rope_theta": 10000.0, "scoring_func": "sigmoid"},
    ),
    "glm4": Recipe(
        "glm_ocr",
        "GlmOcrForConditionalGeneration",
        {
            "text_config": {**BASE, "num_hidden_layers": N_LAYER + 1, "rope_parameters": SECTIONS},
            "vision_config": VISION,
        },
        OCR_NAMES,
        {**BASE, "text_config": None, "vision_config": None, "rope_parameters": SECTIONS},
        is_exported=False,
    ),
    "glm4moe, M-RoPE": Recipe(
        "glm4v_moe",
        "Glm4vMoeForConditionalGeneration",
        {
            "text_config": {
                **BASE,
                **EXPERTS,
                "num_hidden_layers": N_LAYER + 1,
                "attention_bias": True,
                "rope_parameters": SECTIONS,
            },
            "vision_config": VISION,
        },
        OCR_NAMES,
        {**BASE, **EXPERTS, "text_config": None, "vision_config": None, "rope_parameters": SECTIONS},
    ),
    "exaone-moe": Recipe(
        "exaone_moe",
        "ExaoneMoeForCausalLM",
        {
            **NARROW,
            "num_experts": N_EXPERT,
            "num_experts_per_tok": N_EXPERT_USED,
            "num_shared_experts": 1,
            "moe_intermediate_size": N_FF_EXPERT,
            "routed_scaling_factor": 1.5,
            "sliding_window": 16,
            "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", *["sparse"] * 3, "dense"],
        },
        QWEN_NAMES,
        {"scoring_func": "sigmoid", "rope_theta": 10000.0},
        is_exported=False,
    ),
    "exaone4": Recipe(
        "exaone4_5",
        "Exaone4_5_ForConditionalGeneration",
        {
            "text_config": {
                **NARROW,
                "model_type": "exaone4",
                "num_hidden_layers": 65,
                "sliding_window": 16,
                "layer_types": [*[*["sliding_attention"] * 3, "full_attention"] * 16, "sliding_attention"],
            },
            "vision_config": VISION,
        },
        QWEN_NAMES,
        {
            **NARROW,
            "text_config": None,
            "vision_config": None,
            "sliding_window": 16,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 16,
            "rope_theta": 10000.0,
            "mtp_share_layers": True,
        },
        n_layer=64,
        is_exported=False,
    ),
    # transformers has no class for these layers, but those of GLM-4.5 compute the same
    "bailingmoe2": Recipe(
        "glm4_moe",
        "BailingMoeV2ForCausalLM",
        {**NARROW, **EXPERTS, "partial_rotary_factor": 0.5, "use_qk_norm": True},
        FINAL_NORM_NAMES,
        {
            "num_experts": N_EXPERT,
            "num_shared_experts": 1,
            "score_function": "sigmoid",
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        },
        spelled={
            "embed_tokens": "word_embeddings",
            "self_attn.qkv_proj": "attention.query_key_value",
            "self_attn.o_proj": "attention.dense",
            "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
            "gate.e_score_correction_bias": "gate.expert_bias",
        },
        is_fused=True,
        is_exported=False,
    ),
    "dots3note": Recipe(
        "dots3_note_text",
        "Dots3NoteForCausalLM",
        {
            **BASE,
            **EXPERTS,
            **MLA,
            **INDEX,
            **{f"swa_{key}": value for key, value in WINDOWED.items()},
            "index_topk": 64,  # more than the texts of the tests have: the trunk's indexes differ, see the families
            "head_dim": 64,
            "moe_shared_expert_intermediate_size": N_FF_EXPERT,
            "sliding_window": 16,
            "rope_theta": 10000.0,
            "swa_rope_theta": 1000.0,
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", *["sparse"] * 3, "dense"],
        },
        {**DEEPSEEK_NAMES, "embedding": "model.mtp.embed_tokens.weight"},
        {
            **{f"swa_{key}": value for key, value in WINDOWED.items()},
            "sliding_window_size": 16,
            "rope_parameters": None,
            "per_layer_config": None,
            "rope_theta": 10000.0,
            "swa_rope_theta": 1000.0,
            "first_k_dense_replace": 1,
            "scoring_func": "sigmoid",
            "apply_mla_qkv_lora_rescale": True,
        },
    ),
    "ernie4_5-moe": Recipe(
        "ernie4_5_moe",
        "Ernie4_5_MoeForCausalLM",
        {
            **BASE,
            "moe_num_experts": N_EXPERT,
            "moe_k": N_EXPERT_USED,
            "moe_num_shared_experts": N_FF // N_KV // N_FF_EXPERT,  # where the converter takes their size from
            "moe_intermediate_size": N_FF_EXPERT,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": N_LAYER - 1,
        },
        ERNIE_NAMES,
        {"rope_theta": 10000.0},
        is_exported=False,
    ),
}
RECIPES["mimo2, separate"] = replace(RECIPES["mimo2"], architecture="MiMoV2FlashForCausalLM", is_fused=False)
