"""Calls the native library's functions of chats, which take and return JSON.

Knows JSON and status codes; nothing about what the JSON says.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from pymtp.binding.library import error_message, ffi, lib

T = TypeVar("T")


class Refused(Exception):
    """The native library takes the arguments for malformed; the message says why."""


class Failed(Exception):
    """It could not do what was asked; the message says why."""


def check_call(status: int) -> None:
    """Raise Refused or Failed unless the call succeeded."""
    if status != lib.PYMTP_OK:
        reason = " ".join(error_message().split())  # in one line
        raise Refused(reason) if status == lib.PYMTP_INVALID else Failed(reason)


def json_of(kind: type[T], function: Callable[..., int], *arguments: Any) -> T:
    """What a function leaves in its last argument, as a `kind`. Raises Refused or Failed."""
    result = ffi.new("char **")
    check_call(function(*arguments, result))
    try:
        return msgspec.json.decode(ffi.string(result[0]), type=kind)
    finally:
        lib.pymtp_json_free(result[0])
