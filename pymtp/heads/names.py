"""How the tensors of heads are called: in checkpoints of Hugging Face, and in GGUF files.

A table of our own: the maps of the gguf package leave out heads where llama.cpp's converter does. Knows names only.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

EXPERT = re.compile(r"mlp\.experts\.(\d{1,5})\.(gate|up|down)_proj\.weight")
"""One expert's matrix: its number, and which of the three."""
FUSED_EXPERTS = {"mlp.experts.gate_up_proj": ("gate", "up"), "mlp.experts.down_proj": ("down",)}
"""All experts' matrices in one tensor, (experts, outputs, inputs); gates and ups follow each other in the outputs."""
INDEX_QK = "self_attn.indexer.index_qk_proj.weight"
"""Queries and the key of an index, which a GGUF has in two tensors."""
JOINED = ("fc_embedding.weight", "fc_hidden.weight")
"""What a head makes of token and of hidden state, which a GGUF has in one tensor, eh_proj, side by side."""
KV_B = "self_attn.kv_b_proj.weight"
"""Keys and values of latent attention, which a GGUF has in two tensors."""


def _weights(names: str, before: str = "") -> dict[str, str]:
    """Names of matrices and norms, without `.weight`, in pairs: the checkpoint's, after `before`, and the GGUF's."""
    pairs = (pair.split() for pair in names.split(","))
    return {f"{before}{theirs}.weight": f"{ours}.weight" for theirs, ours in pairs}


_NEXTN = _weights(
    "eh_proj nextn.eh_proj, enorm nextn.enorm, hnorm nextn.hnorm, shared_head.norm nextn.shared_head_norm, "
    "shared_head.head nextn.shared_head_head, embed_tokens nextn.embed_tokens"
)
_FEED_FORWARD = {
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    **{f"mlp.{x}_proj.weight": f"ffn_{x}.weight" for x in ("gate", "up", "down")},
    **{
        f"mlp.{shared}.{x}_proj.weight": f"ffn_{x}_shexp.weight"
        for x in ("gate", "up", "down")
        for shared in ("shared_experts", "shared_expert")
    },
}
_ATTENTION = {
    **{f"self_attn.{x}_proj.{part}": f"attn_{x}.{part}" for x in "qkv" for part in ("weight", "bias")},
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
}
_LATENT_ATTENTION = _weights(
    "q_proj attn_q, q_a_proj attn_q_a, q_a_layernorm attn_q_a_norm, q_b_proj attn_q_b, "
    "kv_a_proj_with_mqa attn_kv_a_mqa, kv_a_layernorm attn_kv_a_norm, o_proj attn_output, "
    "indexer.k_norm indexer.k_norm, indexer.weights_proj indexer.proj, indexer.wk indexer.attn_k, "
    "indexer.wq_b indexer.attn_q_b",
    "self_attn.",
) | {"self_attn.indexer.k_norm.bias": "indexer.k_norm.bias"}
_POOLS = {
    "self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate.weight",
    "self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape.weight",
}
_STEP = {
    "transformer.shared_head.norm.weight": "nextn.shared_head_norm.weight",
    "transformer.shared_head.output.weight": "nextn.shared_head_head.weight",
    "self_attn.g_proj.weight": "attn_gate.weight",
    "moe.gate.weight": "ffn_gate_inp.weight",
    "moe.router_bias": "exp_probs_b.bias",
    **{f"moe.{x}_proj.weight": f"ffn_{x}_exps.weight" for x in ("gate", "up", "down")},
    **{f"share_expert.{x}_proj.weight": f"ffn_{x}_shexp.weight" for x in ("gate", "up", "down")},
}
_GLM4 = _weights(
    "post_self_attn_layernorm post_attention_norm, post_mlp_layernorm post_ffw_norm, mlp.gate_up_proj ffn_up"
)
_EXAONE4 = _weights("post_attention_layernorm post_attention_norm, post_feedforward_layernorm post_ffw_norm")
_MIMO = _weights("pre_mlp_layernorm ffn_norm, final_layernorm layer_output_norm") | {
    "self_attn.attention_sink_bias": "attn_sinks.weight"
}
_BAILING = _weights(
    "attention.query_key_value attn_qkv, attention.dense attn_output, attention.query_layernorm attn_q_norm, "
    "attention.key_layernorm attn_k_norm, final_layernorm layer_output_norm"
) | {"mlp.gate.expert_bias": "exp_probs_b.bias"}
_STREAMS = {
    f"{theirs}.{part}.weight": f"{ours}_{what}.weight"
    for theirs, ours in (
        ("attn_hyper_connection", "hc_attn"),
        ("mlp_hyper_connection", "hc_ffn"),
        ("hyper_connection_mixer", "nextn.hc_head"),
    )
    for part, what in (
        ("hc_norm", "norm"),
        ("input_mix_weight_down", "down"),
        ("input_mix_weight_up", "up"),
        ("block_inject_weight", "inject"),
    )
} | {f"self_attn.indexer.{x}_layernorm.weight": f"indexer.{x}_norm.weight" for x in "qk"}
_QWEN_PARTS = {
    **{f"mtp.{part}": part for part in (*JOINED, *_STREAMS) if part.startswith(("fc_", "hyper_"))},
    "mtp.fc.weight": "eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
    "mtp.norm.weight": "shared_head.norm.weight",
}
_ERNIE_PARTS = {
    "mtp_linear_proj": "eh_proj",
    "mtp_emb_norm": "enorm",
    "mtp_hidden_norm": "hnorm",
}
_ERNIE = re.compile(rf"model\.(mtp_block|{'|'.join(_ERNIE_PARTS)})\.(\d{{1,5}})\.(.+)")
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.(.+)")
_MTP_LAYER = re.compile(r"mtp\.layers\.(\d{1,5})\.(.+)")


