"""Rows of tokens for training, by kind of text. Knows shards, files of rows of ROW tokens that `prepare` wrote.

A token whose highest bit is set is read but not learned: what the user says, and padding.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

KINDS = ("prose", "code", "chat", "templates")
ROW = 1025
"""Tokens of a row: 1024 inputs, and each one's next token."""
NOT_LEARNED = 0x8000
IGNORED = -100
"""The target of what is not learned, as PyTorch's cross entropy takes it."""


def write_shard(path: Path, rows: np.ndarray) -> None:
    assert rows.dtype == np.uint16 and rows.shape[1] == ROW
    path.write_bytes(lzma.compress(rows.astype("<u2").tobytes(), preset=3))


def read_shard(path: Path) -> np.ndarray:
    return np.frombuffer(lzma.decompress(path.read_bytes()), "<u2").reshape(-1, ROW)


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (n, ROW - 1) each, of rows (n, ROW)."""
    tokens = rows & (NOT_LEARNED - 1)
    targets = torch.where(rows >= NOT_LEARNED, IGNORED, tokens).long()
    return tokens[:, :-1].contiguous(), targets[:, 1:].contiguous()


class Batches:
    """Rows of each kind in a random order, which is drawn again when all have been taken."""

    def __init__(self, folder: Path, device: str, *, seed: int = 0, most_epochs: Mapping[str, float]) -> None:
        self._rows = {kind: self._load(folder / f"{kind}.xz", device) for kind in KINDS}
        self._held_out = {kind: self._load(folder / f"{kind}.held-out.xz", device) for kind in KINDS}
        self._most_epochs = most_epochs
        self._seed = seed
        self._orders: dict[str, tuple[int, np.ndarray]] = {}
        self.taken = dict.fromkeys(KINDS, 0)

    @staticmethod
    def _load(path: Path, device: str) -> Tensor:
        return torch.from_numpy(read_shard(path).astype(np.int32)).to(device)

    def epochs(self, kind: str) -> float:
        """How often the rows of a kind have been taken."""
        return self.taken[kind] / len(self._rows[kind])

    def tokens(self, kind: str) -> int:
        return self._rows[kind].numel()

    def draw(self, shares: Mapping[str, float], n_rows: int) -> tuple[Tensor, list[int]]:
        """n_rows rows, (n_rows, ROW), and how many of each of KINDS, in this order. Of a kind that has been seen as
        often as allowed none are drawn, templates instead.
        """
        counts = {kind: round(n_rows * shares.get(kind, 0.0)) for kind in KINDS}
        for kind, most in self._most_epochs.items():
            if (self.taken[kind] + counts[kind]) / len(self._rows[kind]) > most:
                counts[kind] = 0
        filler = "templates" if shares.get("templates") else "prose"
        counts[filler] += n_rows - sum(counts.values())
        return torch.cat([self._take(kind, n) for kind, n in counts.items()]), list(counts.values())

    def _take(self, kind: str, n: int) -> Tensor:
        rows = self._rows[kind]
        first = self.taken[kind]
        self.taken[kind] += n
        chosen = [self._order(kind, i // len(rows))[i % len(rows)] for i in range(first, first + n)]
        return rows[torch.tensor(chosen, dtype=torch.long, device=rows.device)]

    def _order(self, kind: str, epoch: int) -> np.ndarray:
        if self._orders.get(kind, (None,))[0] != epoch:
            random = np.random.default_rng((self._seed, KINDS.index(kind), epoch))
            self._orders[kind] = (epoch, random.permutation(len(self._rows[kind])))
        return self._orders[kind][1]

    def held_out(self, kind: str, n: int) -> Tensor:
        """The first n rows that are never drawn, (n, ROW)."""
        return self._held_out[kind][:n]
