"""Prefixes in files, which outlive the process: one file for each, with its tokens and whose they are in front.

Owns the folder, which several processes and models may share. What is of another model or version is left alone, until
it is the oldest; what cannot be read is dropped. Knows bytes; nothing of slots.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from pymtp.engine import snapshot
from pymtp.errors import StateError
from pymtp.text.files import make_own_folder

_SUFFIX = ".prefix"
_HEAD_MAX = 64 << 20
N_TOKENS_MIN = 64
"""Shorter ones are computed faster than they are found."""


class Head(msgspec.Struct):
    """What stands before a saved sequence, in a line of JSON."""

    tokens: list[int]
    scope: str


class PrefixFiles:
    """Files of up to `n_bytes_max` together in `folder`; the one that was unused for longest goes first."""

    def __init__(self, folder: Path, n_bytes_max: int, fits: Callable[[bytes], bool]) -> None:
        """`fits`: whether a saved sequence that begins like this is of this model and version.

        Raises InvalidParameter if nothing can be written there.
        """
        self._folder, self._n_bytes_max, self._fits = folder, n_bytes_max, fits
        make_own_folder(folder, "cache_dir")

    def heads(self) -> Iterator[tuple[Path, Head]]:
        """Those that the model can restore, the one that was unused for longest first."""
        for path, _ in self._by_use():
            with suppress(OSError, msgspec.MsgspecError), path.open("rb") as file:
                head = msgspec.json.decode(file.readline(_HEAD_MAX), type=Head)
                if self._fits(file.read(4096)):
                    yield path, head

    def write(self, tokens: list[int], scope: str, data: bytes) -> Path | None:
        """Keep a sequence; return its file, or None: it is too short or too long, or cannot be written."""
        head = msgspec.json.encode(Head(tokens, scope)) + b"\n"
        if len(tokens) < N_TOKENS_MIN or len(head) + len(data) > self._n_bytes_max:
            return None
        name = hashlib.sha256(head + data[:4096]).hexdigest()[:32]  # with the model's
        path = self._folder / f"{name}{_SUFFIX}"
        try:
            snapshot.write(path, head + data)
        except StateError:
            return None
        self._limit()
        return path

    def read(self, path: Path) -> bytes | None:
        """The saved sequence of a file, which has been used now; None: it is gone."""
        try:
            os.utime(path)
            return path.read_bytes().partition(b"\n")[2]
        except OSError:
            return None

    def _by_use(self) -> list[tuple[Path, int]]:
        """All files and their bytes."""
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
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
            path.unlink(missing_ok=True)
            n_bytes -= n
