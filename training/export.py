"""Writes trained weights as GGUF, named as llama.cpp's converters name them:
python -m training.export weights.pt tokenizer.json OUT.gguf --type q8_0.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from .model import Shape
from .tokenizer import END, PRE_TOKENIZER, TURN_END

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}</think>\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}</think>\n{% endif %}{% endif %}"
)
TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
LAYER = {
    "attn_norm": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.out": "attn_output",
    "attn.gate": "attn_gate",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}
HEAD = {
    "join": "nextn.eh_proj",
    "embd_norm": "nextn.enorm",
    "hidden_norm": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}


def tensor_names(shape: Shape) -> dict[str, str]:
    """The GGUF's name of each weight, without `.weight`."""
    names = {"embd": "token_embd", "norm": "output_norm", "output": "output"}
    for i in range(shape.n_layer):
        names |= {f"layers.{i}.{ours}": f"blk.{i}.{theirs}" for ours, theirs in LAYER.items()}
    if not shape.has_head:
        return {ours: theirs for ours, theirs in names.items() if not ours.endswith(".gate") or ".ffn." in ours}
    names |= {f"head.layer.{ours}": f"blk.{shape.n_layer}.{theirs}" for ours, theirs in LAYER.items()}
    return names | {f"head.{ours}": f"blk.{shape.n_layer}.{theirs}" for ours, theirs in HEAD.items()}


def write_gguf(path: Path, shape: Shape, weights: dict[str, Any], tokenizer: Path, kind: str, name: str) -> None:
    """Write a model; matrices take `kind`, norms stay F32."""
    matrix_type, file_type = TYPES[kind]
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_file_type(file_type)
    _add_shape(writer, shape)
    _add_vocabulary(writer, json.loads(tokenizer.read_text()), shape.n_vocab)
    for ours, theirs in tensor_names(shape).items():
        values = weights[f"{ours}.weight"].float().numpy()
        if values.ndim == 1 or matrix_type == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(f"{theirs}.weight", values.astype(np.float32))
        else:
            writer.add_tensor(f"{theirs}.weight", gguf.quants.quantize(values, matrix_type), raw_dtype=matrix_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    n_layer = shape.n_layer + shape.has_head
    writer.add_block_count(n_layer)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count([shape.n_head] * n_layer)
    writer.add_head_count_kv([shape.n_head_kv] * n_layer)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_freq_base(shape.rope_base)
    if shape.has_head:
        writer.add_nextn_predict_layers(1)
        writer.add_expert_feed_forward_length(shape.n_ff)  # must be there, although there are no experts
        writer.add_rope_dimension_count(shape.head_size)  # of windowed layers; the others rotate half of it
        writer.add_float32("step35.rope.freq_base_swa", shape.rope_base)
        writer.add_sliding_window(shape.window)
        writer.add_sliding_window_pattern([shape.windowed(i) for i in range(n_layer)])


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], n_vocab: int) -> None:
    ids: dict[str, int] = dict(tokenizer["model"]["vocab"])
    types = [gguf.TokenType.NORMAL] * n_vocab
    for token in tokenizer["added_tokens"]:
        ids[token["content"]] = token["id"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(sorted(ids, key=ids.__getitem__))
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(ids[END])
    writer.add_eos_token_id(ids[END])
    writer.add_eot_token_id(ids[TURN_END])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--name", default="pymtp-nano-step35")
    given = parser.parse_args()
    saved = torch.load(given.weights, map_location="cpu", weights_only=True)
    write_gguf(given.out, Shape(**saved["shape"]), saved["model"], given.tokenizer, given.type, given.name)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
