"""Reads whole files within a limit, those that users name and those that pymtp has written; makes folders for these.

Knows bytes and UTF-8; nothing of what they say. Raises OSError, whose strerror says what is wrong.
"""

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from pymtp.errors import InvalidParameter, require

StrPath = str | os.PathLike[str]

BYTES_MAX = 64 << 20
"""Of a text that somebody names: prompts, templates, grammars, lists of tokens."""


def read_text(path: StrPath) -> str:
    """The text of a file or a pipe, such as a shell makes of `<(command)`."""
    return _decoded(read_bytes(path), path)


def read_bytes(path: StrPath) -> bytes:
    """The bytes of a file or a pipe: see `read_text`."""
    with open(path, "rb") as file:
        return read_all(file)


def read_all(file: BinaryIO, n_max: int = BYTES_MAX) -> bytes:
    """The rest of an open file; at most `n_max` bytes of it."""
    data = file.read(n_max + 1)
    if len(data) > n_max:
        raise OSError(errno.EFBIG, f"it is longer than {n_max >> 20} MiB", str(file.name))
    return data


def read_record(path: StrPath, n_max: int | None = None) -> bytes:
    """The bytes of a regular file, at most `n_max`. What else lies in its place is refused, and never waited for."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    with open(descriptor, "rb") as file:
        return file.read() if n_max is None else read_all(file, n_max)


def read_text_record(path: StrPath) -> str:
    """The text of a regular file: see `read_record`."""
    return _decoded(read_record(path), path)


def path_text(path: StrPath) -> str:
    """The path as valid Unicode, to be shown: bytes of its name that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", errors="replace")


def make_own_folder(path: Path, parameter: str) -> None:
    """Make a folder for this user alone, unless it is there. Raises InvalidParameter if it cannot be written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidParameter(parameter, f"a folder that can be written ({error.strerror})") from None
    require(os.access(path, os.W_OK), parameter, "a folder that can be written", str(path))


def sha256_of(path: Path) -> str:
    """The hash of a whole file, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def _decoded(data: bytes, path: StrPath) -> str:
    """As text files are read: all ends of lines are the same, and a byte order mark is not part of the text."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not valid UTF-8", os.fspath(path)) from None
