"""The server's log: one line of JSON for each event, on stderr. And the names of requests, answers and their parts.

Owns the form of the lines and the id of the request that they belong to.
"""

from __future__ import annotations

import contextvars
import logging
import secrets
import sys
import time
from typing import Any

import msgspec

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
"""The request that is being answered."""
ignored: contextvars.ContextVar[list[str]] = contextvars.ContextVar("ignored")
"""What of that request has no effect."""

_logger = logging.getLogger("pymtp.server")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up(*, is_quiet: bool = False) -> None:
    """Write the log to stderr; quiet: warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _logger.handlers = [handler]
    _logger.propagate = False
    _logger.setLevel(logging.WARNING if is_quiet else logging.INFO)


def log(event: str, *, level: str = "info", **fields: Any) -> None:
    """Write one line."""
    number = _LEVELS[level]
    if not _logger.isEnabledFor(number):
        return
    line: dict[str, Any] = {"time": round(time.time(), 3), "level": level, "event": event}
    if request_id.get():
        line["request"] = request_id.get()
    _logger.log(number, msgspec.json.encode(line | fields).decode())


def ignore(what: str) -> None:
    """Say that a part of the request has no effect: in the log, and in a header of the response."""
    log("ignored", what=what)
    ignored.get([]).append(what)


def new_id(kind: str) -> str:
    """A name that nothing else has."""
    return f"{kind}-{random_name()}"


def random_name() -> str:
    """32 random letters and digits."""
    return secrets.token_hex(16)
