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

    def choose(self, tokens: Sequence[int], *, reuse: bool) -> int:
        """Take a free slot out for a sequence that begins with `tokens`.

        With `reuse` it is the slot that holds most of them, if that is a good part of what it holds; else an empty
        slot, if there is any, or the one that was left first.
        """
        empty = [slot for slot in self._free if slot not in self._kept]
        slot = empty[-1] if empty else self._free[0]
        if reuse and self._kept:
            best = max(reversed(self._kept), key=lambda slot: _n_common(self._kept[slot], tokens))
            if _n_common(self._kept[best], tokens) >= GOOD_PART * len(self._kept[best]):
                slot = best
        self._free.remove(slot)
        return slot

    def take(self, slot: int, tokens: Sequence[int], *, reuse: bool) -> int:
        """Prepare a slot that was chosen for `tokens`; return how many of them stay decoded in it."""
        kept = self._kept.pop(slot, [])
        # the last token of a prompt is decoded in any case, for its logits
        n = min(_n_common(kept, tokens), len(tokens) - 1) if reuse else 0
        return self._truncate(slot, n)

    def release(self, slot: int, keep: Sequence[int] | None = None) -> None:
        """A sequence has ended; its slot keeps the tokens `keep`, which are decoded in it, or nothing."""
        self._free.append(slot)
        if keep:
            self._kept[slot] = list(keep)
        else:
            self._session.truncate(0, sequence=slot)

    def forget(self) -> None:
        """The caches of free slots have changed: nothing is known of them."""
        self._kept.clear()

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


GOOD_PART = 0.5
"""Of what a slot holds: less in common, and it is left to those who may want more of it, if there is another slot."""


def _n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the prefix that both share."""
    for i, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return i
    return min(len(one), len(other))
