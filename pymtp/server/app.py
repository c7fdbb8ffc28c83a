"""The server as an ASGI application: which path leads where.

Owns the routes, and what browsers may do with the page at /, whose files are in `page`.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pymtp.model import Model

from . import info, llama_server
from .access import Access
from .completions import chat_completions, completions, count_chat_tokens
from .errors import ApiError, invalid
from .messages import count_tokens, messages
from .metrics import metrics
from .responses import count_response_tokens, responses
from .served_model import ServedModel
from .settings import ServerSettings
from .slots import slot_action, slots
from .state import ServerState

_UNSUPPORTED = {
    "embeddings": ("/embedding", "/embeddings", "/v1/embeddings"),
    "reranking": ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    "audio": ("/audio/transcriptions", "/v1/audio/transcriptions"),
}
"""What llama-server can do and this one cannot."""
_PAGE = Path(__file__).with_name("page")
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {"/": _PAGE / "index.html"} | {f"/{path.name}": path for path in _PAGE.iterdir()}
"""What needs no key."""

_HEADERS = {
    # nothing from elsewhere, nothing inline, and no text that becomes HTML or a script
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def make_app(
    load: Callable[[], Model], settings: ServerSettings, on_failure: Callable[[], object] = lambda: None
) -> Starlette:
    """The application that serves the model that `load` loads, in a thread of its own.

    `on_failure` is called if there is no model, or no more; `app.state.served.error` says why.
    """
    served = ServedModel(load, settings)
    served.on_failure = on_failure

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        served.start()
        yield
        await served.stop()

    app = Starlette(
        routes=list(_routes(has_page=settings.has_page)),
        middleware=[Middleware(Access, settings=settings, public=frozenset(_FILES))],
        exception_handlers={404: _no_route, 405: _no_route},
        lifespan=lifespan,
    )
    app.state.served, app.state.settings = served, settings
    app.state.server = ServerState(served, settings)
    return app


def _routes(*, has_page: bool) -> Iterator[Route]:
    for prefix in ("", "/v1"):
        yield Route(f"{prefix}/health", info.health)
        yield Route(f"{prefix}/models", info.models)
        yield Route(f"{prefix}/models/{{id:path}}", info.model)
        yield Route(f"{prefix}/chat/completions", chat_completions, methods=["POST"])
        yield Route(f"{prefix}/chat/completions/input_tokens", count_chat_tokens, methods=["POST"])
        yield Route(f"{prefix}/responses", responses, methods=["POST"])
        yield Route(f"{prefix}/responses/input_tokens", count_response_tokens, methods=["POST"])
    yield Route("/metrics", metrics)
    yield Route("/slots", slots)
    yield Route("/slots/{slot}", slot_action, methods=["POST"])
    yield Route("/lora-adapters", info.adapters)
    yield Route("/lora-adapters", info.scale_adapters, methods=["POST"])
    yield Route("/props", info.props)
    yield Route("/props", info.set_props, methods=["POST"])
    yield Route("/completion", llama_server.completion, methods=["POST"])
    yield Route("/completions", llama_server.completion, methods=["POST"])
    yield Route("/infill", llama_server.infill, methods=["POST"])
    yield Route("/v1/completions", completions, methods=["POST"])
    yield Route("/v1/messages", messages, methods=["POST"])
    yield Route("/v1/messages/count_tokens", count_tokens, methods=["POST"])
    yield Route("/tokenize", llama_server.tokenize, methods=["POST"])
    yield Route("/detokenize", llama_server.detokenize, methods=["POST"])
    yield Route("/apply-template", llama_server.apply_template, methods=["POST"])
    for what, paths in _UNSUPPORTED.items():
        for path in paths:
            yield Route(path, partial(_refuse, what), methods=["GET", "POST"])
    for path, file in _FILES.items() if has_page else ():
        page = Response(file.read_bytes(), headers=_HEADERS, media_type=_KINDS[file.suffix])
        yield Route(path, page, methods=["GET"])


async def _refuse(what: str, request: Request) -> Response:
    raise invalid(f"this server does not support {what}")


async def _no_route(request: Request, error: Exception) -> Response:
    status = cast(HTTPException, error).status_code
    what = "there is nothing" if status == 404 else f"{request.method} is not possible"
    raise ApiError(status, f"{what} at {request.url.path}")
