"""What llama.cpp says while it works: kept for error messages, shown on request."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from typing import Literal

from pymtp._library import llama_cpp

LogLevel = Literal["none", "error", "warn", "info", "debug"]

# as in ggml.h; 5 continues the previous line
_LEVELS: dict[LogLevel, int] = {"none": 5, "error": 4, "warn": 3, "info": 2, "debug": 1}
_CONTINUED = 5

_recent: deque[str] = deque(maxlen=200)
_shown_from = _LEVELS["none"]


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode(errors="replace")
    if level >= _LEVELS["warn"]:
        _recent.append(line)
    if _shown_from <= level < _CONTINUED:
        sys.stderr.write(line)


llama_cpp.llama_log_set(_receive, ctypes.c_void_p(0))


def set_log_level(level: LogLevel) -> None:
    """Show llama.cpp's messages of this level and above on stderr; "none", the default, shows none."""
    global _shown_from
    _shown_from = _LEVELS[level]


def take_recent() -> str:
    """Return the warnings and errors since the last call, and forget them."""
    text = "".join(_recent)
    _recent.clear()
    return text
