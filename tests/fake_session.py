"""A session without an engine: a toy target and toy heads, and the engine's rules enforced to the letter.

The target's logits are a function of the tokens before, and the heads know them about two times in three. What a
caller must not do fails an assertion here: rows out of order, drafts of heads that were left behind, logits read after
the next call.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymtp.binding.arrays import Logits
from pymtp.engine.session import Chunk, Counters
from pymtp.errors import ContextFull, PymtpError

N_VOCAB = 32


def target_logits(prefix: Sequence[int]) -> Logits:
    """What the target says after `prefix`: (N_VOCAB,)."""
    seed = zlib.crc32(np.array(prefix, np.int32).tobytes())
    return np.random.default_rng(seed).normal(scale=3, size=N_VOCAB).astype(np.float32)


def head_logits(prefix: Sequence[int]) -> Logits:
    """What the heads say after `prefix`: (N_VOCAB,); the target's words, or others."""
    is_right = zlib.crc32(b"head" + np.array(prefix, np.int32).tobytes()) % 3
    return target_logits(prefix if is_right else [*prefix, -1])


def plain_text(prompt: Sequence[int], n_tokens: int) -> list[int]:
    """The target's own continuation of `prompt`."""
    history = list(prompt)
    for _ in range(n_tokens):
        history.append(int(target_logits(history).argmax()))
    return history[len(prompt) :]


@dataclass
class Slot:
    """One sequence of a fake session."""

    tokens: list[int] = field(default_factory=list)
    """Decoded."""
    seen_end: int = 0
    """After the last position that the heads have seen."""
    draft: list[int] = field(default_factory=list)
    """The rows of the draft that is being made, from the first position that the trunk has not decoded."""


