"""The outermost layer of a server: a name for each request, a line in the log, and an answer to every error.

Knows requests and how they ended; nothing of what they ask for.
"""

from __future__ import annotations

import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import as_api_error
from .ids import new_id
from .logs import log, request_id
from .respond import ClientGone, json_response

_QUIET = frozenset({"/health", "/v1/health", "/metrics", "/slots"})
"""What is asked again and again."""


class Gate:
    """Names, records and, where nothing else does, ends requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = _name(Headers(scope=scope).get("x-request-id"))
        request_id.set(name)
        began, status = time.monotonic(), 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = list(message["headers"])
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except (ClientGone, ClientDisconnect, ConnectionError):
            log("client left", path=scope["path"], ms=_ms_since(began))
            return
        except Exception as error:
            failure = as_api_error(error)
            if failure.status >= 500 and failure.status not in (501, 503):
                log("request failed", level="error", path=scope["path"], error=repr(error))
            if status == 0:
                response = json_response(failure.as_json(scope["path"]), failure.status, failure.headers)
                await response(scope, receive, send_named)
        level = "debug" if scope["path"] in _QUIET else "info"
        log("request", level=level, method=scope["method"], path=scope["path"], status=status, ms=_ms_since(began))


def _name(given: str | None) -> str:
    return given if given and re.fullmatch(r"[\w.:-]{1,128}", given) else new_id("req")


def _ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
