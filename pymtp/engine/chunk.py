"""Rows of a pass: as callers give them, in chunks, and as the engine takes them, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pymtp.binding.library import lib
from pymtp.errors import InvalidParameter


class Chunk(NamedTuple):
    """Consecutive positions of one sequence, as a pass takes them."""

    tokens: Sequence[int]
    position: int
    """Of the first token."""
    sequence: int = 0
    logits: Literal["all", "last", "none"] = "last"
    """Which rows leave logits. Passes of the trunk only: a draft leaves one row for each chunk."""
    feed: bool = False
    """Whether the heads see the rows as well, in the same graph. Passes of the trunk only."""
    n_heads: int | None = None
    """How many of the heads do, from the first on; None: all."""


def rows_of(chunks: Sequence[Chunk]) -> tuple[int, list[int], list[int], list[int]]:
    """The chunks as the engine takes them: number of rows, and token, position and sequence of each."""
    tokens: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    for chunk in chunks:
        n = len(chunk.tokens)
        if n == 0:
            raise InvalidParameter("chunks", "at least one token long each")
        tokens += chunk.tokens
        positions += range(chunk.position, chunk.position + n)
        sequences += [chunk.sequence] * n
    return len(tokens), tokens, positions, sequences


def flags_of(chunks: Sequence[Chunk], n_heads: int) -> list[int]:
    """Of each row: whether it leaves logits, and how many of the `n_heads` heads see it."""
    flags: list[int] = []
    for chunk in chunks:
        n = len(chunk.tokens)
        n_logits = n if chunk.logits == "all" else 1 if chunk.logits == "last" else 0
        feed = (n_heads if chunk.n_heads is None else chunk.n_heads) << _FEED_SHIFT if chunk.feed else 0
        flags += [feed] * (n - n_logits) + [feed | _LOGITS] * n_logits
    return flags


_FEED_SHIFT, _LOGITS = lib.PYMTP_ROW_FEED_SHIFT, lib.PYMTP_ROW_LOGITS
