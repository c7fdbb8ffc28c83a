"""A trained GLM-4.5-like GGUF in PyTorch, weights as they are after quantisation."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
import transformers
from gguf.quants import dequantize

from .checkpoints import Checkpoint, Head

LAYER = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}


def read_glm4moe(path: Path) -> Checkpoint:
    """The model in the GGUF at `path`: one head, no biases, embedding and output in one."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}

    def key(name: str) -> int:
        return int(reader.fields[f"glm4moe.{name}"].contents())

    n_all, n_embd, n_head = key("block_count"), key("embedding_length"), key("attention.head_count")
    head_dim = key("attention.key_length")
    config = transformers.Glm4MoeConfig(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=n_embd,
        intermediate_size=key("feed_forward_length"),
        num_hidden_layers=n_all,
        num_attention_heads=n_head,
        num_key_value_heads=key("attention.head_count_kv"),
        head_dim=head_dim,
        partial_rotary_factor=key("rope.dimension_count") / head_dim,
        rope_theta=float(reader.fields["glm4moe.rope.freq_base"].contents()),
        rms_norm_eps=float(reader.fields["glm4moe.attention.layer_norm_rms_epsilon"].contents()),
        n_routed_experts=key("expert_count"),
        num_experts_per_tok=key("expert_used_count"),
        moe_intermediate_size=key("expert_feed_forward_length"),
        first_k_dense_replace=key("leading_dense_block_count"),
        use_qk_norm=True,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    weights = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    for i in range(n_all):
        gguf_layer, layer = f"blk.{i}.", f"model.layers.{i}."
        for name, theirs in LAYER.items():
            if (weight := tensors.get(f"{gguf_layer}{name}.weight")) is not None:
                weights[f"{layer}{theirs}.weight"] = weight
        if f"{gguf_layer}ffn_gate_inp.weight" in tensors:
            gate, up, down = (tensors[f"{gguf_layer}ffn_{x}_exps.weight"] for x in ("gate", "up", "down"))
            weights[layer + "mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
            weights[layer + "mlp.experts.down_proj"] = down
            weights[layer + "mlp.gate.e_score_correction_bias"] = tensors[gguf_layer + "exp_probs_b.bias"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and missing == ["lm_head.weight"], (missing, unexpected)

    p, norm = f"blk.{n_all - 1}.nextn.", type(model.model.norm)
    norms = {}
    for name in ("enorm", "hnorm", "shared_head_norm"):
        norms[name] = norm(n_embd, eps=config.rms_norm_eps)
        norms[name].weight = torch.nn.Parameter(tensors[f"{p}{name}.weight"])
    head = Head(
        blocks=[model.model.layers[-1]],
        enorm=norms["enorm"],
        hnorm=norms["hnorm"],
        eh_proj=tensors[p + "eh_proj.weight"],
        norm=norms["shared_head_norm"],
        output=model.lm_head.weight.detach(),
    )
    return Checkpoint(path.parent, model.eval(), [head], n_layer=n_all - 1)
