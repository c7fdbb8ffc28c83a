"""Muon (Jordan et al., 2024): momentum whose update of each matrix is made nearly orthogonal. For the matrices of
layers; embeddings, norms and gates take AdamW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


def orthogonalize(update: Tensor) -> Tensor:
    """Five Newton-Schulz steps in bfloat16, on matrices (n, rows, columns): singular values become about 1."""
    x = update.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Matrices of one shape are updated together."""

    def __init__(self, matrices: Iterable[Tensor], *, weight_decay: float = 0.01) -> None:
        groups: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            groups[tuple(matrix.shape)].append(matrix)
        self._groups = list(groups.values())
        self._momenta = [torch.zeros_like(torch.stack([m.detach() for m in group])) for group in self._groups]
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, rate: float, momentum: float) -> None:
        for group, average in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([matrix.grad for matrix in group])  # type: ignore[arg-type]
            average.lerp_(gradient, 1 - momentum)
            update = orthogonalize(gradient.lerp(average, momentum)).to(average.dtype)
            rows, columns = group[0].shape
            torch._foreach_mul_(group, 1 - rate * self._weight_decay)
            torch._foreach_add_(group, list(update), alpha=-rate * max(1.0, rows / columns) ** 0.5)

    def state(self) -> list[Tensor]:
        return self._momenta

    def restore(self, state: list[Tensor]) -> None:
        for momentum, saved in zip(self._momenta, state, strict=True):
            momentum.copy_(saved)
