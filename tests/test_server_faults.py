"""What a server does when clients, requests or the engine fail."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from http_server import Client, free_port, running
from machine import needs_exact_texts
from pymtp import BackendError, GenerationParams, Model, Session
from pymtp.errors import InvalidParameter, RemoteError
from pymtp.server import protocol, run
from pymtp.server import served_model as served_module
from pymtp.server.run import _allow_many_files
from pymtp.server.served_model import ServedModel
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

PROMPT = "Once upon a time"
GREEDY = {"prompt": PROMPT, "temperature": 0, "n_predict": 16}
ENDLESS = {"prompt": PROMPT, "n_predict": -1, "ignore_eos": True}
TOO_MANY_WAYS = "root ::= x{1,500}\nx ::= y{0,50}\ny ::= [a-z ]?"
"""A grammar that can be followed in more ways than can be counted."""
N_IDLE = 1000
SOON_S = 30


def load() -> Model:
    return Model(n_ctx=256, n_seq_max=2, draft_max=2, n_threads=1, kv_unified=False)


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with running(load, ServerSettings(has_metrics=True)) as client:
        yield client


@pytest.fixture(scope="module")
def text(server: Client) -> str:
    return str(server.post("/completion", **GREEDY).json["content"])


def await_idle(client: Client) -> None:
    """Every slot is free again, and nobody waits."""
    end = time.monotonic() + SOON_S
    n_idle = 0
    while n_idle < 5:  # what a client has sent before it left may still be read
        is_idle = not client.app.state.served.answers and not any(
            slot["is_processing"] for slot in client.get("/slots").json
        )
        n_idle = (n_idle + 1) * is_idle
        assert time.monotonic() < end, "an answer was never ended"
        time.sleep(0.01)


def raw(path: str, body: dict[str, Any], method: str = "POST") -> bytes:
    """A request as its bytes."""
    data = json.dumps(body).encode()
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


# --- the end ---


@contextmanager
def served(*flags: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """`pymtp serve` as a process of its own, once it answers."""
    command = [sys.executable, "-m", "pymtp_cli", "serve", "-c", "512", "-np", "1", "-t", "1", "--port", "0"]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "listening" in line)
        client = Client(urlsplit(line.rpartition("=")[2]).port or 0, None)
        end = time.monotonic() + 60
        try:
            while True:
                assert process.poll() is None and time.monotonic() < end
                try:
                    if client.get("/health").status == 200:
                        break
                except OSError:
                    pass
                time.sleep(0.05)
            yield process, client
        finally:
            process.kill()


def test_a_host_can_be_a_path(tmp_path: Path) -> None:
    """As for llama-server; also where a server was killed before. The path is gone when it ends."""
    path = str(tmp_path / "pymtp.sock")
    run.bound(path, 0).close()
    with served("--host", f"127.0.0.1,{path}") as (process, client):
        with pytest.raises(InvalidParameter, match=re.escape(f"host must be one that is free: {path} is in use")):
            run.bound(path, 0)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SOON_S)
            connection.connect(path)
            connection.sendall(raw("/completion", {"prompt": PROMPT, "n_predict": 3}))
            reply = b""
            while b'"tokens_predicted":3' not in reply:
                assert (part := connection.recv(65536))
                reply += part
        assert client.get("/health").status == 200
        process.terminate()
        assert process.wait(SOON_S) == 0
    assert not Path(path).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_completes_what_has_begun_and_ends_with_0(number: int) -> None:
    with served() as (process, client):
        body = {"prompt": PROMPT, "n_predict": 300, "ignore_eos": True, "stream": True, "temperature": 0}
        with socket.create_connection(("127.0.0.1", client.port), timeout=SOON_S) as connection:
            connection.sendall(raw("/completion", body))
            assert connection.recv(1000)
            process.send_signal(number)
            rest = read_all(connection).decode()
        assert '"stop":true' in rest and '"tokens_predicted":300' in rest
        assert process.wait(SOON_S) == 0
        with pytest.raises(OSError):
            client.get("/health")


def test_a_second_signal_ends_it_at_once() -> None:
    with served("-n", "-1") as (process, client):
        body = ENDLESS | {"stream": True, "n_predict": 480}
        with socket.create_connection(("127.0.0.1", client.port), timeout=SOON_S) as connection:
            connection.sendall(raw("/completion", body))
            assert connection.recv(1000)
            with socket.create_connection(("127.0.0.1", client.port), timeout=SOON_S) as other:
                other.sendall(raw("/completion", ENDLESS | {"n_predict": 480}))
                time.sleep(0.1)
                process.send_signal(signal.SIGTERM)
                time.sleep(0.05)
                process.send_signal(signal.SIGTERM)
                assert process.wait(SOON_S) == 0
                assert b'"stop":true' not in read_all(connection)
                assert b" 503 " in (refused := read_all(other)) and b"the server is stopping" in refused
        assert process.stderr and "Traceback" not in process.stderr.read()


# --- keys and certificates ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return cert, key


def test_https_is_spoken_with_a_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    port = free_port()
    command = [sys.executable, "-m", "pymtp_cli", "serve", "-q", "-c", "512", "-np", "1", "-t", "1"]
    flags = ["--port", str(port), "--ssl-cert-file", str(cert), "--ssl-key-file", str(key)]
    with subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL) as process:
        trusted = ssl.create_default_context(cafile=str(cert))
        end = time.monotonic() + 60
        try:
            while True:
                assert process.poll() is None and time.monotonic() < end
                connection = http.client.HTTPSConnection("localhost", port, context=trusted, timeout=SOON_S)
                try:
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                except ConnectionError:
                    pass
                time.sleep(0.05)
        finally:
            process.kill()


def test_a_folder_of_prefixes_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    """It shows once the model is loaded; the server would say for ever that it loads."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "pymtp_cli", "serve", "-q", "--port", "0", "--cache-dir", str(tmp_path / "file/x")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2) and "--cache-dir: must be a folder that can be written" in done.stderr


