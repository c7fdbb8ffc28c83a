"""What the log of the server says of requests."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message

from pymtp.errors import InvalidParameter
from pymtp.server import logs
from pymtp.server.access import Access
from pymtp.server.settings import ServerSettings


def lines_of(path: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    logs.set_up(is_json=True)
    ask(path)
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def ask(path: str, **settings: Any) -> None:
    """One request, as the layer around the endpoints sees it."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(Access(Response("ok"), ServerSettings(**settings), frozenset())(scope, receive, send))


@pytest.mark.parametrize("path", ["/health", "/slots", "/props", "/metrics"])
def test_what_an_open_page_asks_again_and_again_is_not_logged(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(path, capsys) == []


def test_other_requests_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = lines_of("/v1/models", capsys)
    assert (line["event"], line["path"], line["status"]) == ("request", "/v1/models", 200)


def test_what_uvicorn_says_has_lines_of_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(is_json=True)
    of_uvicorn = logging.getLogger("uvicorn.error")
    of_uvicorn.warning("Invalid HTTP request received.")
    of_uvicorn.error("Exception in ASGI application\n", exc_info=ValueError("x"))
    refused, failed = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (refused["level"], refused["event"]) == ("warning", "Invalid HTTP request received.")
    assert (failed["event"], failed["error"]) == ("Exception in ASGI application", "ValueError('x')")


def test_a_plain_line_has_time_level_event_and_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    logs.set_up(file=tmp_path / "log")
    ask("/v1/a\nb")
    logs.log("told", level="warning", what='a "b"', nothing="", n=3)
    lines = capsys.readouterr().err.splitlines()
    assert (tmp_path / "log").read_text().splitlines() == ["before", *lines]
    begin = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.fullmatch(begin + r'info: request method=GET path="/v1/a\\nb" status=200 ms=\S+ request=\S+', lines[0])
    assert re.fullmatch(begin + r'warning: told what="a \\"b\\"" nothing="" n=3', lines[1])


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="log_file must be a file that can be written"):
        logs.set_up(file=tmp_path)


def test_polls_below_a_prefix_are_not_logged_either(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up()
    ask("/llm/health", api_prefix="/llm")
    assert capsys.readouterr().err == ""
    ask("/llmhealth", api_prefix="/llm")
    assert "status=404" in capsys.readouterr().err
