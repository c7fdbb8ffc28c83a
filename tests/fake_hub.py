"""A Hugging Face Hub on this machine: the few answers that a download needs, and failures on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

COMMIT = "c" * 40


@dataclass
class Hub:
    """Context manager. `repos` maps a name to its files, `gated` ones refuse to hand them out."""

    repos: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    cut_after: int | None = None
    """Bytes after which the connection breaks off, once."""
    fails_after_cut: bool = False
    is_broken: bool = False
    """Whether every answer is an internal error."""
    is_stalled: bool = False
    """Whether files begin and do not come."""
    is_silent: bool = False
    """Whether nothing is answered."""
    lies: Callable[[dict[str, Any]], object] = lambda answer: None
    """Changes a listing before it is sent."""
    sends: Callable[[bytes], bytes] = lambda data: data
    """Changes a file, which is listed as it is."""
    headers: dict[str, str] = field(default_factory=dict)
    """Added to answers with files, in the place of its own."""
    redirects_to: str | None = None
    """The address of another Hub, which has the files."""
    requests: list[str] = field(default_factory=list)
    """Method, path and range of each."""
    tokens: list[str] = field(default_factory=list)
    """What came with them."""

    released: threading.Event = field(default_factory=threading.Event)
    """Set when stalled answers may end."""

    def __enter__(self) -> Hub:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        self.hub.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
        self.hub.tokens.append(self.headers.get("Authorization", ""))
        if self.hub.is_silent:
            self.hub.released.wait()
        if self.hub.is_broken:
            return self._send(500, b"")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/?]+)(\?.*)?", self.path):
            return self._listing(match[1])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
            return self._file(match[1], match[2], with_body=with_body)
        self._send(404, b"")

    def _listing(self, repo: str) -> None:
        if repo not in self.hub.repos:
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        lfs = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
            for name, data in self.hub.repos[repo].items()
        }
        siblings = [{"rfilename": "README.md", "size": 1, "blobId": "b" * 40}]
        siblings += [{"rfilename": name, "size": each["size"], "lfs": each} for name, each in lfs.items()]
        answer = {"id": repo, "sha": COMMIT, "siblings": siblings}
        self.hub.lies(answer)
        self._send(200, json.dumps(answer).encode())

    def _file(self, repo: str, name: str, *, with_body: bool) -> None:
        if repo in self.hub.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        listed = self.hub.repos[repo][name]
        digest = hashlib.sha256(listed).hexdigest()
        linked = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(listed))}
        linked.update(self.hub.headers)
        if self.hub.redirects_to:
            return self._send(302, b"", {"Location": self.hub.redirects_to + self.path, **linked})
        data = self.hub.sends(listed)
        headers = {"Accept-Ranges": "bytes", **linked}
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, data[start:], headers, with_body=with_body and not self.hub.is_stalled)
        if with_body and self.hub.is_stalled:
            self.hub.released.wait()

    def _send(self, code: int, body: bytes, headers: dict[str, str] | None = None, *, with_body: bool = True) -> None:
        self.send_response(code)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if not with_body:
            return
        if self.hub.cut_after is not None and len(body) > self.hub.cut_after:
            body, self.hub.cut_after = body[: self.hub.cut_after], None
            self.hub.is_broken = self.hub.fails_after_cut
            self.close_connection = True
        with suppress(ConnectionError):  # who has read enough
            self.wfile.write(body)
