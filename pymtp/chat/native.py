"""Calls the native library's functions of chats, which take and return JSON.

Knows JSON and status codes; nothing about what the JSON says.
"""

import json
from collections.abc import Callable
from typing import Any

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import error_message


class Refused(Exception):
    """The native library takes the arguments for malformed; the message says why."""


class Failed(Exception):
    """It could not do what was asked; the message says why."""


def check_call(status: int) -> None:
    """Raise Refused or Failed unless the call succeeded."""
    if status != lib.PYMTP_OK:
        reason = " ".join(error_message().split())  # in one line
        raise Refused(reason) if status == lib.PYMTP_INVALID else Failed(reason)


def json_of(function: Callable[..., int], *arguments: Any) -> Any:
    """What a function leaves in its last argument. Raises Refused or Failed."""
    result = ffi.new("char **")
    check_call(function(*arguments, result))
    try:
        return json.loads(ffi.string(result[0]).decode())
    finally:
        lib.pymtp_json_free(result[0])
