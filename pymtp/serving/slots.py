"""The slots of a session: which are free, and what their caches still hold.

Owns prefix reuse: a sequence goes where the cache already holds most of its prompt. Knows token ids and slots; never
what is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.engine.session import Session
from pymtp.errors import PymtpError


class Slots:
    """Hands out the `n_seq_max` sequences of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._free = list(reversed(range(session.n_seq_max)))  # the last one to become free comes last
        self._kept: dict[int, list[int]] = {}  # by free slot: the tokens that are decoded in it

    @property
    def has_free(self) -> bool:
        """Whether there is room for another sequence."""
        return bool(self._free)

    def take(self, tokens: Sequence[int], *, reuse: bool) -> tuple[int, int]:
        """Take a free slot for a sequence that begins with `tokens`: the slot, and how many of them stay decoded in it.

        With `reuse` it is the slot that holds most of them; else an empty one, if there is any.
        """
        if reuse:
            slot = max(reversed(self._free), key=lambda slot: _n_common(self._kept.get(slot, ()), tokens))
        else:
            slot = next((slot for slot in reversed(self._free) if slot not in self._kept), self._free[-1])
        self._free.remove(slot)
        kept = self._kept.pop(slot, [])
        # the last token of a prompt is decoded in any case, for its logits
        n = min(_n_common(kept, tokens), len(tokens) - 1) if reuse else 0
        return slot, self._truncate(slot, n)

    def release(self, slot: int, keep: Sequence[int] | None = None) -> None:
        """A sequence has ended; its slot keeps the tokens `keep`, which are decoded in it, or nothing."""
        self._free.append(slot)
        if keep:
            self._kept[slot] = list(keep)
        else:
            self._session.truncate(0, sequence=slot)

    def empty(self) -> None:
        """Drop what ended sequences have left in free slots."""
        for slot in self._kept:
            self._session.truncate(0, sequence=slot)
        self._kept.clear()

    def _truncate(self, slot: int, n: int) -> int:
        """Leave the first `n` positions in the slot; return how many could be left."""
        try:
            self._session.truncate(n, sequence=slot)
        except PymtpError:  # there are memories that cannot go back
            n = 0
            self._session.truncate(0, sequence=slot)
        return n


def _n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the prefix that both share."""
    for i, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return i
    return min(len(one), len(other))
