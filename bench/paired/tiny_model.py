"""Writes a tiny model with random F32 weights: one MTP head, and rounds of about a millisecond.

So small that what a round costs besides its multiplications shows. Tensors and metadata are those that llama.cpp's
converter writes for glm4moe.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_LAYER = 4
N_VOCAB = 1024
N_EMBD = 256
N_HEAD, N_HEAD_KV, HEAD_SIZE = 4, 2, 64
N_FF, N_FF_EXPERT = 512, 128
N_EXPERT, N_EXPERT_USED = 8, 2


def write_tiny(path: Path) -> Path:
    """Write the model to `path`: 4 layers (the first dense, the others mixtures of experts) and 1 head."""
    writer = gguf.GGUFWriter(path, "glm4moe")
    _add_metadata(writer)
    random = np.random.default_rng(1)
    for name, shape in _shapes().items():
        # shapes are ggml's, fastest dimension first
        values = random.standard_normal(shape[::-1])
        if len(shape) > 1:
            values *= 1 if name == "token_embd.weight" else shape[0] ** -0.5
        else:
            values = values * 0.1 + name.endswith("norm.weight")
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny, random weights")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(N_LAYER + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_context_length(8192)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE // 2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_EXPERT_USED)
    writer.add_expert_feed_forward_length(N_FF_EXPERT)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_weights_norm(True)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([chr(256 + i) for i in range(256)] + [f"<x{i}>" for i in range(N_VOCAB - 256)])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.USER_DEFINED] * (N_VOCAB - 256))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_EMBD, N_VOCAB),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (N_EMBD, N_VOCAB),
    }
    for layer in range(N_LAYER + 1):
        for name, shape in _layer_shapes(is_dense=layer == 0, is_head=layer == N_LAYER).items():
            shapes[f"blk.{layer}.{name}"] = shape
    return shapes


def _layer_shapes(*, is_dense: bool, is_head: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (N_EMBD,), "post_attention_norm.weight": (N_EMBD,)}
    for name, n_head in (("q", N_HEAD), ("k", N_HEAD_KV), ("v", N_HEAD_KV)):
        shapes[f"attn_{name}.weight"] = (N_EMBD, n_head * HEAD_SIZE)
        shapes[f"attn_{name}.bias"] = (n_head * HEAD_SIZE,)
    shapes["attn_output.weight"] = (N_HEAD * HEAD_SIZE, N_EMBD)
    if is_dense:
        shapes |= _feed_forward("", N_FF)
    else:
        shapes["ffn_gate_inp.weight"] = (N_EMBD, N_EXPERT)
        shapes["exp_probs_b.bias"] = (N_EXPERT,)
        shapes |= _feed_forward("_exps", N_FF_EXPERT, N_EXPERT)
        shapes |= _feed_forward("_shexp", N_FF_EXPERT)
    if is_head:
        shapes["nextn.eh_proj.weight"] = (2 * N_EMBD, N_EMBD)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            shapes[f"nextn.{name}.weight"] = (N_EMBD,)
    return shapes


def _feed_forward(kind: str, n_ff: int, *n_expert: int) -> dict[str, tuple[int, ...]]:
    return {
        f"ffn_gate{kind}.weight": (N_EMBD, n_ff, *n_expert),
        f"ffn_up{kind}.weight": (N_EMBD, n_ff, *n_expert),
        f"ffn_down{kind}.weight": (n_ff, N_EMBD, *n_expert),
    }
