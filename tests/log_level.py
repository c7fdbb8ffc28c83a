"""What llama.cpp and the engine log, for a test that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymtp


@contextmanager
def logged(level: str) -> Iterator[None]:
    """Log to stderr from this level on."""
    pymtp.set_log_level(level)
    try:
        yield
    finally:
        pymtp.set_log_level("none")
