"""Reads the body of a request: within its limits, and as a structure.

Knows bytes and structures; nothing of what they ask for.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.requests import Request

from .errors import ApiError, invalid

T = TypeVar("T")

LONG_BYTES = 16 << 10
"""The length from which on others would wait noticeably for a body to be tokenized, at 1 to 3 MB a second."""


async def read(request: Request, kind: type[T]) -> T:
    """The body as a structure. Raises ApiError, also if it is too long or takes too long."""
    settings = request.app.state.served.settings
    try:
        data = await asyncio.wait_for(_collect(request, settings.body_bytes_max), settings.timeout_s)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body did not arrive within {settings.timeout_s:g} s") from None
    request.state.is_long = len(data) > LONG_BYTES
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(error) from None


def as_structure(body: object, kind: type[T]) -> T:
    """Decoded JSON as a structure. Raises ApiError."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None


def refuse(body: object, reasons: Mapping[str, str]) -> None:
    """Raise ApiError for a field that asks for something, if there is a reason why that is not possible."""
    for name, reason in reasons.items():
        value = body.get(name) if isinstance(body, Mapping) else getattr(body, name, None)
        if value or value == {}:  # an empty object is a service with its defaults
            raise invalid(f"{name} is not supported: {reason}")


async def apart(request: Request, work: Callable[[], T]) -> T:
    """The result of `work` on the body, which was read: in another thread if it is long, as all others would wait."""
    return await asyncio.to_thread(work) if request.state.is_long else work()


async def _collect(request: Request, n_max: int) -> bytearray:
    declared = request.headers.get("content-length", "")
    too_long = ApiError(413, f"the body is longer than {n_max} bytes", headers={"Connection": "close"})
    if declared.isdecimal() and int(declared) > n_max:
        raise too_long
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > n_max:
            raise too_long
    return data


def _refusal(error: Exception) -> ApiError:
    what, _, path = str(error).partition(" - at `$.")
    return invalid(f"Field '{path[:-1]}': {what}" if path else f"the body is not what was expected: {what}")
