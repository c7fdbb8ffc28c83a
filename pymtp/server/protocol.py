"""A connection of the server: how long and how late the head of a request may be, and how long nobody may read.

Owns these limits, which uvicorn does not have with its faster parser. Knows bytes; nothing of what is asked.
"""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 << 10
"""The longest head: the request's line and its headers. h11, uvicorn's other parser, has the same limit."""
HEAD_S = 60.0
"""How long it may take to arrive, from the connection or from its first byte."""
STALLED_S = 120.0
"""How long a client may leave what was sent to it unread. Its request would count as running for as long."""

_TOO_LONG_BODY = (
    b'{"error":{"code":431,"message":"the headers are longer than %d bytes","type":"request_too_large"}}'
    % HEAD_BYTES_MAX
)
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_TOO_LONG_BODY), _TOO_LONG_BODY)
)

_READ_BY_UVICORN = (b"content-length", b"transfer-encoding", b"connection")


def as_written(name: bytes) -> bytes:
    """The name of a header in the case in which llama-server writes it, if uvicorn itself does not read it."""
    return name if name in _READ_BY_UVICORN else _AsWritten(name.title())


class _AsWritten(bytes):
    """A name that is sent as it is: uvicorn makes others lower-case, which not all clients expect."""

    def lower(self) -> "_AsWritten":
        return self


class _Parser:
    """httptools' parser, without offers of another protocol.

    Java's client offers HTTP/2 (`Upgrade: h2c`) with its first request, and sends the body all the same; httptools
    leaves the body to that protocol, which nobody speaks here. So the request is parsed again, without the offer.
    """

    def __init__(self, connection: "Connection") -> None:
        self._connection, self._parser = connection, _new_parser(connection)

    def feed_data(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if self._parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is no proxy") from None
                data = self._connection.head_without_offer() + data[offer.args[0] :]
                self._parser = _new_parser(self._connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class Connection(HttpToolsProtocol):
    """Closes what sends no complete head in time, or does not read, and answers 431 to a head without end."""

    _n_head = 0
    """Bytes that have come since the message began, or since its latest part that is not a header: trailers count."""
    _in_head = _in_message = False
    _timer: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser = _Parser(self)  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._timer)
        _cancel(self._stall)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stall)
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        self._n_head = self._n_head + len(data) if self._in_message else len(data)
        super().data_received(data)
        if self._in_message and self._n_head > HEAD_BYTES_MAX and not self.transport.is_closing():
            if self._in_head:  # else an answer may be under way, or complete
                self.transport.write(_TOO_LONG)
            self.transport.close()
        if self.cycle is None or self.cycle.response_complete:  # these bytes ended uvicorn's own timeout
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._await_head()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the head is parsed again: see _Parser
        _cancel(self._timer)
        self._timer = None
        self._in_head = False
        self._n_head = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_message = False
        super().on_message_complete()

    def head_without_offer(self) -> bytes:
        """The head that was parsed last, without the name of another protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        headers = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *headers, b"", b""])

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.close)


def _new_parser(connection: Connection) -> Any:
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does: what came before is answered
    return parser


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
