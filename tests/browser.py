"""What tests do with the server's page in a browser: the fixture `new_page` opens it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def ask(page: Any, text: str) -> None:
    """Type a message, send it with Enter, and wait for the whole answer."""
    page.fill("#text", text)
    page.keyboard.press("Enter")
    wait_for_end(page)


def wait_for_end(page: Any) -> None:
    """Wait until no answer is written."""
    page.wait_for_selector("#stop:disabled", timeout=60_000)


def set_fields(page: Any, **values: str) -> None:
    """Fill in settings."""
    page.click("nav [popovertarget=settings]")
    for name, value in values.items():
        field = page.locator(f"#fields [name={name}]")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
            field.blur()
    page.keyboard.press("Escape")


@contextmanager
def scripted(page: Any, events: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Chats are answered with these events, in place of the server's."""
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    pattern = "**/v1/chat/completions"
    page.route(pattern, lambda route: route.fulfill(content_type="text/event-stream", body=body))
    yield
    page.unroute(pattern)


def said(content: str = "", reasoning: str = "", end: str = "stop", **more: Any) -> list[dict[str, Any]]:
    """The events of an answer."""
    deltas: list[dict[str, str]] = [{"reasoning_content": reasoning}, {"content": content}, {}]
    events = [chunk(delta) for delta in deltas]
    events[-1]["choices"][0]["finish_reason"] = end
    events[-1] |= more
    return events


def chunk(delta: dict[str, str]) -> dict[str, Any]:
    """An event of an answer."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def requests_of(page: Any) -> list[dict[str, Any]]:
    """The bodies that the page will send from now on."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None)
    return bodies
