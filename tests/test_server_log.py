"""What the log of the server says of requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message

from pymtp.server import logs
from pymtp.server.access import Access
from pymtp.server.settings import ServerSettings


def lines_of(path: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    logs.set_up()
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(Access(Response("ok"), ServerSettings(), frozenset())(scope, receive, send))
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("path", ["/health", "/slots", "/props", "/metrics"])
def test_what_an_open_page_asks_again_and_again_is_not_logged(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(path, capsys) == []


def test_other_requests_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = lines_of("/v1/models", capsys)
    assert (line["event"], line["path"], line["status"]) == ("request", "/v1/models", 200)
