"""Prefixes in host memory: what slots held before others needed them.

Knows tokens and saved sequences; nothing of slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


def n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the prefix that both share. Lists alone are compared fast."""
    known, n = 0, min(len(one), len(other))
    while known < n:  # by halves: whole slices are compared at once
        middle = (known + n + 1) // 2
        if one[known:middle] == other[known:middle]:
            known = middle
        else:
            n = middle - 1
    return known


class Saved(NamedTuple):
    """A saved sequence."""

    tokens: list[int]
    scope: str
    """Whose texts may continue it."""
    data: bytes


class PrefixCache:
    """Saved sequences, of up to `n_bytes_max` together; the one that was unused for longest goes first."""

    def __init__(self, n_bytes_max: int) -> None:
        self._n_bytes_max = n_bytes_max
        self._saved: list[Saved] = []  # the one that was used last comes last

    @property
    def n_bytes(self) -> int:
        """What the saved sequences take."""
        return sum(len(each.data) for each in self._saved)

    def put(self, tokens: Sequence[int], scope: str, data: bytes) -> None:
        """Keep a sequence; those of its scope that it begins with are no longer needed."""
        saved = Saved(list(tokens), scope, data)
        self._saved = [
            each for each in self._saved if each.scope != scope or each.tokens != saved.tokens[: len(each.tokens)]
        ]
        self._saved.append(saved)
        self.limit(self._n_bytes_max)

    @property
    def is_on(self) -> bool:
        """Whether it keeps anything."""
        return self._n_bytes_max > 0

    def limit(self, n_bytes_max: int) -> None:
        """Keep up to `n_bytes_max` from now on."""
        self._n_bytes_max = n_bytes_max
        while self.n_bytes > n_bytes_max:
            del self._saved[0]

    def covers(self, tokens: list[int], scope: str) -> bool:
        """Whether a saved sequence of the scope begins with all of `tokens`."""
        return any(each.scope == scope and each.tokens[: len(tokens)] == tokens for each in self._saved)

    def find(self, tokens: list[int], scope: str) -> tuple[int, bytes] | None:
        """The sequence of the scope that has most in common with `tokens`: how many, and its bytes; None: there is
        none."""
        found = [(n_common(each.tokens, tokens), i) for i, each in enumerate(self._saved) if each.scope == scope]
        n, i = max(found, key=lambda each: each[0], default=(0, 0))
        if n == 0:
            return None
        self._saved.append(self._saved.pop(i))
        return n, self._saved[-1].data

    def clear(self) -> None:
        """Drop all of them."""
        self._saved.clear()
