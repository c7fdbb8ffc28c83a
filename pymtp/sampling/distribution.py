"""The distribution that a chain of samplers produces, and the arithmetic that accepts or rejects drafts with it.

The arithmetic runs in the native library (native/include/pymtp-text.h). Knows token ids and probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymtp.binding.library import ffi, lib, made
from pymtp.errors import require

if TYPE_CHECKING:
    from pymtp.binding.arrays import Probs, Tokens


class Distribution:
    """Distinct tokens and their probabilities, which sum to 1: (n,) each. Raises InvalidParameter for other numbers."""

    __slots__ = ("_native",)

    def __init__(self, tokens: Sequence[int] | Tokens, probs: Sequence[float] | Probs) -> None:
        require(len(tokens) == len(probs), "probs", f"{len(tokens)}, one for each token", len(probs))
        data = ffi.new("int32_t[]", list(tokens)), ffi.new("double[]", list(probs))
        self._native = made("distribution", lib.pymtp_distribution_init, len(tokens), *data)

    @classmethod
    def adopt(cls, native: Any) -> Distribution:
        self = cls.__new__(cls)
        self._native = ffi.gc(native, lib.pymtp_free)
        return self

    @property
    def tokens(self) -> Tokens:
        """(n,) int32; a copy."""
        return self._copies()[0]

    @property
    def probs(self) -> Probs:
        """(n,) float64; a copy."""
        return self._copies()[1]

    def prob(self, token: int) -> float:
        """The probability of `token`; 0 if the distribution does not have it."""
        return float(lib.pymtp_distribution_prob(self._native, token))

    @property
    def best(self) -> tuple[int, float] | None:
        """The most likely token, the first of equals, and its probability; None if there are no tokens."""
        prob = ffi.new("double *")
        token = lib.pymtp_distribution_best(self._native, prob)
        return None if token < 0 else (token, prob[0])

    def draw(self, uniform: float) -> int:
        """The token at `uniform`, 0 <= uniform < 1, of the cumulative probabilities."""
        return int(lib.pymtp_distribution_draw(self._native, ffi.NULL, 1.0, uniform))

    def residual_mass(self, source: Distribution, weight: float = 1.0) -> float:
        """The mass of the residual: the sum of max(weight * self - source, 0)."""
        return float(lib.pymtp_distribution_residual_mass(self._native, source._native, weight))

    def sample_residual(self, source: Distribution, weight: float, uniform: float) -> int:
        """Draw from the residual, max(weight * self - source, 0); from all of `self` if that is zero."""
        return int(lib.pymtp_distribution_draw(self._native, source._native, weight, uniform))

    def _copies(self) -> tuple[Tokens, Probs]:
        import numpy as np

        tokens, probs = ffi.new("const int32_t **"), ffi.new("const double **")
        n = lib.pymtp_distribution_read(self._native, tokens, probs)
        return (
            np.frombuffer(ffi.buffer(tokens[0], n * 4), np.int32).copy(),
            np.frombuffer(ffi.buffer(probs[0], n * 8), np.float64).copy(),
        )
