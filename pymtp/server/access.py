"""Who may ask: API keys, and the origins whose pages may.

Knows headers; nothing of what is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .respond import json_response
from .settings import ServerSettings

PUBLIC = frozenset({"/health", "/v1/health"})
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")


class KeyCheck:
    """Refuses requests without one of the keys; files of the page and /health need none. Notes whose a request is."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], public: frozenset[str]) -> None:
        self._app, self._public = app, public
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
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
        """See ASGI."""
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