@pytest.mark.parametrize("flags", [("key",), ("cert",), ("cert", "cert"), ("nothing", "key")])
def test_a_certificate_that_cannot_be_used_is_an_error_of_one_line(
    certificate: tuple[Path, Path], flags: tuple[str, ...]
) -> None:
    files = {"cert": certificate[0], "key": certificate[1], "nothing": certificate[0] / "nothing"}
    names = ("--ssl-key-file",) if flags == ("key",) else ("--ssl-cert-file", "--ssl-key-file")
    given = [part for name, flag in zip(names, flags, strict=False) for part in (name, str(files[flag]))]
    done = CliRunner().invoke(app, ["serve", "-q", "--port", "0", *given], prog_name="pymtp")
    assert done.exit_code in (1, 2) and "ssl-cert-file" in done.stderr and "Traceback" not in done.stderr


# --- requests that fail ---


@needs_exact_texts
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/completion", {"prompt": "a", "grammar": "root ::= ("}, 400),
        ("/completion", {"prompt": "a", "grammar": "root ::= missing"}, 400),
        ("/completion", {"prompt": "a", "json_schema": {"type": "no such type"}}, 400),
        ("/completion", {"prompt": "a", "json_schema": {"$ref": "#/nowhere"}}, 400),
        ("/completion", {"prompt": "a", "n_predict": 2**40, "stop": ["e"]}, 200),
        ("/completion", {"prompt": "a", "n_predict": 2**70, "stop": ["e"]}, 200),
        ("/completion", {"prompt": "a\0b\0", "stop": ["\0"], "n_predict": 4}, 200),
        ("/completion", {"prompt": "a", "n_probs": 10**9, "n_predict": 1}, 200),
        ("/completion", {"prompt": "a", "n_probs": -1}, 400),
        ("/completion", {"prompt": "a", "top_k": -(2**40), "n_predict": 1}, 200),
        ("/completion", {"prompt": "a", "logit_bias": [[10**9, 1]], "n_predict": 1}, 200),
        ("/completion", {"prompt": "a", "draft_max": -1}, 400),
        ("/completion", {"prompt": "a", "draft_max": 2, "draft_min": 3}, 400),
        ("/completion", {"prompt": "a", "draft_min": 3}, 400),  # the model's longest are of 2
        ("/completion", {"prompt": "a", "accept": "always"}, 400),
        ("/completion", {"prompt": "a", "response_fields": [""], "n_predict": 1}, 200),
        ("/completion", {"prompt": ["a"] * 3000, "n_predict": 1}, 400),
        ("/completion", {"prompt": "a", "logit_bias": {"9" * 5000: 1}, "n_predict": 1}, 200),
        ("/completion", {"prompt": "a", "logit_bias": [[1, 1]] * 100_000}, 400),
        ("/completion", {"prompt": "a", "stop": ["x"] * 300}, 400),
        ("/completion", {"prompt": "a", "dry_sequence_breakers": ["x"] * 2000}, 400),
        ("/completion", {"prompt": "a", "n_probs": 10**9, "n_predict": 3}, 200),
        ("/completion", {"prompt": "a", "grammar": TOO_MANY_WAYS}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
        ("/v1/chat/completions", {"messages": "x"}, 400),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {"messages": [], "continue_final_message": True, "add_generation_prompt": False}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": [1]}], "max_tokens": 1}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "system": [1], "max_tokens": 1}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "tools": [1], "max_tokens": 1}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "tool_choice": "x"}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "thinking": []}, 400),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": 1}]}]}, 400),
        ("/v1/responses", {"input": [{"role": "assistant"}]}, 400),
        ("/v1/responses", {"input": "a", "tools": ["x"]}, 400),
        ("/v1/responses", {"input": "a", "reasoning": 1}, 400),
        ("/v1/responses", {"input": "a", "text": "x"}, 400),
        ("/v1/responses", {"input": [{"type": "reasoning", "content": 1}]}, 400),
        ("/tokenize", {"content": {"a": 1}}, 400),
        ("/tokenize", {"content": -1, "with_pieces": True}, 400),
        ("/tokenize", {"content": [5, 2**31], "with_pieces": True}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [10**9]}, 400),
        ("/detokenize", {"tokens": [2**70]}, 400),
    ],
)
def test_strange_requests_are_answered_and_leave_others_alone(
    server: Client, text: str, path: str, body: dict[str, Any], status: int
) -> None:
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(server.post("/completion", **GREEDY).json["content"]))
    other.start()
    response = server.post(path, **({"max_tokens": 4} | body if path.startswith("/v1") else body))
    other.join()
    assert (response.status, found) == (status, [text]), response.data
    if status != 200:
        assert response.json["error"]["message"] and "log says more" not in response.json["error"]["message"]


