"""The server's log: a line for each event, on stderr. And the names of requests, answers and their parts.

Owns the form of the lines and the id of the request that they belong to.
"""

import contextvars
import logging
import secrets
import sys
from pathlib import Path
from typing import Any

import msgspec

from pymtp.errors import InvalidParameter

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
"""The request that is being answered."""
ignored: contextvars.ContextVar[list[str]] = contextvars.ContextVar("ignored")
"""What of that request has no effect."""

_logger = logging.getLogger("pymtp.server")
_uvicorn = logging.getLogger("uvicorn")


def set_up(*, is_quiet: bool = False, is_json: bool = False, file: Path | None = None) -> None:
    """Write the log to stderr, and to the end of a file; quiet: warnings and errors only.

    Raises InvalidParameter for a file that cannot be written.
    """
    _logger.handlers = [logging.StreamHandler(sys.stderr)]
    try:
        _logger.handlers += [logging.FileHandler(file, encoding="utf-8")] if file else []
    except OSError as error:
        raise InvalidParameter("log_file", f"a file that can be written ({error.strerror})", value=str(file)) from None
    for handler in _logger.handlers:
        handler.setFormatter(_Json() if is_json else _Plain())
    _logger.propagate = False
    _logger.setLevel(logging.WARNING if is_quiet else logging.INFO)
    # what uvicorn has to say has lines of the same form
    _uvicorn.handlers, _uvicorn.propagate = _logger.handlers, False
    _uvicorn.setLevel(logging.WARNING)


def log(event: str, *, level: str = "info", **fields: Any) -> None:
    if request_id.get():
        fields["request"] = request_id.get()
    _logger.log(getattr(logging, level.upper()), event, extra={"fields": fields})


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage().strip(),
        }
        return msgspec.json.encode(line | _fields(record)).decode()


class _Plain(logging.Formatter):
    """Time, level and event, then names and values; a value that has spaces is in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record).items()
        values = " ".join(f"{name}={_word(value)}" for name, value in fields)
        when = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{when} {record.levelname.lower()}: {record.getMessage().strip()} {values}".rstrip()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = vars(record).get("fields", {})
    return fields | {"error": repr(record.exc_info[1])} if record.exc_info else fields


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text else msgspec.json.encode(text).decode()


def ignore(what: str) -> None:
    """Say that a part of the request has no effect: in the log, and in a header of the response."""
    log("ignored", what=what)
    ignored.get([]).append(what)


def random_name() -> str:
    """32 random letters and digits: a name that nothing else has."""
    return secrets.token_hex(16)
