"""A Step-3.5 decoder with one MTP head, or a Qwen3 decoder without any, computed as llama.cpp computes it.

Knows tensors; no files and no optimizer. The head is recycled: draft step s runs the same layer on what step s - 1
left. Row j of step s takes token j and the hidden state of row j - 1 of the step before (of the trunk for the first
step; zeros for j = 0), and predicts token j + 1. Hidden states are handed on before their norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    architecture: str = "step35"
    """Or qwen3: without gates, windows and a head."""
    n_vocab: int = 8192
    n_layer: int = 16
    """Of the trunk; the head is one more."""
    n_embd: int = 512
    n_head: int = 8
    n_head_kv: int = 2
    head_size: int = 64
    n_ff: int = 1536
    window: int = 1024
    """Positions that windowed layers attend to: as many as a training row has, so that training needs no mask."""
    n_ctx: int = 2048
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def has_head(self) -> bool:
        return self.architecture == "step35"

    def windowed(self, layer: int) -> bool:
        """Of Step-3.5, three of four layers attend to a window and rotate whole heads; the others see all, and rotate
        half.
        """
        return self.has_head and layer % 4 != 0

    def n_rot(self, layer: int) -> int:
        return self.head_size // 2 if self.has_head and not self.windowed(layer) else self.head_size


SHAPES = {
    "embedded": Shape(),
    "large": Shape(n_layer=24, n_embd=768, n_head=12, n_head_kv=4, n_ff=2304),
    "qwen3": Shape("qwen3", n_layer=17),
    "tiny": Shape(n_layer=3, n_embd=64, n_head=2, n_head_kv=1, head_size=32, n_ff=128),
}


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.size(-1),), self.weight.float(), self.eps).to(x.dtype)


def rotation(n_rot: int, n_positions: int, base: float) -> Tensor:
    """(2, n_positions, n_rot / 2): cosines and sines."""
    frequencies = base ** (-torch.arange(0, n_rot, 2).float() / n_rot)
    angles = torch.outer(torch.arange(n_positions).float(), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + n_rot / 2) of the first n_rot values. x: (batch, rows, heads, head_size)."""
    cos, sin = cos_sin[:, None, : x.size(1), None]
    half = cos.size(-1)
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


class Attention(nn.Module):
    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.n_head, self.n_head_kv, self.head_size = shape.n_head, shape.n_head_kv, shape.head_size
        self.q = nn.Linear(shape.n_embd, shape.n_head * shape.head_size, bias=False)
        self.k = nn.Linear(shape.n_embd, shape.n_head_kv * shape.head_size, bias=False)
        self.v = nn.Linear(shape.n_embd, shape.n_head_kv * shape.head_size, bias=False)
        self.out = nn.Linear(shape.n_head * shape.head_size, shape.n_embd, bias=False)
        self.gate = nn.Linear(shape.n_embd, shape.n_head, bias=False) if shape.has_head else None
        self.q_norm = RMSNorm(shape.head_size, shape.eps)
        self.k_norm = RMSNorm(shape.head_size, shape.eps)
        self.register_buffer("cos_sin", rotation(shape.n_rot(layer), shape.window, shape.rope_base), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        q = rotate(self.q_norm(self.q(x).view(batch, rows, self.n_head, self.head_size)), self.cos_sin)
        k = rotate(self.k_norm(self.k(x).view(batch, rows, self.n_head_kv, self.head_size)), self.cos_sin)
        v = self.v(x).view(batch, rows, self.n_head_kv, self.head_size)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        ).transpose(1, 2)
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(x))[..., None]
        return self.out(y.reshape(batch, rows, self.n_head * self.head_size))


class FeedForward(nn.Module):
    def __init__(self, n_embd: int, n_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(n_embd, n_ff, bias=False)
        self.up = nn.Linear(n_embd, n_ff, bias=False)
        self.down = nn.Linear(n_ff, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(shape.n_embd, shape.eps)
        self.attn = Attention(shape, layer)
        self.ffn_norm = RMSNorm(shape.n_embd, shape.eps)
        self.ffn = FeedForward(shape.n_embd, shape.n_ff)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Head(nn.Module):
    """Shares the trunk's embeddings and output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embd_norm = RMSNorm(shape.n_embd, shape.eps)
        self.hidden_norm = RMSNorm(shape.n_embd, shape.eps)
        self.join = nn.Linear(2 * shape.n_embd, shape.n_embd, bias=False)
        self.layer = Layer(shape, shape.n_layer)
        self.norm = RMSNorm(shape.n_embd, shape.eps)

    def forward(self, embd: Tensor, hidden: Tensor) -> Tensor:
        before = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return self.layer(self.join(torch.cat([self.embd_norm(embd), self.hidden_norm(before)], -1)))


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.n_layer))
        self.norm = RMSNorm(shape.n_embd, shape.eps)
        self.output = nn.Linear(shape.n_embd, shape.n_vocab, bias=False)
        self.head = Head(shape) if shape.has_head else None
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            if name.endswith(("attn.out.weight", "ffn.down.weight")):
                nn.init.zeros_(weight)
            elif name in ("embd.weight", "output.weight"):
                nn.init.normal_(weight, std=0.02)
            else:
                nn.init.normal_(weight, std=0.7 * weight.size(-1) ** -0.5)

    def compile_layers(self) -> None:
        """Compile each kind of layer once, which takes seconds where the whole model takes minutes."""
        for layer in [*self.layers, *([self.head.layer] if self.head else [])]:
            layer.compile()

    def forward(self, tokens: Tensor, n_steps: int) -> list[Tensor]:
        """tokens: (batch, rows). The normed hidden states, (batch, rows, n_embd) each, of the trunk and then of
        n_steps draft steps: `output` turns each into logits of the token that follows.
        """
        embd = self.embd(tokens)
        if torch.is_autocast_enabled(tokens.device.type):
            embd = embd.bfloat16()
        hidden = embd
        for layer in self.layers:
            hidden = layer(hidden)
        states = [self.norm(hidden)]
        for _ in range(n_steps):
            assert self.head is not None
            hidden = self.head(embd, hidden)
            states.append(self.head.norm(hidden))
        return states