def test_bodies_that_are_no_objects_are_refused(server: Client) -> None:
    for path in ("/completion", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"):
        for body in (b"[]", b"1", b'"a"', b"null", b"[" * 100_000, b'{"a":' * 100_000):
            response = server.send("POST", path, body)
            assert response.status == 400, (path, body[:10], response.data)


def test_a_long_text_holds_up_nobody(server: Client) -> None:
    long = threading.Thread(target=server.post, args=("/tokenize",), kwargs={"content": "the sea " * (1 << 17)})
    long.start()
    n_answered = 0
    while long.is_alive():
        assert server.get("/health").status == 200
        n_answered += 1
    assert n_answered > 3  # one, or none, where it is tokenized between requests


# --- clients that fail ---


def test_a_client_that_sends_slowly_is_given_up_and_holds_up_nobody() -> None:
    with running(load, ServerSettings(timeout_s=1)) as client, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", client.port))) for _ in range(20)]
        for connection in slow:
            connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert client.post("/completion", **GREEDY).status == 200
        for connection in slow:
            connection.settimeout(SOON_S)
            assert b" 408 " in connection.recv(1000)


def test_a_socket_that_is_closed_for_sending_gets_its_answer(server: Client, text: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
        connection.sendall(raw("/completion", GREEDY).replace(b"Host: x", b"Host: x\r\nConnection: close"))
        connection.shutdown(socket.SHUT_WR)
        try:
            reply = read_all(connection)
        except ConnectionError:
            reply = b""
    # an answer, or none as nobody is there: what counts is that nothing stays behind
    assert not reply or json.loads(reply.partition(b"\r\n\r\n")[2])["content"] == text
    await_idle(server)


def test_a_stream_that_nobody_reads_does_not_hold_up_others(server: Client, text: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.sendall(raw("/completion", ENDLESS | {"stream": True, "n_probs": 50}))
        for _ in range(5):
            assert server.post("/completion", **GREEDY).json["content"] == text
    await_idle(server)


def test_a_client_that_never_reads_is_given_up(server: Client, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALLED_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        body = {"prompt": "a", "n_predict": 400, "ignore_eos": True, "n_probs": 200, "stream": True}
        connection.sendall(raw("/completion", body))
        await_idle(server)
        end = time.monotonic() + SOON_S
        while server.app.state.served.answers and time.monotonic() < end:
            time.sleep(0.05)
        assert not server.app.state.served.answers


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", b"GET /", b"GET /health HTTP/1.1\r\n"])
def test_a_head_without_end_is_refused(server: Client, start: bytes) -> None:
    line = b"a" * 1000 if not start.endswith(b"\r\n") else b"X: " + b"a" * 995 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
        with suppress(ConnectionError):
            connection.sendall(start)
            for _ in range(5000):
                connection.sendall(line)
        try:
            assert b" 431 " in connection.recv(1000)
        except ConnectionError:
            pass  # it was closed before it had sent everything
        else:
            error = json.loads(protocol._TOO_LONG.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == 431


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_does_not_lose_the_body(server: Client, parts: int, *, is_chunked: bool) -> None:
    body = b'{"content": "a b"}'
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk"
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n%b\r\n%b\r\n\r\n" % (offer, length)
    sent = [head, body] if parts == 2 else [head + body]
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
        for n in range(2):
            for part in sent:
                connection.sendall(part)
                time.sleep(0.05)
            reply = b""
            while not reply.endswith(b"}"):
                data = connection.recv(1000)
                assert data, (n, reply)
                reply += data
            assert reply.startswith(b"HTTP/1.1 200") and b'"tokens":[' in reply, n


def test_what_comes_after_a_last_request_does_not_take_its_answer(server: Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
        request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connection.sendall(request + request)
        assert read_all(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("line", [b"X: " + b"a" * 995 + b"\r\n", b"a" * 1000])
def test_trailers_without_end_are_not_read(server: Client, line: bytes) -> None:
    start = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: a\r\nY: "
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address, timeout=SOON_S) as connection, pytest.raises(ConnectionError):
        connection.sendall(start)
        for _ in range(20_000):
            connection.sendall(line)


def test_short_trailers_and_small_chunks_are_no_long_head(server: Client) -> None:
    data = b'{"content": "' + b"a " * 50_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in data)
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
        head = b"POST /tokenize HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + chunks + b"0\r\nX: a\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_large_body_after_a_short_head_is_no_long_head(server: Client) -> None:
    reply = server.post("/tokenize", content="a " * 200_000)
    assert reply.status == 200 and len(reply.json["tokens"]) > 100_000
    assert server.get("/health", **{"X-Long": "a" * 60_000}).status == 200


def test_a_connection_without_a_request_is_closed_in_time(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.5)
    for start in (b"", b"GET /health HTTP/1.1\r\nHost:"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
            connection.sendall(start)
            assert connection.recv(100) == b""


@pytest.mark.parametrize(
    "start", [b"GET /health HTTP/1.1\r\n\r\n", b"POST /none HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_connection_whose_request_was_answered_is_closed_in_time(
    server: Client, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S) as connection:
        connection.sendall(start)
        time.sleep(0.2)
        assert connection.recv(10_000).startswith(b"HTTP/1.1 ")
        connection.sendall(b"\r\n")  # no request, or a part of a body that nobody reads
        assert connection.recv(100) == b""


def test_clients_that_reset_their_connections_free_their_slots(server: Client) -> None:
    for _ in range(10):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(
            raw("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stream": True})
        )
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    await_idle(server)


def test_idle_connections_hold_up_nobody(server: Client, text: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * N_IDLE + 200  # both ends are in this process
    if hard < needed:
        pytest.skip(f"{hard} open files are allowed, {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    try:
        with ExitStack() as stack:
            for i in range(N_IDLE):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=SOON_S))
                if i % 2:  # half of them in the middle of a head
                    connection.sendall(b"POST /completion HTTP/1.1\r\nHost:")
            assert server.post("/completion", **GREEDY).json["content"] == text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.post("/completion", **GREEDY).json["content"] == text


def test_as_many_connections_as_the_system_allows_may_be_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard - 1, 500), hard))
    try:
        with served() as (process, _):
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("most", [resource.RLIM_INFINITY, 1 << 20, 4096])
def test_as_many_files_are_allowed_as_the_system_takes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    taken = []

    def set_limit(what: int, limits: tuple[int, int]) -> None:
        if not 0 <= limits[0] <= 10240:  # as on macOS
            raise ValueError
        taken.append(limits)

    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, most))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    _allow_many_files()
    assert taken == [(4096 if most == 4096 else 10240, most)]


# --- an engine that fails ---


def test_an_rpc_server_that_is_gone_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, str]] = []
    errors = [RemoteError("gone"), RemoteError("gone"), RemoteError("gone"), BackendError("the end")]

    def fail() -> Model:
        raise errors.pop(0)

    async def wait_for_it() -> None:
        engine = ServedModel(fail, ServerSettings())
        engine.phase = "ready"
        engine._restart(RemoteError("gone"))
        assert engine._task
        await engine._task
        assert isinstance(engine.error, BackendError) and "the end" in str(engine.error)

    monkeypatch.setattr(served_module, "REMOTE_RETRY_S", 0)
    monkeypatch.setattr(served_module, "log", lambda event, level="info", **_: lines.append((event, level)))
    asyncio.run(wait_for_it())
    assert lines == [("engine failed", "error"), ("waiting for an RPC server", "warning")]


