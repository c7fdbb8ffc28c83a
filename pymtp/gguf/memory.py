"""Estimates the memory of a model's context from its metadata.

Owns the arithmetic of llama.cpp's caches for the families that have MTP heads: which layer stores what, in how many
cells. Reads no file and needs no native library; knows numbers, not where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pymtp.gguf.types import TENSOR_TYPES

MemoryKind = Literal["full", "sliding-window", "hybrid", "recurrent", "sparse", "compressed"]

_CELL_BLOCK = 256
_F32_BYTES = 4
_F16_BYTES = 2
# how far drafts in the heads' own cache may reach beyond the trunk's last position: the engine's PYMTP_OWN_CACHE_MARGIN
_OWN_CACHE_MARGIN = 64


@dataclass(frozen=True)
class Layer:
    """What one layer stores of a sequence; MTP heads are layers like the others."""

    k_width: int = 0
    """Elements of K per position; 0: the layer stores no K/V."""
    v_width: int = 0
    """Elements of V per position; 0 if K includes it (MLA)."""
    has_window: bool = False
    index_width: int = 0
    """Elements per position of the index that sparse attention stores."""
    n_pooled: int = 1
    """Positions that one score of the index stands for."""
    ratio: int = 1
    """Positions that one cell of compressed K stands for."""
    state_bytes: int = 0
    """Size of one recurrent state."""
    shares_cells: bool = False
    """Whether what the index stores has the cells of K/V, where heads have theirs too."""


@dataclass(frozen=True)
class Shape:
    """What the memory of a model's context depends on."""

    trunk: tuple[Layer, ...]
    heads: tuple[Layer, ...]
    n_window: int
    n_vocab: int
    row_elements: int
    """Floats that the widest layer holds of a row while it is computed."""
    n_head: int
    """Attention heads of the layer that has most."""
    n_scores: int = 2
    """Numbers of a row and a cell while an index picks: its scores, and the selected ones."""

    @property
    def kind(self) -> MemoryKind:
        """What llama.cpp calls the memory of the trunk."""
        layers = self.trunk
        if any(layer.ratio > 1 for layer in layers):
            return "compressed"
        if any(layer.index_width for layer in layers):
            return "sparse"
        if any(layer.state_bytes for layer in layers):
            return "hybrid" if any(layer.k_width for layer in layers) else "recurrent"
        return "sliding-window" if any(layer.has_window for layer in layers) else "full"

    @property
    def has_recurrent_states(self) -> bool:
        """Whether some layers of the trunk are recurrent, whatever the others are."""
        return self.kind != "compressed" and any(layer.state_bytes for layer in self.trunk)

    @property
    def is_shared(self) -> bool:
        """Whether the heads' K/V lies in the cells of the trunk's cache; else the heads have their own cache."""
        return self.kind not in ("sparse", "compressed") or any(layer.shares_cells for layer in self.trunk)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a context, on all devices together. Weights not included."""

    n_ctx: int
    type_k: str
    type_v: str
    kv_bytes: int
    """The trunk's cache."""
    heads_kv_bytes: int
    """What the MTP heads add to it, or store in their own cache."""
    state_bytes: int
    """Recurrent states, including those that rollback restores."""
    compute_bytes: int
    """Intermediate results of one ubatch; a rough figure."""
    layer_bytes: tuple[int, ...]
    """What each layer stores of all sequences, those of the heads last."""

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return self.kv_bytes + self.heads_kv_bytes + self.state_bytes + self.compute_bytes


def estimate_memory(
    shape: Shape,
    *,
    n_ctx: int,
    n_ubatch: int,
    draft_max: int,
    type_k: str = "f16",
    type_v: str = "f16",
    n_seq_max: int = 1,
    n_cells: int | None = None,
    has_flash_attn: bool = True,
) -> MemoryEstimate:
    """The memory of a context of `n_seq_max` sequences of `n_ctx` tokens each. `draft_max` 0 loads no heads.

    `n_cells`: tokens that all of them together can hold; None: n_ctx of each.
    """
    n_tokens = n_cells or n_ctx * n_seq_max
    n_cells = _padded(n_tokens)
    n_ubatch = max(n_ubatch, (draft_max + 2) * n_seq_max if draft_max else n_seq_max)
    n_window = shape.n_window * n_seq_max + n_ubatch
    n_own_cells = n_cells if shape.is_shared else _padded(n_tokens + _OWN_CACHE_MARGIN * n_seq_max)
    sizes = _Sizes(type_k, type_v, n_window)
    n_states = n_seq_max * (1 + draft_max)  # one for each row of a verify pass
    trunk = [sizes.cache(layer, n_cells) for layer in shape.trunk]
    heads = [sizes.cache(layer, n_own_cells) if draft_max else 0 for layer in shape.heads]
    states = [n_states * layer.state_bytes for layer in shape.trunk]
    n_rows = min(n_ubatch, n_tokens)
    compute_bytes = _compute_bytes(shape, n_rows, n_cells, _padded(min(n_cells, n_window)), n_seq_max * (draft_max + 1))
    if not has_flash_attn:  # the scores of all heads of a layer's attention
        compute_bytes += _F32_BYTES * shape.n_head * n_rows * n_cells
    return MemoryEstimate(
        n_ctx=n_ctx,
        type_k=type_k,
        type_v=type_v,
        kv_bytes=sum(trunk),
        heads_kv_bytes=sum(heads),
        state_bytes=sum(states),
        compute_bytes=compute_bytes,
        layer_bytes=(*(a + b for a, b in zip(trunk, states, strict=True)), *heads),
    )


def _compute_bytes(shape: Shape, n_rows: int, n_cells: int, n_window_cells: int, n_outputs: int) -> int:
    masks = _F16_BYTES * n_rows * n_cells
    if any(layer.has_window for layer in shape.trunk):
        masks += _F16_BYTES * n_rows * n_window_cells
    # the selected scores of the index, and those before: of pooled cells one
    n_pooled = max((layer.n_pooled for layer in shape.trunk), default=1)
    n_scores = (shape.n_scores - 1) * (n_cells // n_pooled) + n_cells if shape.kind == "sparse" else 0
    scores = _F32_BYTES * n_rows * n_scores
    logits = _F32_BYTES * shape.n_vocab * n_outputs
    return masks + scores + logits + _F32_BYTES * n_rows * shape.row_elements


@dataclass(frozen=True)
class _Sizes:
    type_k: str
    type_v: str
    n_window: int
    """Cells that a layer with a window needs at most."""

    def cache(self, layer: Layer, n_cells: int) -> int:
        k_bytes = _row_bytes(self.type_k, layer.k_width)
        size = (k_bytes + _row_bytes(self.type_v, layer.v_width)) * (
            _padded(min(n_cells, self.n_window)) if layer.has_window else n_cells
        )
        n_compressed = _padded(-(-n_cells // layer.ratio)) if layer.ratio > 1 else n_cells
        size += _row_bytes(self.type_k, layer.index_width) * n_compressed
        return size + (k_bytes * n_compressed if layer.ratio > 1 else 0)


def _row_bytes(kind: str, n_elements: int) -> int:
    found = next(each for each in TENSOR_TYPES.values() if each.name == kind.upper())
    return -(-n_elements // found.block_elements) * found.block_bytes


def _padded(n: int) -> int:
    return -(-n // _CELL_BLOCK) * _CELL_BLOCK
