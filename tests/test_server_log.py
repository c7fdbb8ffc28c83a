"""What the log of the server says of requests."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message

from http_server import running
from pymtp import GenerationParams, Model
from pymtp.errors import InvalidParameter
from pymtp.server import logs, train_log
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


def test_served_texts_are_kept_for_training_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    settings = ServerSettings(params=GenerationParams(), train_log=folder)
    with running(lambda: Model(n_ctx=256, n_threads=1), settings) as client:
        answers = [client.post("/completion", prompt=prompt, n_predict=8).json["content"] for prompt in ("One", "Two")]
        assert client.post("/completion", prompt="Three", n_predict=-5).status == 400
    (file,) = folder.iterdir()
    assert file.read_text() == f"One{answers[0]}\nTwo{answers[1]}\n"
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_log_of_texts_ends_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_log, "N_BYTES_MAX", 40)
    settings = ServerSettings(params=GenerationParams(), train_log=tmp_path)
    with running(lambda: Model(n_ctx=256, n_threads=1), settings) as client:
        for _ in range(6):
            assert client.post("/completion", prompt="One", n_predict=4).status == 200
    assert 0 < (tmp_path / "served.txt").stat().st_size <= 40
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameter, match="train_log must be a folder that can be written"):
        train_log.TrainLog(tmp_path / "file")
