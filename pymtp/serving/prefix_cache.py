"""Prefixes that slots held before others needed them: in host memory, and in files, which outlive the process.

Owns the folder of the files, which several processes and models may share. What is of another model or version is left
alone, until it is the oldest; what cannot be read is dropped. Knows tokens and saved sequences; nothing of slots.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from pymtp.engine import snapshot
from pymtp.text.files import make_own_folder

_SUFFIX = ".prefix"
_HEAD_MAX = 64 << 20
N_TOKENS_MIN = 64
"""Shorter prefixes are computed faster than their files are found."""


class Kept(NamedTuple):
    """What a free slot or a file holds."""

    tokens: list[int]
    scope: str
    """Whose texts may continue it."""

    def n_held(self, tokens: list[int], scope: str | None) -> int:
        """How many of `tokens` it holds for `scope`. Lists alone are compared fast."""
        known, n = 0, min(len(self.tokens), len(tokens)) if scope == self.scope else 0
        while known < n:  # by halves: whole slices are compared at once
            middle = (known + n + 1) // 2
            if self.tokens[known:middle] == tokens[known:middle]:
                known = middle
            else:
                n = middle - 1
        return known

    def begins_with(self, other: "Kept") -> bool:
        """Whether it serves all texts that `other` serves."""
        return self.scope == other.scope and self.tokens[: len(other.tokens)] == other.tokens


@dataclass
class Saved:
    """A saved sequence, in memory, in a file, or both."""

    kept: Kept
    data: bytes | None
    path: Path | None = None

    @property
    def is_there(self) -> bool:
        """Whether it can be had: other processes may have dropped its file."""
        return self.data is not None or (self.path is not None and os.path.exists(self.path))


class PrefixFiles:
    """Files of up to `n_bytes_max` together in `folder`; the one that was unused for longest goes first.

    A line of JSON, with what is kept, stands before the saved sequence.
    """

    def __init__(self, folder: Path, n_bytes_max: int, fits: Callable[[bytes], bool]) -> None:
        """`fits`: whether a saved sequence that begins like this is of this model and version.

        Raises InvalidParameter if nothing can be written there.
        """
        self._folder, self._n_bytes_max, self._fits = folder, n_bytes_max, fits
        make_own_folder(folder, "cache_dir")

    def heads(self) -> Iterator[tuple[Path, Kept]]:
        """Those that the model can restore, the one that was unused for longest first."""
        for path, _ in self._by_use():
            with suppress(OSError, ValueError), path.open("rb") as file:
                head, data = file.readline(_HEAD_MAX), file.read(snapshot.HEAD_BYTES)
                if path.stem == snapshot.digest(head, data) and self._fits(data):
                    yield path, msgspec.json.decode(head, type=Kept)

    def write(self, kept: Kept, data: bytes) -> Path | None:
        """Keep a sequence; return its file, or None: it is too short or too long. Raises StateError."""
        head = msgspec.json.encode(kept) + b"\n"
        if len(kept.tokens) < N_TOKENS_MIN or len(head) + len(data) > self._n_bytes_max:
            return None
        path = self._folder / f"{snapshot.digest(head, data)}{_SUFFIX}"
        snapshot.write(path, head + data)
        self._limit()
        return path

    def read(self, path: Path) -> bytes | None:
        """The saved sequence of a file, which has been used now; None: it is gone."""
        with suppress(OSError):
            os.utime(path)
            return path.read_bytes().partition(b"\n")[2]
        return None

    def _by_use(self) -> list[tuple[Path, int]]:
        """All files and their bytes, with those that a process which was killed left under another name."""
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}*"):
            with suppress(OSError):  # another process has dropped it
                status = path.lstat()
                found.append((status.st_mtime_ns, path, status.st_size))
        return [(path, n_bytes) for _, path, n_bytes in sorted(found)]

    def _limit(self) -> None:
        files = self._by_use()
        n_bytes = sum(n for _, n in files)
        for path, n in files:
            if n_bytes <= self._n_bytes_max:
                return
            _drop(path)
            n_bytes -= n


class PrefixCache:
    """Saved sequences, of up to `n_bytes_max` in memory; the one that was unused for longest goes first."""

    def __init__(self, n_bytes_max: int) -> None:
        self.n_bytes_max = n_bytes_max
        self._saved: list[Saved] = []  # the one that was used last comes last
        self.files: PrefixFiles | None = None
        """Where they outlive the process."""

    def add(self, saved: Saved) -> None:
        """Keep a sequence; those of its scope that it begins with are no longer needed."""
        kept = []
        for each in self._saved:
            if not saved.kept.begins_with(each.kept):
                kept.append(each)
            elif each.path and each.path != saved.path:
                _drop(each.path)
        self._saved = [*kept, saved]
        self.limit(self.n_bytes_max)

    def limit(self, n_bytes_max: int) -> None:
        """Keep up to `n_bytes_max` in memory from now on."""
        self.n_bytes_max = n_bytes_max
        n_bytes = sum(len(each.data or b"") for each in self._saved)
        for each in self._saved:
            if n_bytes <= n_bytes_max:
                break
            n_bytes -= len(each.data or b"")
            each.data = None
        self._saved = [each for each in self._saved if each.data is not None or each.path]

    def use(self, files: PrefixFiles) -> None:
        """Find sequences in files, too."""
        self.files = files
        self._saved = [Saved(head, None, path) for path, head in files.heads()] + self._saved

    def unwritten(self) -> list[Saved]:
        return [each for each in self._saved if each.path is None]

    def adopt(self, written: Iterable[Saved]) -> None:
        """Find sequences whose files were written."""
        for saved in written:
            if saved.path and all(saved is not each for each in self._saved):
                self.add(replace(saved, data=None))

    def covers(self, kept: Kept) -> bool:
        """Whether a saved sequence begins with all of `kept`."""
        return any(each.kept.begins_with(kept) and each.is_there for each in self._saved)

    def find(self, tokens: list[int], scope: str, n_more_than: int) -> tuple[int, bytes] | None:
        """The sequence of the scope that has most in common with `tokens`: how many, and its bytes; None: none has more
        than `n_more_than`."""
        found = [(each.kept.n_held(tokens, scope), i) for i, each in enumerate(self._saved)]
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
            _drop(saved.path)

    def clear(self) -> None:
        """Drop all of them from memory."""
        self._saved = [each for each in self._saved if each.path]
        for each in self._saved:
            each.data = None


def _drop(path: Path) -> None:
    """Remove a file, unless it is gone, or its folder can no longer be written: texts do not depend on it."""
    with suppress(OSError):
        path.unlink()
