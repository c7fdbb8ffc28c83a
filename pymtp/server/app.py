"""The server as an ASGI application: which path leads where.

Owns the routes, and what browsers may do with the page at /, whose files are in `page`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from . import info, llama_server, messages, responses
from .access import Access
from .chat import answer_chat, count_tokens_of
from .completions import ChatCompletionReply, CompletionReply
from .errors import ApiError, invalid
from .metrics import metrics
from .prompts import answer_prompts
from .served_model import ServedModel
from .slots import slot_action, slots

_UNSUPPORTED = {
    "embeddings": ("/embedding", "/embeddings", "/v1/embeddings"),
    "reranking": ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    "audio": ("/audio/transcriptions", "/v1/audio/transcriptions"),
}
"""What llama-server can do and this one cannot."""
_COUNT = {"object": "response.input_tokens"}
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


def make_app(served: ServedModel) -> Starlette:
    """The application that serves a model, which it loads in a thread of its own."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        served.start()
        with suppress(asyncio.CancelledError):  # a second signal
            yield
            await served.stop()

    app = Starlette(
        routes=list(_routes(has_page=served.settings.has_page)),
        middleware=[Middleware(Access, settings=served.settings, public=frozenset(_FILES))],
        exception_handlers={404: _no_route, 405: _no_route},
        lifespan=lifespan,
    )
    app.state.served = served
    return app


def _routes(*, has_page: bool) -> Iterator[Route]:
    post = partial(Route, methods=["POST"])
    for prefix in ("", "/v1"):
        yield Route(f"{prefix}/health", info.health)
        yield Route(f"{prefix}/models", info.models)
        yield Route(f"{prefix}/models/{{id:path}}", info.model)
        yield post(f"{prefix}/chat/completions", partial(answer_chat, None, ChatCompletionReply))
        yield post(f"{prefix}/chat/completions/input_tokens", partial(count_tokens_of, None, _COUNT))
        yield post(f"{prefix}/responses", partial(answer_chat, responses.as_chat, responses.ResponsesReply))
        yield post(f"{prefix}/responses/input_tokens", partial(count_tokens_of, responses.as_chat, _COUNT))
    yield Route("/metrics", metrics)
    yield Route("/slots", slots)
    yield post("/slots/{slot}", slot_action)
    yield Route("/lora-adapters", info.adapters)
    yield post("/lora-adapters", info.scale_adapters)
    yield Route("/props", info.props)
    yield post("/props", info.set_props)
    yield post("/completion", partial(answer_prompts, llama_server.LlamaServerReply))
    yield post("/completions", partial(answer_prompts, llama_server.LlamaServerReply))
    yield post("/infill", llama_server.infill)
    yield post("/v1/completions", partial(answer_prompts, CompletionReply))
    yield post("/v1/messages", partial(answer_chat, messages.as_chat, messages.MessagesReply))
    yield post("/v1/messages/count_tokens", partial(count_tokens_of, messages.as_chat, {}))
    yield post("/tokenize", llama_server.tokenize)
    yield post("/detokenize", llama_server.detokenize)
    yield post("/apply-template", llama_server.apply_template)
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
