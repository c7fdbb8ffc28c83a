"""Who may ask: API keys, and the origins whose pages may.

Knows headers; nothing of what is asked.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .respond import json_response
from .settings import ServerSettings

PUBLIC = frozenset({"/health", "/v1/health"})
asker: ContextVar[str] = ContextVar("asker", default="")
"""Who sent the request that is being answered: the number of the API key, or nothing where none is needed."""
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")


class KeyCheck:
    """Refuses requests without one of the keys; files of the page and /health need none."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], public: frozenset[str]) -> None:
        self._app, self._public = app, public
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        needs_key = scope["type"] == "http" and self._keys and scope["path"] not in self._public
        key = self._key_of(Headers(scope=scope)) if needs_key else None
        if needs_key and key is None:
            error = ApiError(401, "Invalid API Key", headers={"WWW-Authenticate": "Bearer"})
            await json_response(error.as_json(scope["path"]), error.status, error.headers)(scope, receive, send)
            return
        asker.set("" if key is None else str(key))
        await self._app(scope, receive, send)

    def _key_of(self, headers: Headers) -> int | None:
        """The number of the key that was given; None: it is none of ours."""
        given = headers.get("authorization") or headers.get("x-api-key") or ""
        key = given.removeprefix("Bearer ").encode()
        # all of them are compared, in a time that says nothing of how much was right
        return max((i for i, each in enumerate(self._keys) if hmac.compare_digest(key, each)), default=None)


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
