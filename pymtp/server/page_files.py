"""The files of the page at /: they lie in the folder `page`.

Owns which paths they have and what browsers may do with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).with_name("page")
_FILES = {
    "/": ("index.html", "text/html"),
    "/index.html": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_ICON = "/favicon.ico"
PAGE_PATHS = frozenset((*_FILES, _ICON))
"""What needs no key."""

_HEADERS = {
    # nothing from elsewhere, nothing inline
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> Iterator[Route]:
    """The routes of the page."""
    for path in _FILES:
        yield Route(path, _send)
    yield Route(_ICON, _no_icon)


async def _send(request: Request) -> Response:
    name, kind = _FILES[request.url.path]
    return Response((_FOLDER / name).read_bytes(), headers=_HEADERS, media_type=kind)


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)
