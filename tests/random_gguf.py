"""Writes tiny models with random F32 weights that llama.cpp can load and run: seconds to test, no meaning.

Tensors and metadata are those that llama.cpp's converters write for the architecture.

    python tests/random_gguf.py FOLDER   # one of each family
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_HEAD, N_KV, HEAD, N_FF = 128, 4, 2, 64, 256
N_VOCAB = 512


class _Writer(gguf.GGUFWriter):
    """Adds random tensors; shapes are given as ggml names them, fastest dimension first."""

    def __init__(self, path: Path, architecture: str, n_layer: int, n_heads: int, seed: int = 1) -> None:
        super().__init__(path, architecture)
        self._rng = np.random.default_rng(seed)
        self.add_block_count(n_layer + n_heads)
        self.add_nextn_predict_layers(n_heads)
        self.add_context_length(4096)
        self.add_embedding_length(N_EMBD)
        self.add_feed_forward_length(N_FF)
        self.add_head_count(N_HEAD)
        self.add_head_count_kv(N_KV)
        self.add_key_length(HEAD)
        self.add_value_length(HEAD)
        self.add_rope_dimension_count(HEAD // 2)
        self.add_rope_freq_base(10000.0)
        self.add_layer_norm_rms_eps(1e-5)
        self.add_vocab_size(N_VOCAB)
        self.add_tokenizer_model("gpt2")
        self.add_tokenizer_pre("default")
        self.add_token_list([chr(256 + i) for i in range(256)] + [f"<x{i}>" for i in range(N_VOCAB - 256)])
        self.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.USER_DEFINED] * (N_VOCAB - 256))
        self.add_token_merges(["a b"])
        self.add_bos_token_id(256)
        self.add_eos_token_id(256)

    def matrix(self, name: str, *shape: int, scale: float | None = None) -> None:
        scale = shape[0] ** -0.5 if scale is None else scale
        self.add_tensor(name, (self._rng.standard_normal(shape[::-1]) * scale).astype(np.float32))

    def norm(self, name: str, size: int = N_EMBD) -> None:
        self.add_tensor(name, (1 + 0.1 * self._rng.standard_normal(size)).astype(np.float32))

    def trunk(self) -> None:
        self.matrix("token_embd.weight", N_EMBD, N_VOCAB, scale=1.0)
        self.norm("output_norm.weight")
        self.matrix("output.weight", N_EMBD, N_VOCAB)

    def head(self, prefix: str) -> None:
        self.matrix(prefix + "nextn.eh_proj.weight", 2 * N_EMBD, N_EMBD)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            self.norm(f"{prefix}nextn.{name}.weight")

    def finish(self) -> None:
        self.write_header_to_file()
        self.write_kv_data_to_file()
        self.write_tensors_to_file()
        self.close()


def write_glm4moe(path: Path, n_layer: int = 3) -> Path:
    """One MTP head, full attention (a plain cache), mixture of experts."""
    n_expert, n_ff = 4, 64
    w = _Writer(path, "glm4moe", n_layer, 1)
    w.add_expert_count(n_expert)
    w.add_expert_used_count(2)
    w.add_expert_feed_forward_length(n_ff)
    w.add_expert_shared_count(1)
    w.add_leading_dense_block_count(1)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_weights_scale(1.0)
    w.add_expert_weights_norm(True)
    w.trunk()
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "post_attention_norm.weight")
        for name, n_head in (("q", N_HEAD), ("k", N_KV), ("v", N_KV)):
            w.matrix(f"{p}attn_{name}.weight", N_EMBD, n_head * HEAD)
            w.matrix(f"{p}attn_{name}.bias", n_head * HEAD, scale=0.1)
        w.matrix(p + "attn_output.weight", N_HEAD * HEAD, N_EMBD)
        if i == 0:
            _feed_forward(w, p, N_FF)
        else:
            _experts(w, p, n_expert, n_ff)
            w.matrix(p + "exp_probs_b.bias", n_expert, scale=0.01)
    w.head(f"blk.{n_layer}.")
    w.finish()
    return path


def write_mimo2(path: Path, n_heads: int = 1, n_layer: int = 4, window: int = 16) -> Path:
    """Chained MTP heads with sliding-window attention; trunk layers of both kinds (an iSWA cache)."""
    w = _Writer(path, "mimo2", n_layer, n_heads)
    w.add_expert_feed_forward_length(N_FF)
    w.add_sliding_window(window)
    w.add_sliding_window_pattern([i % 3 != 0 for i in range(n_layer)] + [True] * n_heads)
    w.trunk()
    for i in range(n_layer + n_heads):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        w.matrix(p + "attn_qkv.weight", N_EMBD, (N_HEAD + 2 * N_KV) * HEAD)
        w.matrix(p + "attn_output.weight", N_HEAD * HEAD, N_EMBD)
        w.matrix(p + "attn_sinks.weight", N_HEAD, scale=1.0)
        _feed_forward(w, p, N_FF)
        if i >= n_layer:
            w.head(p)
    w.finish()
    return path


def write_qwen35(path: Path) -> Path:
    """One MTP head; attention in every second layer, gated delta nets in the others (a hybrid memory); M-RoPE."""
    return _write_qwen(path, "qwen35")


def write_qwen3next(path: Path) -> Path:
    """As qwen35, but llama.cpp cannot roll back the states of its recurrent layers; mixture of experts."""
    return _write_qwen(path, "qwen3next")


def _write_qwen(path: Path, architecture: str, n_layer: int = 4) -> Path:
    n_state, n_group, n_rank, n_conv = 64, 2, 4, 4
    n_key, n_value = n_state * n_group, n_state * n_rank
    is_next = architecture == "qwen3next"
    w = _Writer(path, architecture, n_layer, 1)
    w.add_ssm_conv_kernel(n_conv)
    w.add_ssm_inner_size(n_value)
    w.add_ssm_state_size(n_state)
    w.add_ssm_time_step_rank(n_rank)
    w.add_ssm_group_count(n_group)
    w.add_uint32(f"{architecture}.full_attention_interval", 2)
    if is_next:
        w.add_expert_count(4)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(N_FF)
    else:
        w.add_rope_dimension_sections([6, 5, 5, 0])
    w.trunk()
    for i in range(n_layer + 1):
        p = f"blk.{i}."
        w.norm(p + "attn_norm.weight")
        w.norm(p + "post_attention_norm.weight")
        if i % 2 == 1 or i == n_layer:
            w.matrix(p + "attn_q.weight", N_EMBD, 2 * N_HEAD * HEAD)  # queries and their gates
            w.matrix(p + "attn_k.weight", N_EMBD, N_KV * HEAD)
            w.matrix(p + "attn_v.weight", N_EMBD, N_KV * HEAD)
            w.matrix(p + "attn_output.weight", N_HEAD * HEAD, N_EMBD)
            w.norm(p + "attn_q_norm.weight", HEAD)
            w.norm(p + "attn_k_norm.weight", HEAD)
        else:
            w.matrix(p + "attn_qkv.weight", N_EMBD, 2 * n_key + n_value)
            w.matrix(p + "attn_gate.weight", N_EMBD, n_value)
            w.matrix(p + "ssm_conv1d.weight", n_conv, 2 * n_key + n_value, scale=0.5)
            w.matrix(p + "ssm_dt.bias", n_rank, scale=0.5)
            w.add_tensor(p + "ssm_a", -np.linspace(0.5, 2, n_rank, dtype=np.float32))
            for name in ("ba",) if is_next else ("beta", "alpha"):
                w.matrix(f"{p}ssm_{name}.weight", N_EMBD, n_rank * (2 if is_next else 1))
            w.norm(p + "ssm_norm.weight", n_state)
            w.matrix(p + "ssm_out.weight", n_value, N_EMBD)
        if is_next:
            _experts(w, p, 4, N_FF)
            w.norm(p + "ffn_gate_inp_shexp.weight")
        else:
            _feed_forward(w, p, N_FF)
    w.head(f"blk.{n_layer}.")
    w.finish()
    return path


def _experts(w: _Writer, prefix: str, n_expert: int, n_ff: int) -> None:
    """Routed experts and a shared one."""
    w.matrix(prefix + "ffn_gate_inp.weight", N_EMBD, n_expert)
    for name, n_in, n_out in (("gate", N_EMBD, n_ff), ("up", N_EMBD, n_ff), ("down", n_ff, N_EMBD)):
        w.matrix(f"{prefix}ffn_{name}_exps.weight", n_in, n_out, n_expert)
        w.matrix(f"{prefix}ffn_{name}_shexp.weight", n_in, n_out)


def _feed_forward(w: _Writer, prefix: str, n_ff: int) -> None:
    w.matrix(prefix + "ffn_gate.weight", N_EMBD, n_ff)
    w.matrix(prefix + "ffn_up.weight", N_EMBD, n_ff)
    w.matrix(prefix + "ffn_down.weight", n_ff, N_EMBD)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_glm4moe(folder / "glm4moe.gguf")
    write_mimo2(folder / "mimo2.gguf")
    write_mimo2(folder / "mimo2-3-heads.gguf", n_heads=3)
    write_qwen35(folder / "qwen35.gguf")
    write_qwen3next(folder / "qwen3next.gguf")