def test_an_engine_that_fails_is_started_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = threading.Event()
    decode = Session.decode

    def failing(self: Session, *arguments: Any, **options: Any) -> Any:
        if fails.is_set():
            raise BackendError("the device is lost")
        return decode(self, *arguments, **options)

    loads = threading.Semaphore(1)

    def slow_load() -> Model:
        with loads:
            return load()

    monkeypatch.setattr(Session, "decode", failing)

    def ask(statuses: list[int]) -> None:
        statuses.append(client.post("/completion", **ENDLESS).status)

    with running(slow_load, ServerSettings(params=GenerationParams(cache_prompt=True))) as client:
        text = client.post("/completion", **GREEDY).json["content"]
        for is_last in (False, True):
            statuses: list[int] = []
            loads.acquire()
            threads = [
                threading.Thread(target=ask, args=(statuses,))
                for _ in range(6)  # two run, four wait
            ]
            for thread in threads:
                thread.start()
            _await(lambda: len(client.app.state.served.answers) == 6)
            client.app.state.served.model._loop.call(lambda: None)  # the engine has taken all six
            fails.set()
            for thread in threads:
                thread.join(SOON_S)
            assert statuses == [500] * 6
            assert client.get("/health").status == 503
            assert client.post("/completion", **GREEDY).status == 503
            assert not client.app.state.served.answers
            fails.clear()
            loads.release()
            if is_last:
                break
            _await(lambda: client.get("/health").status == 200)
            assert client.app.state.served.error is None  # with which the process would end
            assert client.post("/completion", **GREEDY).json["content"] == text
        time.sleep(0.2)
        assert client.get("/health").status == 503
        assert "failed" in client.get("/health").json["error"]["message"]


