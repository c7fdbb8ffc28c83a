"""The server's log: a line for each event, on stderr.

Owns the form of the lines and the id of the request that they belong to.
"""

import contextvars
import logging
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
        handler.setFormatter(_Formatter(is_json=is_json))
    _logger.propagate = False
    _logger.setLevel(logging.WARNING if is_quiet else logging.INFO)
    # what uvicorn has to say has lines of the same form
    _uvicorn.handlers, _uvicorn.propagate = _logger.handlers, False
    _uvicorn.setLevel(logging.WARNING)


def log(event: str, *, level: str = "info", **fields: Any) -> None:
    if request_id.get():
        fields["request"] = request_id.get()
    _logger.log(getattr(logging, level.upper()), event, extra={"fields": fields})


class _Formatter(logging.Formatter):
    """Time, level and event, then names and values: as JSON, or as words, where a value that has spaces is in JSON."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        level, event, fields = record.levelname.lower(), record.getMessage().strip(), vars(record).get("fields", {})
        if record.exc_info:
            fields = fields | {"error": repr(record.exc_info[1])}
        if self._is_json:
            line = {"time": round(record.created, 3), "level": level, "event": event}
            return msgspec.json.encode(line | fields).decode()
        values = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        return f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {level}: {event} {values}".rstrip()


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text else msgspec.json.encode(text).decode()


def ignore(what: str) -> None:
    """Say that a part of the request has no effect: in the log, and in a header of the response."""
    log("ignored", what=what)
    ignored.get([]).append(what)
