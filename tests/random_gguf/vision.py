"""Projectors, which turn images into rows of embeddings for the models of this package, as llama.cpp's converter writes
them; and images."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from .writer import N_EMBD, TensorWriter

PATCH, MERGE = 16, 2
ROW_PIXELS = PATCH * MERGE
"""An image of W x H pixels has W / ROW_PIXELS * H / ROW_PIXELS rows, if that is 8 or more."""
N_VISION, N_VISION_HEAD, N_VISION_FF, N_VISION_LAYER, IMAGE_SIZE = 64, 2, 96, 2, 128


class ProjectorWriter(TensorWriter):
    """`kind`: llama.cpp's name of the projector."""

    def __init__(self, path: Path, kind: str, n_embd: int, seed: int = 1) -> None:
        super().__init__(path, "clip", seed)
        self.add_type("mmproj")
        self.add_bool("clip.has_vision_encoder", True)
        self.add_string("clip.projector_type", kind)
        self.add_bool("clip.use_gelu", True)
        for name, value in {
            "embedding_length": N_VISION,
            "feed_forward_length": N_VISION_FF,
            "block_count": N_VISION_LAYER,
            "projection_dim": n_embd,
            "attention.head_count": N_VISION_HEAD,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
        }.items():
            self.add_uint32(f"clip.vision.{name}", value)
        self.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
        for name in ("mean", "std"):
            self.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])

    def matrix(self, name: str, *shape: int, scale: float | None = None) -> None:
        """As Writer.matrix: fastest dimension first."""
        self.random(name, shape, float(np.prod(shape[:-1])) ** -0.5 if scale is None else scale)

    def vector(self, name: str, n: int, mean: float = 0.0) -> None:
        """Values near `mean`."""
        self.add_tensor(name, (mean + 0.1 * self._rng.standard_normal(n)).astype(np.float32))

    def linear(self, name: str, n_in: int, n_out: int) -> None:
        """Weights and biases."""
        self.matrix(f"{name}.weight", n_in, n_out)
        self.vector(f"{name}.bias", n_out)


def write_qwen3vl_projector(path: Path, n_embd: int = N_EMBD, kind: str = "qwen3vl_merger") -> Path:
    """Qwen3-VL and Qwen3.5 to 3.8: patches of two frames, positions in sections, 2 x 2 patches a row."""
    w = ProjectorWriter(path, kind, n_embd)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        w.matrix(name, PATCH, PATCH, 3, N_VISION)
    w.vector("v.patch_embd.bias", N_VISION)
    w.matrix("v.position_embd.weight", N_VISION, (IMAGE_SIZE // PATCH) ** 2, scale=0.5)
    for i in range(N_VISION_LAYER):
        p = f"v.blk.{i}."
        for name in ("ln1", "ln2"):
            w.vector(f"{p}{name}.weight", N_VISION, 1.0)
            w.vector(f"{p}{name}.bias", N_VISION)
        w.linear(p + "attn_qkv", N_VISION, 3 * N_VISION)
        w.linear(p + "attn_out", N_VISION, N_VISION)
        w.linear(p + "ffn_up", N_VISION, N_VISION_FF)
        w.linear(p + "ffn_down", N_VISION_FF, N_VISION)
    w.vector("v.post_ln.weight", N_VISION, 1.0)
    w.vector("v.post_ln.bias", N_VISION)
    w.linear("mm.0", MERGE**2 * N_VISION, MERGE**2 * N_VISION)
    w.linear("mm.2", MERGE**2 * N_VISION, n_embd)
    return w.finish()


def write_glm4v_projector(path: Path, n_embd: int = N_EMBD) -> Path:
    """GLM-4.5V and 4.6V, GLM-OCR: RMS norms, gated feed-forwards, patches merged by a convolution."""
    w = ProjectorWriter(path, "glm4v", n_embd)
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        w.matrix(name, PATCH, PATCH, 3, N_VISION)
    w.vector("v.patch_embd.bias", N_VISION)
    w.vector("v.norm_embd.weight", N_VISION, 1.0)
    w.matrix("v.position_embd.weight", N_VISION, (IMAGE_SIZE // PATCH) ** 2, scale=0.5)
    for i in range(N_VISION_LAYER):
        p = f"v.blk.{i}."
        for name in ("ln1", "ln2"):
            w.vector(f"{p}{name}.weight", N_VISION, 1.0)
        w.matrix(p + "attn_qkv.weight", N_VISION, 3 * N_VISION)
        w.matrix(p + "attn_out.weight", N_VISION, N_VISION)
        for name, n_in, n_out in (
            ("up", N_VISION, N_VISION_FF),
            ("gate", N_VISION, N_VISION_FF),
            ("down", N_VISION_FF, N_VISION),
        ):
            w.matrix(f"{p}ffn_{name}.weight", n_in, n_out)
    w.vector("v.post_ln.weight", N_VISION, 1.0)
    w.matrix("mm.patch_merger.weight", MERGE, MERGE, N_VISION, n_embd)
    w.vector("mm.patch_merger.bias", n_embd)
    w.matrix("mm.model.fc.weight", n_embd, n_embd)
    w.vector("mm.post_norm.weight", n_embd, 1.0)
    w.vector("mm.post_norm.bias", n_embd)
    for name in ("up", "gate", "down"):
        w.matrix(f"mm.{name}.weight", n_embd, n_embd)
    return w.finish()


def png(width: int, height: int, seed: int = 1) -> bytes:
    """A PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return _png(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(lines))


def _png(header: bytes, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