Windows = Literal["none", "listed", "as first", "all"]
"""Which heads attend to a window: none, if no layer of the model does; those that layer_types of config.json lists,
after the trunk's layers; those that have the number of a layer of the trunk that does; all."""


class Names(NamedTuple):
    published: str
    """What config.json calls it; several with white space between them."""
    parts: Mapping[str, str]
    """Names in a layer of the checkpoint, and in the GGUF."""
    counts_from_one: bool = False
    """Whether norms are stored as what is to be added to 1."""
    windows: Windows = "none"
    has_pairs: bool = False
    """With M-RoPE, rows of queries and keys that rotate together follow each other, which those of a GGUF do not."""


def _names(
    published: str,
    post_attention_norm: str,
    attention: Mapping[str, str],
    more: Mapping[str, str] | None = None,
    **others: Any,
) -> Names:
    """`others`: fields of Names."""
    norms = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": f"{post_attention_norm}.weight",
    }
    parts = {**_NEXTN, **norms, **attention, **_FEED_FORWARD, **(more or {})}
    return Names(published, parts, **others)


def _qwen(published: str, more: Mapping[str, str] | None = None) -> Names:
    return _names(published, _POST, _ATTENTION, more, counts_from_one=True)


_POST = "post_attention_norm"
NAMES = {
    "bailingmoe2": _names("BailingMoeV2ForCausalLM", "ffn_norm", _BAILING),
    "ernie4_5-moe": _names("Ernie4_5_MoeForCausalLM", "ffn_norm", _ATTENTION),
    "exaone4": _names("Exaone4_5_ForConditionalGeneration", _POST, _ATTENTION, _EXAONE4, windows="as first"),
    "exaone-moe": _names("ExaoneMoEForCausalLM ExaoneMoeForCausalLM", "ffn_norm", _ATTENTION, windows="as first"),
    "glm4": _names("GlmOcrForConditionalGeneration", "ffn_norm", _ATTENTION, _GLM4, has_pairs=True),
    "glm4moe": _names("Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration", _POST, _ATTENTION),
    "glm5-next": _names("Glm5NextForConditionalGeneration", "ffn_norm", _LATENT_ATTENTION, _POOLS),
    "deepseek2": _names("Glm4MoeLiteForCausalLM DeepseekV3ForCausalLM", "ffn_norm", _LATENT_ATTENTION),
    "deepseek32": _names("DeepseekV32ForCausalLM", "ffn_norm", _LATENT_ATTENTION),
    "glm-dsa": _names("GlmMoeDsaForCausalLM", "ffn_norm", _LATENT_ATTENTION),
    "mimo2": _names("MiMoV2FlashForCausalLM", "ffn_norm", _ATTENTION, _MIMO, windows="all"),
    "qwen35": _qwen("Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration"),
    "qwen35moe": _qwen("Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration"),
    "qwen3next": _qwen("Qwen3NextForCausalLM"),
    "qwen4exp": _qwen("Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration", _STREAMS),
    "step35": _names(
        "Step3p5ForCausalLM Step3p7ForConditionalGeneration",
        "ffn_norm",
        _ATTENTION,
        _STEP,
        counts_from_one=True,
        windows="listed",
    ),
}
"""The names of each architecture, which is called as in the GGUF."""
ARCHITECTURES = {name: architecture for architecture, names in NAMES.items() for name in names.published.split()}
"""What a GGUF calls the architecture that config.json calls so."""


def place(name: str, n_layer: int) -> tuple[int, str] | None:
    """Which head of a model with `n_layer` layers a tensor of a checkpoint is in, and its name there; None: in none."""
    name = name.replace("language_model.", "")
    if name.startswith("model.mtp."):
        name = name.removeprefix("model.")
    if match := _MTP_LAYER.fullmatch(name):
        return int(match[1]), match[2]
    if match := _ERNIE.fullmatch(name):
        part = _ERNIE_PARTS.get(match[1])
        return int(match[2]), f"{part}.{match[3]}" if part else match[3]
    if name in _QWEN_PARTS:
        return 0, _QWEN_PARTS[name]
    match = _LAYER.fullmatch(name)
    return (int(match[1]) - n_layer, match[2]) if match and int(match[1]) >= n_layer else None