class FakeSession:
    """See pymtp.Session. `passes` and `drafts` keep the chunks of each call; `n_cells` is the room of all sequences."""

    def __init__(
        self,
        *,
        n_ctx: int = 512,
        n_ubatch: int = 64,
        n_seq_max: int = 1,
        n_draft_max: int = 3,
        n_cells: int = 100_000,
        is_async: bool = False,
    ) -> None:
        self.n_ctx, self.n_ubatch, self.n_seq_max, self.n_draft_max = n_ctx, n_ubatch, n_seq_max, n_draft_max
        self.n_cells = n_cells
        self.n_heads = min(n_draft_max, 2)
        self.n_reduced = 0
        self.needs_equal_rows = False
        self.is_async = is_async
        self.n_vocab = self.n_draft_vocab = N_VOCAB
        self.slots = [Slot() for _ in range(n_seq_max)]
        self.passes: list[list[Chunk]] = []
        self.drafts: list[list[Chunk]] = []
        self.banned: list[list[int]] = []
        self.goes_back = True
        """Whether sequences can be truncated to any position, or only freed."""
        self.failure: Exception | None = None
        """Raised by the next pass of the trunk."""
        self._logits = self._draft_logits = np.empty((0, N_VOCAB), np.float32)

    def pass_shape(self, steps: int, rows: int, n_sequences: int) -> tuple[int, int, int]:
        return steps, rows, n_sequences

    def decode(self, chunks: Sequence[Chunk], meanwhile: Callable[[], object] = lambda: None) -> None:
        if not self.is_async:
            meanwhile()
        self._decode_all(chunks)
        if self.is_async:
            meanwhile()

    def _decode_all(self, chunks: Sequence[Chunk]) -> None:
        self._invalidate()
        assert chunks
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        assert sum(len(chunk.tokens) for chunk in chunks) <= self.n_ubatch
        if self.failure:
            failure, self.failure = self.failure, None
            raise failure
        if sum(len(slot.tokens) for slot in self.slots) + sum(len(c.tokens) for c in chunks) > self.n_cells:
            raise ContextFull("the cache is full")
        self.passes.append(list(chunks))
        self._logits = np.array([row for chunk in chunks for row in self._decode(chunk)], np.float32)

    def _decode(self, chunk: Chunk) -> list[Logits]:
        slot = self.slots[chunk.sequence]
        n = len(chunk.tokens)
        assert n > 0
        assert chunk.position == len(slot.tokens)
        assert chunk.position + n <= self.n_ctx
        slot.tokens += chunk.tokens
        slot.draft = []
        if chunk.feed:
            slot.seen_end = len(slot.tokens)
        first = {"all": 0, "last": n - 1, "none": n}[chunk.logits]
        ends = range(chunk.position + first + 1, chunk.position + n + 1)
        assert len(ends) <= self.n_draft_max + 1
        return [target_logits(slot.tokens[:end]) for end in ends]

    def draft(self, step: int, n_steps: int, chunks: Sequence[Chunk]) -> None:
        self._invalidate()
        self._check_draft(chunks, n_steps)
        self.drafts.append(list(chunks))
        self._draft_logits = np.array([self._head_row(step, chunk) for chunk in chunks], np.float32)

    def draft_tokens(self, chunks: Sequence[Chunk], n_steps: int, *, probs: bool = False) -> Any:
        self._invalidate()
        self._check_draft(chunks, n_steps)
        self.drafts.append(list(chunks))
        drafts = np.empty((len(chunks), n_steps), np.int32)
        likelihood = np.empty((len(chunks), n_steps), np.float32)
        for i, chunk in enumerate(chunks):
            for step in range(n_steps):
                logits = self._head_row(step, chunk)
                logits[self.banned[-1] if self.banned else []] = -np.inf
                logits[self.n_draft_vocab :] = -np.inf
                drafts[i, step] = logits.argmax()
                likelihood[i, step] = 1 / np.exp(logits - logits.max()).sum()
                chunk = Chunk([int(drafts[i, step])], chunk.position + len(chunk.tokens), chunk.sequence)
        return drafts.tolist(), likelihood.tolist() if probs else [[]] * len(chunks)

    def _check_draft(self, chunks: Sequence[Chunk], n_steps: int) -> None:
        assert chunks
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        assert 1 <= n_steps <= self.n_draft_max
        assert sum(len(chunk.tokens) for chunk in chunks) <= self.n_ubatch

    def _head_row(self, step: int, chunk: Chunk) -> Logits:
        slot = self.slots[chunk.sequence]
        n_decoded = len(slot.tokens)
        if step == 0:
            assert slot.seen_end >= n_decoded or len(chunk.tokens) > 1, "the heads were left behind"
            assert chunk.position + len(chunk.tokens) == n_decoded + 1, "the last row is the newest token"
            assert slot.tokens[chunk.position :] == list(chunk.tokens[:-1])
            slot.seen_end = n_decoded
            slot.draft = [chunk.tokens[-1]]
        else:
            assert (len(chunk.tokens), chunk.position) == (1, n_decoded + step)
            assert len(slot.draft) == step
            slot.draft += chunk.tokens
        return head_logits(slot.tokens + slot.draft)

    @property
    def counters(self) -> Counters:
        return Counters(*[0] * len(Counters._fields))

    def truncate(self, position: int, *, sequence: int = 0) -> None:
        self._invalidate()
        slot = self.slots[sequence]
        if not self.goes_back and 0 < position < len(slot.tokens):
            raise PymtpError("the memory cannot go back")
        del slot.tokens[position:]
        slot.seen_end = min(slot.seen_end, position)
        slot.draft = []

    def truncate_all(self, positions: Mapping[int, int]) -> None:
        for sequence, position in positions.items():
            self.truncate(position, sequence=sequence)

    def seen_ends(self, sequences: Sequence[int], n_heads: int) -> list[int]:
        assert n_heads > 0
        return [self.slots[sequence].seen_end for sequence in sequences]

    def limit_drafts(self, n: int) -> None:
        self._invalidate()
        self.n_draft_vocab = n

    def ban_tokens(self, tokens: Sequence[int]) -> None:
        self._invalidate()
        self.banned.append(list(tokens))

    def rows(self) -> list[Logits]:
        return list(self._logits)

    def draft_rows(self) -> list[Logits]:
        return list(self._draft_logits)

    def reduce_logits(self, n_max: int) -> None:
        self.n_reduced = n_max

    def _invalidate(self) -> None:
        for rows in (self._logits, self._draft_logits):
            rows.fill(np.nan)
