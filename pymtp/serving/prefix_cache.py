"""Prefixes that slots held before others needed them: in host memory, and in files where there is a folder for them.

Knows tokens and saved sequences; nothing of slots.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymtp.serving.prefix_files import PrefixFiles


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


@dataclass
class Saved:
    """A saved sequence, in memory, in a file, or both."""

    tokens: list[int]
    scope: str
    """Whose texts may continue it."""
    data: bytes | None
    path: Path | None = None

    @property
    def is_there(self) -> bool:
        """Whether it can be had: other processes may have dropped its file."""
        return self.data is not None or (self.path is not None and self.path.exists())

    @property
    def n_bytes(self) -> int:
        """What it takes of host memory."""
        return len(self.data or b"")


class PrefixCache:
    """Saved sequences, of up to `n_bytes_max` in memory; the one that was unused for longest goes first."""

    def __init__(self, n_bytes_max: int) -> None:
        self._n_bytes_max = n_bytes_max
        self._saved: list[Saved] = []  # the one that was used last comes last
        self.files: PrefixFiles | None = None
        """Where they outlive the process."""

    @property
    def n_bytes(self) -> int:
        """What the saved sequences take of host memory."""
        return sum(each.n_bytes for each in self._saved)

    def put(self, tokens: Sequence[int], scope: str, data: bytes) -> None:
        """Keep a sequence; those of its scope that it begins with are no longer needed."""
        self._add(Saved(list(tokens), scope, data))

    def _add(self, saved: Saved) -> None:
        kept = []
        for each in self._saved:
            if each.scope != saved.scope or each.tokens != saved.tokens[: len(each.tokens)]:
                kept.append(each)
            elif each.path and each.path != saved.path:
                each.path.unlink(missing_ok=True)
        self._saved = [*kept, saved]
        self.limit(self._n_bytes_max)

    @property
    def is_on(self) -> bool:
        """Whether it keeps anything."""
        return self._n_bytes_max > 0

    def limit(self, n_bytes_max: int) -> None:
        """Keep up to `n_bytes_max` in memory from now on."""
        self._n_bytes_max = n_bytes_max
        n_bytes = self.n_bytes
        for each in self._saved:
            if n_bytes <= n_bytes_max:
                break
            n_bytes -= each.n_bytes
            each.data = None
        self._saved = [each for each in self._saved if each.data is not None or each.path]

    def use(self, files: PrefixFiles) -> None:
        """Find sequences in files, too."""
        self.files = files
        self._saved = [Saved(head.tokens, head.scope, None, path) for path, head in files.heads()] + self._saved

    def unwritten(self) -> list[Saved]:
        """Those that are not in a file."""
        return [each for each in self._saved if each.path is None]

    def adopt(self, written: Iterable[Saved]) -> None:
        """Find sequences whose files were written."""
        for saved in written:
            if saved.path and all(saved is not each for each in self._saved):
                self._add(Saved(saved.tokens, saved.scope, None, saved.path))

    def covers(self, tokens: list[int], scope: str) -> bool:
        """Whether a saved sequence of the scope begins with all of `tokens`."""
        return any(
            each.scope == scope and each.tokens[: len(tokens)] == tokens and each.is_there for each in self._saved
        )

    def find(self, tokens: list[int], scope: str, n_more_than: int) -> tuple[int, bytes] | None:
        """The sequence of the scope that has most in common with `tokens`: how many, and its bytes; None: none has more
        than `n_more_than`."""
        found = [(n_common(each.tokens, tokens), i) for i, each in enumerate(self._saved) if each.scope == scope]
        n, i = max(found, key=lambda each: each[0], default=(0, 0))
        if n <= n_more_than:
            return None
        saved = self._saved.pop(i)
        data = saved.data
        if data is None and saved.path and self.files:
            data = self.files.read(saved.path)
        if data is None:  # its file is gone
            return self.find(tokens, scope, n_more_than)
        self._saved.append(saved)
        return n, data

    def drop_last(self) -> None:
        """Drop the one that was found last, as it cannot be restored."""
        saved = self._saved.pop()
        if saved.path:
            saved.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Drop all of them from memory."""
        self._saved = [each for each in self._saved if each.path]
        for each in self._saved:
            each.data = None
