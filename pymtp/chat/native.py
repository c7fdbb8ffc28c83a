"""Calls the native library's functions of chats, which take and return JSON.

Knows JSON; nothing about what it says.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from pymtp.binding.library import check, ffi, lib

T = TypeVar("T")


def json_of(kind: type[T], function: Callable[..., int], *arguments: Any) -> T:
    """What a function leaves in its last argument, as a `kind`.

    Raises BackendError if it could not do what was asked, PymtpError if it takes the arguments for malformed.
    """
    result = ffi.new("char **")
    check(function(*arguments, result))
    try:
        return msgspec.json.decode(ffi.string(result[0]), type=kind)
    finally:
        lib.pymtp_json_free(result[0])
