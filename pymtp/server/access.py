"""The layers around the endpoints: names, log and errors of requests, the origins whose pages may ask, and API keys.

Knows headers, and how requests ended; nothing of what is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, as_api_error
from .logs import log, new_id, request_id
from .respond import ClientGone, json_response
from .settings import ServerSettings

PUBLIC = frozenset({"/health", "/v1/health"})
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")

_QUIET = frozenset({"/health", "/v1/health", "/metrics", "/slots"})
"""What is asked again and again."""


class Gate:
    """Names, records and, where nothing else does, ends requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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


class KeyCheck:
    """Refuses requests without one of the keys; files of the page and /health need none. Notes whose a request is."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], public: frozenset[str]) -> None:
        self._app, self._public = app, public
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needs_key = scope["type"] == "http" and self._keys and scope["path"] not in self._public
        key = _key_of(Headers(scope=scope)) if needs_key else b""
        if needs_key and not self._is_known(key):
            error = ApiError(401, "Invalid API Key", headers={"WWW-Authenticate": "Bearer"})
            await json_response(error.as_json(scope["path"]), error.status, error.headers)(scope, receive, send)
            return
        scope.setdefault("state", {})["key_id"] = hashlib.sha256(key).hexdigest() if key else ""
        await self._app(scope, receive, send)

    def _is_known(self, key: bytes) -> bool:
        # all of them are compared, in a time that says nothing of how much was right
        return sum(hmac.compare_digest(key, each) for each in self._keys) > 0


def _key_of(headers: Headers) -> bytes:
    given = headers.get("authorization") or headers.get("x-api-key") or ""
    return given.removeprefix("Bearer ").encode()


class Origins:
    """Which origins' pages may use the server, as browsers ask."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = self._headers(Headers(scope=scope).get("origin", ""))
        if scope["method"] == "OPTIONS":
            settings = self._settings
            headers["Access-Control-Allow-Credentials"] = "true" if settings.cors_credentials else "false"
            headers["Access-Control-Allow-Methods"] = settings.cors_methods
            headers["Access-Control-Allow-Headers"] = settings.cors_headers
            start: Message = {"type": "http.response.start", "status": 200, "headers": []}
            MutableHeaders(raw=start["headers"]).update(headers)
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and headers:
                message["headers"] = list(message["headers"])
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _headers(self, origin: str) -> dict[str, str]:
        allowed = self._settings.cors_origins
        if allowed == "*":
            allowed = origin if self._settings.cors_credentials else "*"
        elif allowed == "localhost":
            allowed = origin if _LOCAL.fullmatch(origin) else ""
        return {"Access-Control-Allow-Origin": allowed, "Vary": "Origin"} if allowed else {}
