"""llama.cpp's log: kept for error messages, shown on request."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import IO, Literal

from pymtp.binding.library import SILENT, ffi, lib

LogLevel = Literal["none", "error", "warn", "info", "debug"]

# as in ggml.h
_LEVELS: dict[LogLevel, int] = {"none": SILENT, "error": 4, "warn": 3, "info": 2, "debug": 1}


def set_log_level(level: LogLevel) -> None:
    """Show llama.cpp's messages of this level and above on stderr; "none", the default, shows none."""
    lib.pymtp_log_show(_LEVELS[level])


def take_recent() -> str:
    """Return and clear the warnings and errors since the last call."""
    return str(ffi.string(lib.pymtp_log_take()).decode(errors="replace"))


_one_at_a_time = threading.Lock()  # else the descriptors would be put back in the wrong order


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Capture what C code writes to stderr itself; yields a function to read it. One thread at a time."""
    with _one_at_a_time, _scratch_file() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def lines() -> list[str]:
            file.seek(0)
            return file.read().decode(errors="replace").splitlines()

        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _scratch_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # also where no folder can be written
        return open(os.memfd_create("stderr"), "w+b")
    return tempfile.TemporaryFile()


def exit_on_abort() -> None:
    """Make a failed assertion in llama.cpp end the process with one line on stderr and exit code 1.

    For command-line programs. Otherwise llama.cpp prints a backtrace and aborts.
    """
    lib.pymtp_exit_on_abort()
