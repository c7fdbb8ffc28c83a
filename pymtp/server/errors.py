"""What a client gets instead of an answer: a status, and a reason in the form of the API that it asked.

Owns which error of pymtp is whose fault. Knows no request.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from pymtp.errors import Closed, ContextFull, InvalidParameter, ModelError, PymtpError, RemoteError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "method_not_allowed_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}
"""Types of errors by status, as llama-server names them."""

_ANTHROPIC_TYPES = {500: "api_error", 501: "invalid_request_error", 503: "overloaded_error"}


class ApiError(Exception):
    """A request that is refused, or fails. `more`: fields of the error, further ones or in the place of the usual."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.fields = {"code": status, "message": message, "type": TYPES.get(status, "server_error"), **more}

    def as_json(self, path: str, *, is_anthropic: bool = False) -> dict[str, Any]:
        """The body of the response, as clients of `path` expect it; `is_anthropic`: as those of Anthropic do."""
        if not (is_anthropic or path.startswith("/v1/messages")):
            return {"error": self.fields}
        kind = _ANTHROPIC_TYPES.get(self.status, self.fields["type"])
        return {"type": "error", "error": {**self.fields, "type": kind}}


def invalid(message: str) -> ApiError:
    return ApiError(400, message)


def turned_off(message: str) -> ApiError:
    """The server was started without what the request asks for. The status is llama-server's; clients retry others."""
    return ApiError(501, message, headers={"X-Should-Retry": "false"})


def busy(what: str, retry_after_s: int) -> ApiError:
    """The queue is full. `what`: of what."""
    return ApiError(429, f"{what} already: try again later", headers={"Retry-After": str(retry_after_s)})


def unavailable(message: str) -> ApiError:
    """The server cannot answer at present."""
    return ApiError(503, message, headers={"Retry-After": "1"})


def as_api_error(error: BaseException) -> ApiError:
    """`error` as clients get it."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (Closed, asyncio.CancelledError)):
        return unavailable("the server is stopping")
    if isinstance(error, (InvalidParameter, ModelError)):
        return invalid(str(error))
    if isinstance(error, ContextFull):
        return ApiError(500, f"{error}; the Context size has been exceeded by the requests of all slots together")
    if isinstance(error, RemoteError):
        return unavailable(str(error))  # the model is loaded again as soon as the machine is back
    if isinstance(error, PymtpError):
        return ApiError(500, str(error))
    return ApiError(500, f"an error of the server ({type(error).__name__}); its log says more")
