"""Every exception that pymtp raises on purpose, and the check that raises one of them.

Owns the hierarchy. Messages are written where the problem is found: one line that
names the fix, because a command line prints it as it stands.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_SHOWN_MAX = 200
"""Characters of a refused value in a message."""


INT_MAX, FLOAT_MAX = 2**31 - 1, (2 - 2**-23) * 2.0**127
"""The largest numbers that the native library takes as parameters, of 32 bits."""


class PymtpError(Exception):
    """Base of all of them: `except PymtpError` catches what a caller can act on."""


class LibraryError(PymtpError):
    """The native library is missing, cannot be loaded, or was built from other sources."""


class BackendError(PymtpError):
    """llama.cpp refused an allocation or a computation, usually because memory ran out."""


class RemoteError(BackendError):
    """An RPC server cannot be reached, is of another build, or is lost: what was loaded there must be loaded again."""


class ModelError(PymtpError):
    """The file cannot be used as a model: missing, damaged, or of an unknown architecture."""


class UnsupportedModel(ModelError):
    """The model is sound but cannot do what was asked of it, such as drafting without a head."""


class NotFinite(PymtpError):
    """The model computes NaN or infinite logits, from which no token can be drawn: its weights, or an adapter's, are
    damaged, or a type of too small a range overflows."""


class NothingAllowed(PymtpError):
    """Biases, grammar and rules leave no token that can follow. Generations end then, with the reason "blocked"."""


class ContextFull(PymtpError):
    """The tokens do not fit into the context."""


class StateError(PymtpError):
    """A saved state cannot be read or written, or belongs to another session."""


class InvalidParameter(PymtpError, ValueError):
    """A parameter lies outside its allowed range.

    `InvalidParameter("top_p", "between 0 and 1", value=3)` reads
    "top_p must be between 0 and 1, not 3".
    """

    def __init__(self, name: str, allowed: str, *, value: object = None) -> None:
        super().__init__(name, allowed)  # with these another process makes it again
        self.name = name
        self.allowed = allowed
        self.value = value

    def __str__(self) -> str:
        got = "" if self.value is None else f", not {_shown(self.value)}"
        return f"{self.name} must be {self.allowed}{got}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def require(is_right: object, name: str, allowed: str, value: object = None) -> None:
    """Raise InvalidParameter about the parameter `name` unless `is_right`."""
    if not is_right:
        raise InvalidParameter(name, allowed, value=value)


class Closed(PymtpError, ValueError):
    """The model, session or generation was closed before."""


@contextmanager
def explained(task: str, fix: str, kind: type[PymtpError] = PymtpError) -> Iterator[None]:
    """Raise `kind` in the place of an OSError, or of a ValueError for a path: which task failed, why, and the fix."""
    try:
        yield
    except PymtpError:
        raise
    except (OSError, ValueError) as error:
        raise kind(f"cannot {task}: {getattr(error, 'strerror', None) or error}; {fix}") from error