def test_a_stream_whose_engine_fails_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = threading.Event()
    decode = Session.decode

    def failing(self: Session, *arguments: Any, **options: Any) -> Any:
        if fails.is_set():
            raise BackendError("the device is lost")
        return decode(self, *arguments, **options)

    monkeypatch.setattr(Session, "decode", failing)
    with running(load) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=SOON_S) as connection:
            body = raw("/completion", ENDLESS | {"stream": True})
            connection.sendall(body.replace(b"Host: x", b"Host: x\r\nConnection: close"))
            assert b"200 OK" in connection.recv(1000)
            fails.set()
            rest = read_all(connection).decode()
        assert '"error"' in rest and "the device is lost" in rest


def _await(condition: Any) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- files ---


def test_saved_slots_cannot_leave_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(b"[1]\nsecret")
    (folder / "link").symlink_to(secret)
    settings = ServerSettings(params=GenerationParams(cache_prompt=True), slot_save_path=folder)
    with running(load, settings) as client:
        client.post("/completion", id_slot=0, **GREEDY)
        names = [
            "../secret",
            "/etc/passwd",
            "..",
            ".",
            "",
            "a/b",
            "a\\..\\b",
            "a\0b",
            "~",
            "link",
            "é",
            "a" * 300,
        ]
        for name in names:
            for action in ("save", "restore"):
                response = client.post(f"/slots/0?action={action}", filename=name)
                assert response.status == 400, (name, action, response.data)
        for slot in ("-1", "2", "1e3", "%D9%A3", "0/../1", "9" * 5000):
            assert client.post(f"/slots/{slot}?action=erase").status in (400, 404), slot
    assert secret.read_bytes() == b"[1]\nsecret"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "secret", "slots"]


def test_a_slot_that_finds_no_room_on_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files that Python would cut, and read later
    settings = ServerSettings(params=GenerationParams(cache_prompt=True), slot_save_path=tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with running(load, settings) as client:
        client.post("/completion", id_slot=0, **GREEDY)
        assert client.post("/slots/0?action=save", filename="kept").status == 200
        kept = (tmp_path / "kept").read_bytes()
        client.post("/completion", id_slot=0, **GREEDY | {"n_predict": 60})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, limits[1]))
            reply = client.post("/slots/0?action=save", filename="kept")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert reply.status == 400 and "cannot write" in reply.json["error"]["message"]
        assert [path.name for path in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept").read_bytes() == kept
        assert client.post("/slots/0?action=restore", filename="kept").status == 200


@pytest.mark.parametrize("step_s", [-86400.0, 86400.0])
def test_a_clock_that_jumps_changes_no_answer(server: Client, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = server.post("/completion", **GREEDY, deadline_ms=60000).json
    clock, n_calls = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: clock() + step_s * next(n_calls))
    found = server.post("/completion", **GREEDY, deadline_ms=60000).json
    assert (found["content"], found["stop_type"]) == (expected["content"], expected["stop_type"])
    streamed = server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=4
    )
    assert streamed.status == 200 and streamed.events[-1]["choices"][0]["finish_reason"] == "length"
    assert server.get("/metrics").status in (200, 501) and server.get("/health").status == 200
