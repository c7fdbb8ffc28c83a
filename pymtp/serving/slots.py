"""The slots of a session: which are free, and what their caches still hold.

Owns prefix reuse: a sequence goes where the cache already holds most of its prompt. Knows token ids and slots; never
what is sampled.
"""

from collections.abc import Sequence
from operator import itemgetter

from pymtp.engine.session import Session
from pymtp.engine.snapshot import DamagedState
from pymtp.errors import InvalidParameter, PymtpError, StateError
from pymtp.serving.adapters import without_scales
from pymtp.serving.prefix_cache import N_TOKENS_MIN, Kept, PrefixCache, Saved

NOTHING = Kept([], "")


class Slots:
    """Hands out the `n_seq_max` sequences of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._free = list(reversed(range(session.n_seq_max)))  # the last one to become free comes last
        self._kept: dict[int, Kept] = {}  # by free slot: what is decoded in it; the oldest first
        self.cache = PrefixCache(0)
        """What slots held before."""

    @property
    def n_kept(self) -> int:
        """Tokens that free slots hold."""
        return sum(len(kept.tokens) for kept in self._kept.values())

    def is_free(self, slot: int) -> bool:
        """Whether nothing runs in the slot. Raises InvalidParameter for one that does not exist."""
        if not isinstance(slot, int) or not 0 <= slot < self._session.n_seq_max:
            raise InvalidParameter("slot", f"between 0 and {self._session.n_seq_max - 1}", value=slot)
        return slot in self._free

    def choose(self, tokens: list[int], *, scope: str | None, slot: int | None = None) -> int:
        """Take a free slot out for a sequence that begins with `tokens`: `slot`, if it is given.

        Else, with a `scope`, the slot that holds most of them for it, if that is a good part of what it holds; else an
        empty slot, if there is any, or the one that was left first.
        """
        if slot is None:
            empty = [slot for slot in self._free if slot not in self._kept]
            slot = empty[-1] if empty else self._free[0]
            held = [(kept.n_held(tokens, scope), one) for one, kept in reversed(self._kept.items())]
            n, best = max(held, key=itemgetter(0), default=(0, slot))
            if n and n >= GOOD_PART * len(self._kept[best].tokens):
                slot = best
        self._free.remove(slot)
        return slot

    def take(self, slot: int, tokens: list[int], *, scope: str | None) -> int:
        """Prepare a slot that was chosen for `tokens`; return how many of them stay decoded in it.

        Numbers below 0 are positions of images.
        """
        kept = self._kept.pop(slot, NOTHING)
        n = kept.n_held(tokens, scope)
        if n < len(kept.tokens):
            self._save(slot, kept)
        if scope is not None and (found := self.cache.find(tokens, scope, n)):
            n = self._restore(slot, *found)
        # the last token of a prompt is decoded in any case, for its logits
        n = min(n, len(tokens) - 1)
        while n > 0 and tokens[n - 1] < 0 and tokens[n] < 0:  # an image stays whole, or goes
            n -= 1
        return self.shorten(slot, n)

    def release(self, slot: int, keep: Sequence[int] | None = None, scope: str = "") -> None:
        """A sequence has ended; its slot keeps the tokens `keep`, which are decoded in it, for `scope`, or nothing."""
        self._free.append(slot)
        if keep:
            self._kept[slot] = Kept(list(keep), scope)
        else:
            self._session.truncate(0, sequence=slot)

    def drop_oldest(self) -> bool:
        """Empty the free slot that was left first, for its room; whether there was one."""
        if not self._kept:
            return False
        slot = next(iter(self._kept))
        self._save(slot, self._kept.pop(slot))
        self._session.truncate(0, sequence=slot)
        return True

    def save(self, slot: int, scope: str | None = None) -> tuple[list[int], bytes]:
        """The tokens that a free slot holds, and its saved sequence; nothing if they are another `scope`'s.

        Raises StateError while something runs in it.
        """
        self._check_free(slot)
        kept = self._kept.get(slot, NOTHING)
        tokens = kept.tokens if scope is None or scope == without_scales(kept.scope) else []
        return list(tokens), self._session.save_sequence(slot) if tokens else b""

    def restore(self, slot: int, tokens: Sequence[int], data: bytes, scope: str = "") -> None:
        """Put a saved sequence into a free slot, for `scope`.

        Raises StateError if it does not fit; the slot is empty then.
        """
        self.erase(slot)
        if tokens:
            self._session.restore_sequence(slot, data)
            self._kept[slot] = Kept(list(tokens), scope)

    def erase(self, slot: int) -> int:
        """Empty a free slot; return how many tokens it held. Raises StateError while something runs in it."""
        self._check_free(slot)
        n = len(self._kept.pop(slot, NOTHING).tokens)
        self._session.truncate(0, sequence=slot)
        return n

    def forget(self) -> None:
        """The caches of free slots have changed: nothing is known of them."""
        self._kept.clear()

    def empty(self) -> None:
        """Drop what ended sequences have left in free slots."""
        for slot in self._kept:
            self._session.truncate(0, sequence=slot)
        self._kept.clear()
        self.cache.clear()

    def _check_free(self, slot: int) -> None:
        if not self.is_free(slot):
            raise StateError(f"slot {slot} is in use: wait for its text, or close it")

    def unwritten(self) -> list[Saved]:
        """What free slots and memory hold, and no file has."""
        held = [
            Saved(kept, self._session.save_sequence(slot))
            for slot, kept in self._kept.items()
            if len(kept.tokens) >= N_TOKENS_MIN and not self.cache.covers(kept)
        ]
        return self.cache.unwritten() + held

    def _save(self, slot: int, kept: Kept) -> None:
        if self.cache.n_bytes_max > 0 and not self.cache.covers(kept):
            self.cache.add(Saved(kept, self._session.save_sequence(slot)))

    def _restore(self, slot: int, n: int, data: bytes) -> int:
        try:
            self._session.restore_sequence(slot, data)
        except DamagedState:
            self.cache.drop_last()
            return 0
        except StateError:  # there is no room for it
            return 0
        return n

    def shorten(self, slot: int, n: int) -> int:
        """Leave the first `n` positions in the slot; return how many could be left."""
        try:
            self._session.truncate(n, sequence=slot)
        except PymtpError:  # there are memories that cannot go back
            n = 0
            self._session.truncate(0, sequence=slot)
        return n


GOOD_PART = 0.5
"""The part of what a slot holds that makes it worth taking: with less in common it is left to those who may want more
of it, if there is another slot."""
