"""Turns the status codes of the native library into exceptions.

Knows the codes and their messages; nothing about the calls.
"""

from pymtp.binding.library import lib, text_of
from pymtp.errors import BackendError, ContextFull, NotFinite, NothingAllowed, PymtpError, RemoteError

_ERRORS: dict[int, type[PymtpError]] = {
    lib.PYMTP_FULL: ContextFull,
    lib.PYMTP_INVALID: PymtpError,
    lib.PYMTP_FAILED: BackendError,
    lib.PYMTP_LOST: RemoteError,
    lib.PYMTP_NOT_FINITE: NotFinite,
    lib.PYMTP_BLOCKED: NothingAllowed,
}


def check(status: int) -> None:
    """Raise the exception for `status`, with the library's message; do nothing if the call succeeded."""
    if status != lib.PYMTP_OK:
        raise _ERRORS.get(status, BackendError)(error_message())


def error_message() -> str:
    """Why the last call of this thread failed."""
    return text_of(lib.pymtp_error_message())
