"""How queries and keys of a head know positions: what llama.cpp's rotation computes, and those that a file may mean."""

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from pymtp.gguf.model_file import ModelFile
from pymtp.training.form import Form, read_tensor


class Rotation(NamedTuple):
    """How queries and keys know positions."""

    n_rot: int
    """Numbers of a head that rotate; 0: none."""
    is_neox: bool
    """Whether the two numbers of a pair are half of n_rot apart, not side by side."""
    base: float
    factors: Tensor | None = None
    """What each pair turns more slowly by."""
    scale: float = 1.0
    is_last: bool = False
    """Whether they are the last ones, not the first."""
    magnitude: float = 1.0
    """What the numbers that rotate are multiplied by."""

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: (..., n_tokens, n_head_k); positions: (n_tokens,)."""
        if not self.n_rot:
            return x
        exponents = torch.arange(0, self.n_rot, 2, device=x.device) / self.n_rot
        frequencies = self.scale * self.base**-exponents
        if self.factors is not None:
            frequencies = frequencies / self.factors[: self.n_rot // 2].to(x.device)
        angles = positions[:, None] * frequencies
        cos, sin = ((self.magnitude * turn).to(x.dtype) for turn in (angles.cos(), angles.sin()))
        n_rest = x.shape[-1] - self.n_rot
        before, turning, after = x.split([n_rest, self.n_rot, 0] if self.is_last else [0, self.n_rot, n_rest], -1)
        a, b = turning.chunk(2, -1) if self.is_neox else (turning[..., ::2], turning[..., 1::2])
        turned = (a * cos - b * sin, a * sin + b * cos)
        joined = torch.cat(turned, -1) if self.is_neox else torch.stack(turned, -1).flatten(-2)
        return torch.cat([before, joined, after], -1)


def rotations(file: ModelFile, form: Form) -> Iterator[Rotation]:
    """All that the metadata of `file` may mean to one architecture or another."""
    n_rot, base = file.number("rope.dimension_count") or form.n_head_k, _float(file, "freq_base", 10000.0)
    scaled_by = {_float(file, key, 1.0) for key in ("scaling.factor", "scale_linear")}
    named = [read_tensor(file, f"rope_{name}.weight") for name in ("freqs", "factors_short", "factors_long")]
    frequencies = [torch.tensor(values) for values in named if values is not None]
    magnitude = _float(file, "scaling.attn_factor", 1.0)
    for n, is_neox in product((n_rot, n_rot // 2, 0), (True, False)):
        for factors, factor in product((None, *frequencies), {1.0, *scaled_by}):
            yield Rotation(n, is_neox, base, factors, 1 / factor, form.value_in_key, magnitude)
        if n and base > 1 and file.value("rope.scaling.type") == "yarn":
            for factors, more in product(_yarn_factors(file, n, base), _yarn_magnitudes(file)):
                yield Rotation(n, is_neox, base, factors, 1.0, form.value_in_key, magnitude * more)


def _yarn_factors(file: ModelFile, n_rot: int, base: float) -> list[Tensor]:
    """Factors by which YaRN slows the pairs: fast ones not at all, slow ones by all of `scaling.factor`.

    ggml's rope_yarn. Most architectures do not read where these begin and end.
    """
    factor, n_ctx = _float(file, "scaling.factor", 1.0), file.number("context_length")
    n_ctx = max(1, file.number("rope.scaling.original_context_length") or n_ctx)
    named = tuple(_float(file, f"scaling.yarn_beta_{x}", turns) for x, turns in (("fast", 32.0), ("slow", 1.0)))
    found = []
    for turns in {(32.0, 1.0), named}:
        first, last = (n_rot * math.log(n_ctx / (n * 2 * math.pi)) / (2 * math.log(base)) for n in turns)
        low, high = max(0, math.floor(first)), min(n_rot - 1, math.ceil(last))
        slowed = ((torch.arange(n_rot // 2) - low) / max(0.001, high - low)).clamp(0, 1)
        found.append(1 / (1 - slowed + slowed / factor))
    return found


def _yarn_magnitudes(file: ModelFile) -> set[float]:
    """Those of llama_context: DeepSeek's is 1, and some architectures divide by what `yarn_log_multiplier` says."""
    grown = 0.1 * math.log(max(1.0, _float(file, "scaling.factor", 1.0)))
    return {1.0, 1 + grown, (1 + grown) / (1 + grown * _float(file, "scaling.yarn_log_multiplier", 0.0))}


def _float(file: ModelFile, key: str, default: float) -> float:
    """The value of a key below `rope.`; `default` if it is missing or not above 0."""
    value = file.value(f"rope.{key}")
    return float(value) if isinstance(value, int | float) and value > 0 else default
