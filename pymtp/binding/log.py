"""llama.cpp's log: kept for error messages, shown on request."""

from typing import Literal

from pymtp.binding.library import SILENT, lib, text_of

LogLevel = Literal["none", "error", "warn", "info", "debug"]

# as in ggml.h
_LEVELS: dict[LogLevel, int] = {"none": SILENT, "error": 4, "warn": 3, "info": 2, "debug": 1}


def set_log_level(level: LogLevel) -> None:
    """Show llama.cpp's messages of this level and above on stderr; "none", the default, shows none."""
    lib.pymtp_log_show(_LEVELS[level])


def take_recent() -> str:
    """Return and clear the warnings and errors since the last call."""
    return text_of(lib.pymtp_log_take())


def exit_on_abort() -> None:
    """Make a failed assertion in llama.cpp end the process with one line on stderr and exit code 1.

    For command-line programs. Otherwise llama.cpp prints a backtrace and aborts.
    """
    lib.pymtp_exit_on_abort()
