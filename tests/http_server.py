"""A server of pymtp in this process, and a plain client of it: for tests."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from pymtp import GenerationParams, Model
from pymtp.server.app import make_app
from pymtp.server.protocol import Connection
from pymtp.server.run import bound
from pymtp.server.served_model import ServedModel
from pymtp.server.settings import ServerSettings


@dataclass
class Response:
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        """The data of all events of a stream; "[DONE]" is left out."""
        lines = [line[6:] for line in self.data.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Client:
    """Sends requests to a server of this machine."""

    def __init__(self, port: int, app: Any) -> None:
        self.port, self.app = port, app

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers or {})
            reply = connection.getresponse()
            return Response(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Response:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, **body: Any) -> Response:
        return self.send("POST", path, body)


@contextmanager
def running(load: Callable[[], Model], settings: ServerSettings | None = None) -> Iterator[Client]:
    """A server, once its model is loaded."""
    settings = settings or ServerSettings(params=GenerationParams(cache_prompt=True))
    app = make_app(ServedModel(load, settings))
    listener = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    client = Client(listener.getsockname()[1], app)
    thread.start()
    try:
        wait_until(lambda: app.state.served.phase != "loading" and server.started)
        yield client
    finally:
        server.should_exit = True
        thread.join(60)


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.01)
