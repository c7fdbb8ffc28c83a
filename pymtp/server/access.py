"""The layer around the endpoints: names, log and errors of requests, the origins whose pages may ask, and API keys.

Knows headers, and how requests ended; nothing of what is asked.
"""

import asyncio
import hashlib
import hmac
import re
import time
from secrets import token_hex
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, as_api_error
from .logs import ignored, log, request_id
from .protocol import as_written
from .respond import json_response
from .served_model import key_id
from .settings import ServerSettings

PUBLIC = frozenset({"/health", "/v1/health"})
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")

IGNORED = "X-Pymtp-Ignored"
"""The header that names what of a request has no effect."""
N_IGNORED_MAX = 4000
_PRINTED = "".join(map(chr, range(32, 127))).replace("%", "")

_QUIET = frozenset({"/health", "/v1/health", "/metrics", "/slots", "/props"})
"""What is asked again and again, and not in the log."""


class Access:
    """Names and records requests, refuses those without a key, and answers those that nothing else does.

    `public`: paths that need no key.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, public: frozenset[str]) -> None:
        self._app, self._settings, self._public = app, settings, public | PUBLIC
        self._keys = [key.encode(errors="surrogateescape") for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked, prefix = Headers(scope=scope), self._settings.api_prefix
        path = scope["path"].removeprefix(prefix).rstrip("/") or "/"
        given = asked.get("x-request-id", "")
        name = given if re.fullmatch(r"[\w.:-]{1,128}", given) else f"req-{token_hex(16)}"
        request_id.set(name)
        without_effect: list[str] = []
        ignored.set(without_effect)
        headers = {"X-Request-Id": name, "Request-Id": name} | self._origin_headers(asked.get("origin", ""))
        began, status = time.monotonic(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if without_effect:
                    headers[IGNORED] = quote("; ".join(without_effect), safe=_PRINTED)[:N_IGNORED_MAX]
                added = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
                message["headers"] = [(as_written(key), value) for key, value in (*message["headers"], *added)]
            await send(message)

        try:
            if not scope["path"].startswith(f"{prefix}/"):
                raise ApiError(404, f"there is nothing at {scope['path']}: all paths begin with {prefix}/")
            scope["path"] = path
            if scope["method"] == "OPTIONS":
                headers |= self._preflight_headers(asked)
                await Response()(scope, receive, send_with_headers)
            else:
                key_id.set("" if path in self._public else self._key_id(asked))
                await self._app(scope, receive, send_with_headers)
        except (ClientDisconnect, ConnectionError):
            log("client left", path=path, ms=_ms_since(began))
            return
        except (Exception, asyncio.CancelledError) as error:
            failure = as_api_error(error)
            if failure.status >= 500 and failure.status not in (501, 503, 504):
                log("request failed", level="error", path=path, error=repr(error))
            if status == 0:
                body = failure.as_json(path, is_anthropic="anthropic-version" in asked)
                response = json_response(body, failure.status, failure.headers)
                await response(scope, receive, send_with_headers)
        if path not in _QUIET:
            log("request", method=scope["method"], path=path, status=status, ms=_ms_since(began))

    def _key_id(self, asked: Headers) -> str:
        """A hash of the key that a request came with; "" if none is needed. Raises ApiError for one that is wrong."""
        if not self._keys:
            return ""
        key = (asked.get("authorization") or asked.get("x-api-key") or "").removeprefix("Bearer ").encode("latin-1")
        # all of them are compared, in a time that says nothing of how much was right
        if not sum(hmac.compare_digest(key, each) for each in self._keys):
            raise ApiError(401, "Invalid API Key", headers={"WWW-Authenticate": "Bearer"})
        return hashlib.sha256(key).hexdigest()

    def _origin_headers(self, origin: str) -> dict[str, str]:
        allowed = self._settings.cors_origins
        if allowed == "*":
            allowed = origin if self._settings.cors_credentials else "*"
        elif allowed == "localhost":
            allowed = origin if _LOCAL.fullmatch(origin) else ""
        elif "," in allowed:  # a browser takes one
            allowed = origin if origin in re.split(" *, *", allowed) else ""
        if not allowed:
            return {}
        credentials = "true" if self._settings.cors_credentials else "false"
        return {
            "Access-Control-Allow-Origin": allowed,
            "Access-Control-Allow-Credentials": credentials,
            "Access-Control-Expose-Headers": f"X-Request-Id, Request-Id, Retry-After, {IGNORED}",
            "Vary": "Origin",
        }

    def _preflight_headers(self, asked: Headers) -> dict[str, str]:
        settings = self._settings
        allowed = settings.cors_headers
        if allowed == "*" and "://" in asked.get("origin", ""):  # with credentials, * is no wildcard for a browser
            allowed = asked.get("access-control-request-headers", "*")
        return {"Access-Control-Allow-Methods": settings.cors_methods, "Access-Control-Allow-Headers": allowed}


def _ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
