"""The HTTP server on the embedded model: its endpoints, and that its texts are those of the library."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import request_response

from http_server import Client, running
from machine import HAS_GPU, needs_exact_texts
from pymtp import GenerationParams, Model
from pymtp.acceptance.forced import Forced
from pymtp.placement.devices import host_free_bytes
from pymtp.server.respond import Stream
from pymtp.server.settings import ServerSettings
from random_gguf import write_glm4moe

pytestmark = pytest.mark.model

PROMPT = "Once upon a time"
N_CTX = 256
GREEDY = {"temperature": 0, "n_predict": 16}
MESSAGES = [{"role": "user", "content": "Hello"}]
SEARCH = {"type": "web_search"}
BROWSER = "http://page.example:3000"


def load() -> Model:
    """Sequences have streams of their own, and nothing is taken from the cache unless asked for: texts are exact."""
    return Model(n_ctx=N_CTX, n_seq_max=2, draft_max=2, n_threads=1, kv_unified=False)


@pytest.fixture(scope="module")
def text() -> str:
    """What the library generates."""
    with load() as model:
        return "".join(model.generate(PROMPT, temperature=0, max_tokens=16))


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with load() as model:
        defaults = model.defaults
    settings = ServerSettings(defaults, aliases=("nano",), has_metrics=True)
    with running(load, settings) as client:
        yield client


def test_health_props_and_models_describe_the_server(server: Client) -> None:
    assert server.get("/health").json == {"status": "ok"}
    props = server.get("/props").json
    assert props["total_slots"] == 2 and props["default_generation_settings"]["n_ctx"] == N_CTX
    assert props["model_path"].endswith(".gguf") and "im_start" in props["chat_template"]
    assert [each["id"] for each in server.get("/v1/models").json["data"]] == ["nano"]


def test_tokenize_and_detokenize_are_inverse(server: Client) -> None:
    tokens = server.post("/tokenize", content="Hello wörld").json["tokens"]
    assert server.post("/detokenize", tokens=tokens).json == {"content": "Hello wörld"}
    pieces = server.post("/tokenize", content="ö", with_pieces=True).json["tokens"]
    assert (
        b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        == "ö".encode()
    )


def test_special_tokens_are_text_if_they_are_not_to_be_parsed(server: Client) -> None:
    parsed = server.post("/tokenize", content="<|im_start|>").json["tokens"]
    literal = server.post("/tokenize", content="<|im_start|>", parse_special=False).json["tokens"]
    assert len(parsed) == 1 < len(literal)


@needs_exact_texts
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("draft_max", [0, 2])
def test_texts_are_those_of_the_library(server: Client, text: str, stream: bool, draft_max: int) -> None:
    response = server.post("/completion", prompt=PROMPT, stream=stream, draft_max=draft_max, **GREEDY)
    found = "".join(each["content"] for each in response.events) if stream else response.json["content"]
    assert found == text


def test_openai_completions_stream_the_same_text(server: Client, text: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}
    whole = server.post("/v1/completions", **body).json
    assert whole["choices"][0]["text"] == text and whole["object"] == "text_completion"
    events = server.post("/v1/completions", stream=True, **body).events
    assert "".join(each["choices"][0]["text"] for each in events) == text
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_chats_stream_the_same_text(server: Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    whole = server.post("/v1/chat/completions", **body).json
    content = whole["choices"][0]["message"]["content"]
    with load() as model:
        assert content == "".join(model.chat(MESSAGES, temperature=0, max_tokens=16))
    events = server.post("/v1/chat/completions", stream=True, stream_options={"include_usage": True}, **body).events
    deltas = [each["choices"][0]["delta"] for each in events if each["choices"]]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert events[-1]["usage"] == whole["usage"] | {
        "prompt_tokens_details": events[-1]["usage"]["prompt_tokens_details"]
    }


@needs_exact_texts
def test_draft_settings_are_of_a_request_and_are_reported(server: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "ignore_eos": True}
    drafted = server.post("/completion", draft_max=2, **body).json
    plain = server.post("/completion", draft_max=0, **body).json
    assert drafted["content"] == plain["content"]
    assert drafted["timings"]["draft_n"] >= drafted["timings"]["draft_n_accepted"] > 0
    assert drafted["drafting"]["draft_max"] == 2 and drafted["drafting"]["rounds"] < plain["drafting"]["rounds"]
    assert "draft_n" not in plain["timings"] and plain["drafting"]["draft_max"] == 0


def test_log_probabilities_are_those_of_the_library(server: Client) -> None:
    with load() as model:
        generation = model.generate(PROMPT, temperature=0, max_tokens=5, logprobs=3)
        "".join(generation)
    entries = server.post("/completion", prompt=PROMPT, temperature=0, n_predict=5, n_probs=3).json
    for entry, known in zip(entries["completion_probabilities"], generation.logprobs, strict=True):
        assert entry["id"] == known.token and entry["logprob"] == pytest.approx(known.logprob, abs=0.02)
        assert [top["id"] for top in entry["top_logprobs"]] == [token for token, _ in known.top]


def test_streamed_log_probabilities_belong_to_the_streamed_text(server: Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    events = server.post("/v1/chat/completions", stream=True, **body).events
    choices = [each["choices"][0] for each in events]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content", [])]
    assert "".join(entry["token"] for entry in entries) == content != ""


@needs_exact_texts
@pytest.mark.parametrize("draft_max", [0, 3])
def test_stop_strings_have_no_log_probabilities(server: Client, text: str, draft_max: int) -> None:
    whole = server.post("/completion", prompt=PROMPT, temperature=0, n_predict=16, n_probs=1).json
    pieces = [entry["token"] for entry in whole["completion_probabilities"]]
    for first in range(1, 12):
        for stop in ("".join(pieces[first : first + 2]), "".join(pieces[first : first + 3])[1:-1]):
            at = text.index(stop)
            expected = [piece for i, piece in enumerate(pieces) if len("".join(pieces[:i])) < at]
            asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16, "stop": stop, "draft_max": draft_max}
            reply = server.post("/v1/completions", **asked, logprobs=1).json["choices"][0]
            assert (reply["text"], reply["logprobs"]["tokens"]) == (text[:at], expected)
            entries = server.post("/completion", **asked, n_probs=1).json["completion_probabilities"]
            assert [entry["token"] for entry in entries] == expected
            events = server.post("/v1/completions", **asked, logprobs=1, stream=True).events
            shown = [event["choices"][0]["logprobs"] for event in events]
            assert [token for each in shown if each for token in each["tokens"]] == expected


def test_several_choices_and_several_prompts(server: Client, text: str) -> None:
    reply = server.post("/v1/completions", prompt=[PROMPT, PROMPT], n=2, max_tokens=16, temperature=0).json
    assert [choice["text"] for choice in reply["choices"]] == [text] * 4
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    events = server.post("/v1/completions", prompt=PROMPT, n=3, max_tokens=16, temperature=0, stream=True).events
    for i in range(3):
        assert "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) == text


def test_each_choice_has_a_seed_of_its_own(server: Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1.5, "seed": 7}
    texts = [choice["text"] for choice in server.post("/v1/completions", n=2, **body).json["choices"]]
    assert texts[0] != texts[1]


def test_a_stop_string_ends_the_text_and_is_named(server: Client, text: str) -> None:
    stop = text[5:9]
    reply = server.post("/completion", prompt=PROMPT, stop=["no such text", stop], **GREEDY).json
    assert reply["content"] == text[: text.index(stop)]
    assert reply["stop_type"] == "word" and reply["stopping_word"] == stop


def test_progress_of_a_prompt_begins_with_what_was_cached(server: Client) -> None:
    prompt = "one two three four five six seven eight nine ten " * 3
    for _ in range(2):
        events = server.post(
            "/completion", prompt=prompt, stream=True, return_progress=True, n_predict=2, cache_prompt=True
        ).events
    progress = [each["prompt_progress"] for each in events if "prompt_progress" in each]
    assert progress[0]["processed"] == progress[0]["cache"] > 0
    assert progress[-1]["processed"] == progress[-1]["total"]


def test_a_grammar_and_a_schema_constrain_the_text(server: Client) -> None:
    assert server.post("/completion", prompt=PROMPT, grammar='root ::= "yes" | "no"').json["content"] in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    for asked in ({"json_schema": {"schema": schema}}, {"schema": schema}):
        form = {"type": "json_schema", **asked}
        reply = server.post(
            "/v1/chat/completions", messages=MESSAGES, response_format=form, max_tokens=100, temperature=0
        ).json
        assert isinstance(json.loads(reply["choices"][0]["message"]["content"])["a"], bool)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/completion", {}, 400, "prompt"),
        ("/completion", {"prompt": ""}, 400, "empty"),
        ("/completion", {"prompt": [1, 10**6]}, 400, "below"),
        ("/completion", {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
        ("/completion", {"prompt": "a", "n_predict": -7}, 400, "max_tokens"),
        ("/completion", {"prompt": "a", "grammar": "root ::= ("}, 400, "grammar"),
        ("/completion", {"prompt": "a", "id_slot": 99}, 400, "id_slot"),
        ("/completion", {"prompt": "a", "lora": [{"id": 0, "scale": 1}]}, 400, "lora"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, 400, "without --mmproj"),
        ("/v1/completions", {"prompt": "a", "best_of": 3}, 400, "best_of"),
        ("/v1/completions", {"prompt": "a", "n": 0}, 400, "'n'"),
        ("/v1/chat/completions", {}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{}]}, 400, "role"),
        ("/v1/chat/completions", {"messages": 1.5}, 400, "Field 'messages': Expected `array"),
        ("/apply-template", {"messages": True}, 400, "Field 'messages': Expected `array"),
        ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 1}, 400, "logprobs"),
        ("/v1/chat/completions", {"messages": MESSAGES, "response_format": {"type": "sound"}}, 400, "sound"),
        ("/v1/chat/completions", {"messages": MESSAGES, "response_format": {"type": "json_schema"}}, 400, "a schema"),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"schema": {"const": "x"}}},
            400,
            "must be of the type",
        ),
        ("/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required"}, 400, "none of the tools"),
        ("/v1/messages", {"messages": MESSAGES, "tool_choice": {"type": "sound"}}, 400, "sound"),
        ("/completion", {"prompt": "a", "seed": 2**32}, 400, "seed"),
        ("/completion", {"prompt": "a", "seed": -2}, 400, "seed"),
        ("/completion", {"prompt": "a", "mirostat": 3}, 400, "mirostat"),
        ("/v1/chat/completions", {"messages": MESSAGES, "functions": [{"name": "a"}]}, 400, "tools"),
        ("/v1/chat/completions", {"messages": MESSAGES, "modalities": ["text", "audio"]}, 400, "modalities"),
        ("/v1/chat/completions", {"messages": MESSAGES, "web_search_options": {}}, 400, "web_search_options"),
        ("/v1/responses", {"input": "a", "text": {"format": {"type": "sound"}}}, 400, "sound"),
        ("/v1/responses", {"input": "a", "background": True}, 400, "background is not supported: an answer is made"),
        ("/v1/responses", {"input": "a", "prompt": {"id": "p"}}, 400, "write it out as input"),
        ("/v1/responses", {"input": "a", "conversation": "conv_1"}, 400, "conversation"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "file"}]}]}, 400, "'file'"),
        ("/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required", "tools": [SEARCH]}, 400, "function"),
        ("/v1/messages", {"messages": MESSAGES, "mcp_servers": [{"name": "a"}]}, 400, "mcp_servers"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, 400, "document"),
        ("/v1/embeddings", {"input": "a"}, 400, "embeddings"),
        ("/nowhere", {}, 404, "/nowhere"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    server: Client, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    response = server.post(path, **body)
    assert response.status == status
    error = response.json["error"]
    assert message in error["message"] and error["code"] == status and error["type"]


def test_a_body_that_is_not_json_is_refused(server: Client) -> None:
    assert server.send("POST", "/completion", b'{"prompt": ').status == 400
    assert server.send("POST", "/completion", b"\xff\xfe").status == 400
    assert server.send("POST", "/completion", b'{"prompt": "\\ud800"}').status == 400


def test_a_prompt_beyond_the_context_says_how_long_it_is(server: Client) -> None:
    error = server.post("/v1/completions", prompt=[1] * 300).json["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, N_CTX)


def test_a_zero_character_in_a_prompt_is_text(server: Client) -> None:
    assert server.post("/completion", prompt="a\0b", n_predict=1).status == 200


@needs_exact_texts
def test_a_failing_request_leaves_others_alone(server: Client, text: str) -> None:
    replies: list[str] = []

    def ask() -> None:
        replies.append(server.post("/completion", prompt=PROMPT, **GREEDY).json["content"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert server.post("/completion", prompt=PROMPT, grammar="root ::= (").status == 400
    for thread in threads:
        thread.join()
    assert replies == [text] * 4


def test_a_short_request_does_not_wait_for_a_long_prompt() -> None:
    with running(lambda: Model(n_ctx=2048, n_seq_max=2, n_threads=1, n_ubatch=32)) as client:
        ended: list[str] = []

        def ask(name: str, prompt: str) -> None:
            assert client.post("/completion", prompt=prompt, n_predict=1).status == 200
            ended.append(name)

        long = threading.Thread(target=ask, args=("long", "sea " * 400))
        long.start()
        while not any(slot["is_processing"] for slot in client.get("/slots").json):
            time.sleep(0.001)
        ask("short", "The sea is")
        long.join()
        assert ended == ["short", "long"]


def test_a_client_that_leaves_frees_its_slot(server: Client) -> None:
    engine = server.app.state.served
    body = json.dumps({"prompt": PROMPT, "n_predict": -1, "ignore_eos": True, "stream": True}).encode()
    for ends in ("stream", "before"):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            if ends == "stream":
                assert connection.recv(1000)
        end = time.monotonic() + 20
        while engine.answers:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_client_that_leaves_the_queue_does_not_get_a_slot() -> None:
    """Streamed or not: `endless` keeps the only slot all the time."""
    body = {"prompt": PROMPT, "n_predict": -1, "ignore_eos": True, "stream": True}
    with running(lambda: Model(n_ctx=4096, n_seq_max=1, n_threads=1), ServerSettings()) as client:
        engine = client.app.state.served

        def ask(**more: Any) -> socket.socket:
            data, n_before = json.dumps(body | more).encode(), len(engine.answers)
            connection = socket.create_connection(("127.0.0.1", client.port))
            connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            while len(engine.answers) == n_before:
                time.sleep(0.001)
            return connection

        with ask() as endless:
            (running_one,) = engine.answers
            assert endless.recv(1000)
            for stream in (True, False):
                ask(stream=stream).close()
                while len(engine.answers) > 1:
                    time.sleep(0.001)
            assert engine.answers == {running_one} and not running_one.generation.is_over


def test_the_name_of_a_request_comes_back(server: Client) -> None:
    assert server.get("/health").headers["x-request-id"].startswith("req-")
    assert server.send("GET", "/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert server.send("GET", "/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"


def test_a_key_is_needed_where_there_are_some() -> None:
    with running(load, ServerSettings(api_keys=("one", "two"))) as client:
        body = {"prompt": PROMPT, "max_tokens": 1}
        assert client.get("/health").status == 200
        for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Bearer o"}, {"X-Api-Key": ""}):
            response = client.send("POST", "/v1/completions", body, headers)
            assert response.status == 401 and response.json["error"]["type"] == "authentication_error"
        for headers in ({"Authorization": "Bearer one"}, {"X-Api-Key": "two"}):
            assert client.send("POST", "/v1/completions", body, headers).status == 200


def test_a_key_may_have_any_characters() -> None:
    settings = ServerSettings(api_keys=("schl\u00fcssel", "\u9375", os.fsdecode(b"\xff")))
    with running(load, settings) as client:
        for key in settings.api_keys:
            given = os.fsencode(key).decode("latin-1")  # http.client sends these bytes
            assert client.get("/v1/models", Authorization=f"Bearer {given}").status == 200
            assert client.get("/v1/models", Authorization=f"Bearer {given}x").status == 401


def test_more_requests_than_may_wait_are_told_when_to_come_back() -> None:
    settings = ServerSettings(params=GenerationParams(max_tokens=150, ignore_eos=True), n_queue_max=1)
    with running(load, settings) as client:
        statuses: list[tuple[int, str | None]] = []

        def ask() -> None:
            response = client.post("/completion", prompt=PROMPT)
            statuses.append((response.status, response.headers.get("retry-after")))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [retry for status, retry in statuses if status == 429]
        assert sum(status == 200 for status, _ in statuses) >= 3
        assert refused and all(retry is not None and int(retry) >= 1 for retry in refused)


def test_bodies_have_a_limit() -> None:
    with running(load, ServerSettings(body_bytes_max=1000, timeout_s=0.5)) as client:
        assert client.send("POST", "/tokenize", {"content": "a" * 2000}).status == 413
        assert client.send("POST", "/tokenize", {"content": "a" * 500}).status == 200
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in connection.recv(1000)


@pytest.mark.parametrize(
    ("allowed", "origin", "answer"),
    [
        ("*", "http://a.example", "http://a.example"),
        ("localhost", "http://localhost:3000", "http://localhost:3000"),
        ("localhost", "http://localhost.evil.example", None),
        ("https://a.example", "https://b.example", "https://a.example"),
        ("https://a.example, https://b.example", "https://b.example", "https://b.example"),
        ("https://a.example,https://b.example", "https://c.example", None),
    ],
)
def test_origins_are_allowed_as_set(allowed: str, origin: str, answer: str | None) -> None:
    with running(load, ServerSettings(cors_origins=allowed)) as client:
        headers = client.send("OPTIONS", "/v1/models", headers={"Origin": origin}).headers
        assert headers.get("access-control-allow-origin") == answer
        assert (
            client.send("GET", "/v1/models", headers={"Origin": origin}).headers.get("access-control-allow-origin")
            == answer
        )


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("POST", "/completion", 400),
        ("GET", "/v1/models", 401),
        ("GET", "/v1/models/other", 404),
        ("POST", "/nowhere", 404),
        ("GET", "/completion", 405),
        ("POST", "/tokenize", 413),
        ("POST", "/slots/0?action=save", 501),
    ],
)
def test_pages_of_others_may_read_every_answer(keyed: Client, method: str, path: str, status: int) -> None:
    headers = {"Origin": BROWSER} | ({} if status == 401 else {"Authorization": "Bearer secret"})
    body = b'{"content": "' + b"a" * 2000 + b'"}' if status == 413 else b"{}"
    reply = keyed.send(method, path, body if method == "POST" else None, headers)
    assert reply.status == status
    assert reply.headers["access-control-allow-origin"] == BROWSER
    assert reply.headers["access-control-allow-credentials"] == "true"
    assert "X-Request-Id" in reply.headers["access-control-expose-headers"]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Client]:
    with running(load, ServerSettings(api_keys=("secret",), body_bytes_max=1000)) as client:
        yield client


def test_a_page_with_credentials_may_send_the_headers_that_it_asks_for(server: Client) -> None:
    """With credentials `*` stands for itself, and never for Authorization (https://fetch.spec.whatwg.org)."""
    asked = {"Origin": BROWSER, "Access-Control-Request-Headers": "authorization,content-type"}
    headers = server.send("OPTIONS", "/v1/chat/completions", headers=asked).headers
    assert headers["access-control-allow-credentials"] == "true"
    assert headers["access-control-allow-headers"] == "authorization,content-type"


def test_names_of_headers_are_written_as_llama_server_does(server: Client) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: http://a.example\r\nConnection: close\r\n\r\n")
        data = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"\r\nAccess-Control-Allow-Origin: http://a.example\r\n" in data
    assert b"\r\nX-Request-Id: " in data and b"\r\nContent-Type: application/json\r\n" in data


def test_models_are_found_by_name_though_their_file_is_gone(embedded_model: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(embedded_model.read_bytes())
    size = moved.stat().st_size
    with running(lambda: Model(moved, n_ctx=64), ServerSettings(aliases=("b/nano", "a"))) as client:
        moved.unlink()
        listed = client.get("/v1/models").json
        for name in ("a", "b/nano", "moved.gguf"):
            assert client.get(f"/v1/models/{name}").json == listed["data"][0]
        missing = client.get("/v1/models/gpt")
        of_anthropic = client.get("/v1/models/gpt", **{"anthropic-version": "2023-06-01"})
    assert listed["data"][0]["meta"]["size"] == size
    assert (missing.status, missing.json["error"]["type"]) == (404, "not_found_error")
    assert (of_anthropic.status, of_anthropic.json["type"]) == (404, "error")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode there")
def test_a_model_whose_name_is_not_utf_8_answers(embedded_model: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.gguf")
    path.symlink_to(embedded_model)
    name = "a\ufffd.gguf"
    with running(lambda: Model(path, n_ctx=64)) as client:
        assert client.get("/v1/models").json["data"][0]["id"] == name
        assert client.get(f"/v1/models/{quote(name)}").status == 200
        assert client.get("/props").json["model_path"].endswith(name)
        assert client.post("/completion", prompt=PROMPT, n_predict=1).json["model"] == name
        body = {"messages": MESSAGES, "max_tokens": 1, "stream": True}
        assert client.post("/v1/chat/completions", **body).events[0]["model"] == name


def test_what_was_turned_off_is_not_asked_for_again(server: Client) -> None:
    reply = server.post("/slots/0?action=save", filename="a")
    assert (reply.status, reply.headers["x-should-retry"]) == (501, "false")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [SEARCH]}),
        ("/v1/responses", {"input": "Hello", "tools": [SEARCH, {"type": "custom", "name": "patch"}]}),
        ("/v1/messages", {"messages": MESSAGES, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ],
)
def test_tools_that_are_no_functions_have_no_effect_and_are_named(
    server: Client, path: str, body: dict[str, Any]
) -> None:
    limit = {"max_output_tokens" if "input" in body else "max_tokens": 4, "temperature": 0}
    without = server.post(path, **{key: value for key, value in body.items() if key != "tools"}, **limit)
    reply = server.post(path, **body, **limit)
    assert reply.status == 200 and "web_search" in reply.headers["x-pymtp-ignored"]
    assert answer_text(reply.json) == answer_text(without.json) and "x-pymtp-ignored" not in without.headers


def answer_text(reply: dict[str, Any]) -> str:
    if "choices" in reply:
        return str(reply["choices"][0]["message"]["content"])
    return str((reply.get("output") or [reply])[0]["content"][0]["text"])


def test_unknown_samplers_are_passed_over_and_named(server: Client) -> None:
    body = {"prompt": PROMPT, "n_predict": 4, "temperature": 0}
    for samplers in (["top_k", "tfs_z", "temperature"], "kzt"):
        reply = server.post("/completion", samplers=samplers, **body)
        assert reply.json["generation_settings"]["samplers"] == ["top_k", "temperature"]
        assert "z" in reply.headers["x-pymtp-ignored"]


def test_no_other_tokens_are_not_no_probabilities(server: Client) -> None:
    """0 of the other tokens: those of the text alone, as OpenAI has it."""
    chat: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 3, "temperature": 0}
    entries = server.post("/v1/chat/completions", logprobs=True, top_logprobs=0, **chat).json["choices"][0]["logprobs"]
    assert len(entries["content"]) == 3 and all(not each["top_logprobs"] for each in entries["content"])
    reply = server.post("/v1/chat/completions", logprobs=False, top_logprobs=0, **chat)
    assert reply.status == 200 and "logprobs" not in reply.json["choices"][0]
    shown = server.post("/v1/completions", prompt=PROMPT, max_tokens=3, logprobs=0).json["choices"][0]["logprobs"]
    assert len(shown["token_logprobs"]) == 3 and shown["top_logprobs"] == [{}, {}, {}]
    assert "completion_probabilities" not in server.post("/completion", prompt=PROMPT, n_predict=3, n_probs=0).json


def test_responses_have_probabilities_where_they_are_included(server: Client) -> None:
    body: dict[str, Any] = {"input": "Hello", "max_output_tokens": 3, "temperature": 0, "top_logprobs": 2}
    for include, n in ((None, 0), (["message.output_text.logprobs"], 3)):
        shown = server.post("/v1/responses", include=include, **body).json["output"][0]["content"][0]["logprobs"]
        assert len(shown) == n and all(len(each["top_logprobs"]) == 2 for each in shown)
        events = server.post("/v1/responses", stream=True, include=include, **body).events
        assert [each["logprobs"] for each in events if each["type"] == "response.output_text.done"] == [shown]


def test_a_model_without_a_template_chats_in_chatml(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    write_glm4moe(path)
    with running(lambda: Model(path, n_ctx=128)) as client:
        reply = client.post("/apply-template", messages=MESSAGES)
    assert reply.json["prompt"] == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


def test_responses_stream_what_they_return(server: Client) -> None:
    body = {"input": "Hello", "instructions": "You are brief.", "max_output_tokens": 12, "temperature": 0}
    whole = server.post("/v1/responses", **body).json
    assert whole["id"].startswith("resp_") and whole["object"] == "response"
    text = whole["output"][0]["content"][0]["text"]
    events = server.post("/v1/responses", stream=True, **body).events
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    deltas = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text != ""
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert events[-1]["response"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"tool_choice": "none", "parallel_tool_calls": False},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}},
    ],
)
def test_a_response_repeats_what_it_was_asked_about_tools(server: Client, asked: dict[str, Any]) -> None:
    function = {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}}
    tools = [function, {"type": "custom", "name": "patch"}] if asked else []
    body = {"input": "Hello", "max_output_tokens": 4, "temperature": 0, "tools": tools, **asked}
    events = server.post("/v1/responses", stream=True, **body).events
    begun = [each["response"] for each in events if each["type"] in ("response.created", "response.in_progress")]
    for response in (server.post("/v1/responses", **body).json, events[-1]["response"], *begun):
        assert response["tools"] == tools and response["tool_choice"] == asked.get("tool_choice", "auto")
        assert response["parallel_tool_calls"] == asked.get("parallel_tool_calls", True)
    assert len(begun) == 2


def test_messages_stream_what_they_return(server: Client) -> None:
    body = {"messages": MESSAGES, "system": "You are brief.", "max_tokens": 12, "temperature": 0}
    whole = server.post("/v1/messages", **body).json
    text = whole["content"][0]["text"]
    assert whole["type"] == "message" and whole["usage"]["output_tokens"] <= 12
    events = server.post("/v1/messages", stream=True, **body).events
    kinds = [each["type"] for each in events]
    assert (kinds[0], kinds[1], kinds[-2], kinds[-1]) == (
        *("message_start", "content_block_start"),
        *("message_delta", "message_stop"),
    )
    deltas = [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(deltas) == text != ""
    tokens = server.post("/v1/messages/count_tokens", **body).json["input_tokens"]
    assert tokens == whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]


def test_stamps_of_claude_code_leave_the_prompt_in_the_cache(server: Client) -> None:
    prompts = set()
    for stamp in ("a5145", "0b7e2"):
        head = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={stamp};"}
        rest = {"type": "text", "text": "You write cch=12345; often."}
        for system in ([head, rest], head["text"] + rest["text"]):
            reply = server.post("/v1/messages", messages=MESSAGES, system=system, max_tokens=1, verbose=True)
            prompts.add(reply.json["__verbose"]["prompt"])
    assert len(prompts) == 1 and "cch=12345; often" in prompts.pop()


def test_errors_of_messages_have_the_form_of_that_api(server: Client) -> None:
    response = server.post("/v1/messages", max_tokens=1)
    assert response.status == 400
    assert response.json["type"] == "error" and response.json["error"]["type"] == "invalid_request_error"


def test_metrics_count_what_was_done(server: Client) -> None:
    def read() -> dict[str, float]:
        lines = server.get("/metrics").data.decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    before = read()
    timings = server.post("/completion", prompt=PROMPT, draft_max=2, **GREEDY).json["timings"]
    after = read()
    for name, n in (
        ("prompt_tokens_total", timings["prompt_n"]),
        ("tokens_predicted_total", timings["predicted_n"]),
        ("spec_decode_num_draft_tokens_total", timings["draft_n"]),
        ("spec_decode_num_accepted_tokens_total", timings["draft_n_accepted"]),
    ):
        assert after[f"llamacpp:{name}"] - before.get(f"llamacpp:{name}", 0) == n, name
    for name, n in (
        ("time_to_first_token_seconds_count", 1),
        ("inter_token_seconds_count", timings["predicted_n"] - 1),
        ('answers_total{reason="length"}', 1),
    ):
        assert after[f"pymtp:{name}"] - before.get(f"pymtp:{name}", 0) == n, name
    spent_s = after["pymtp:inter_token_seconds_sum"] - before.get("pymtp:inter_token_seconds_sum", 0)
    assert spent_s > timings["predicted_ms"] / 2000  # although all of the tokens were taken together
    lengths = {name: n - before.get(name, 0) for name, n in after.items() if name.startswith("pymtp:rounds_total")}
    assert sum(n * int(name.partition('"')[2].rstrip('"}')) for name, n in lengths.items()) == timings["draft_n"] > 0
    n_drafts = sum(n for name, n in lengths.items() if 'drafts="0"' not in name)
    name = "llamacpp:spec_decode_num_drafts_total"
    assert after[name] - before[name] == n_drafts and read()[name] == after[name]
    assert after["llamacpp:requests_processing"] == after["llamacpp:requests_deferred"] == 0
    assert 0 <= after["llamacpp:kv_cache_usage_ratio"] <= 1


def test_slots_show_what_runs_in_them(server: Client) -> None:
    body = json.dumps({"prompt": PROMPT, "n_predict": 200, "ignore_eos": True, "stream": True, "id_slot": 1}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert connection.recv(1000)
        slots = server.get("/slots").json
    assert [slot["is_processing"] for slot in slots] == [False, True]
    assert slots[1]["n_ctx"] == N_CTX and slots[1]["next_token"][0]["n_decoded"] >= 1


def test_slots_are_saved_restored_and_erased_within_their_folder(tmp_path: Path) -> None:
    settings = ServerSettings(params=GenerationParams(cache_prompt=True), slot_save_path=tmp_path, cache_bytes=0)
    body = {"prompt": PROMPT, **GREEDY}
    with running(load, settings) as client:
        first = client.post("/completion", id_slot=1, **body).json
        saved = client.post("/slots/1?action=save", filename="one.bin").json
        assert saved["n_saved"] == len(first["prompt"].split()) + 15 or saved["n_saved"] > 15
        assert saved["n_written"] == (tmp_path / "one.bin").stat().st_size
        restored = client.post("/slots/0?action=restore", filename="one.bin").json
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again, kept = (client.post("/completion", id_slot=slot, **body).json for slot in (0, 1))
        assert again["timings"]["prompt_n"] == kept["timings"]["prompt_n"] == 1
        assert again["content"] == kept["content"]
        assert again["content"] == first["content"] or HAS_GPU  # which computes a row alone with another kernel
        assert client.post("/slots/0?action=erase").json["n_erased"] > 15
        assert client.post("/completion", id_slot=0, **body).json["timings"]["cache_n"] == 0
        for name in ("../one.bin", "/etc/passwd", "a/b", "", ".hidden", "a\0b"):
            for action in ("save", "restore"):
                assert client.post(f"/slots/0?action={action}", filename=name).status == 400, name
        good = (tmp_path / "one.bin").read_bytes()
        for bad in (b"[1,2]\nnothing", good.replace(b",", b",7,", 1), good.replace(b"[", b"[1", 1), good[:-1]):
            (tmp_path / "bad.bin").write_bytes(bad)
            assert client.post("/slots/0?action=restore", filename="bad.bin").status == 400
        assert client.post("/slots/7?action=erase").status == 400
        assert client.post("/slots/0?action=jump").status == 400
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("one.bin", "bad.bin")] == []


def test_an_answer_that_continues_a_message_begins_where_it_ends(server: Client) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "The answer is"}]
    assert server.post("/apply-template", messages=begun).json["prompt"].endswith("The answer is")
    twice = [*begun, {"role": "assistant", "content": "again"}]
    assert server.post("/apply-template", messages=twice).status == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_what_an_answer_continues_is_no_part_of_it(server: Client, path: str) -> None:
    given = [*MESSAGES, {"role": "assistant", "content": "The answer is"}]
    body = {"input" if "responses" in path else "messages": given, "temperature": 0, "stop": ["\n"]}
    body["max_output_tokens" if "responses" in path else "max_tokens"] = 8
    whole = server.post(path, **body).json
    events = server.post(path, **body, stream=True).events
    if path == "/v1/messages":
        text = whole["content"][0]["text"]
        pieces = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    elif path == "/v1/responses":
        text = whole["output"][0]["content"][0]["text"]
        pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    else:
        text = whole["choices"][0]["message"]["content"]
        pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert text == "".join(pieces) and text and not text.startswith("The answer is")


def test_chunks_say_which_parts_were_drafted(server: Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, "draft_max": 2, "ignore_eos": True}
    events = server.post("/v1/chat/completions", stream=True, return_drafts=True, **body).events
    parts = [part for each in events for part in each.get("drafts", [])]
    content = "".join(each["choices"][0]["delta"].get("content") or "" for each in events)
    assert "".join(text for text, _ in parts) == content
    assert {drafted for _, drafted in parts} == {True, False}


def test_the_page_needs_nothing_from_elsewhere_and_no_key() -> None:
    with running(load, ServerSettings(api_keys=("one",))) as client:
        page = client.get("/")
        assert page.status == 200 and page.data.startswith(b"<!doctype html>")
        assert "default-src 'none'; script-src 'self'" in page.headers["content-security-policy"]
        for name in ("page.css", "page.js", "favicon.svg"):
            assert name.encode() in page.data and client.get(f"/{name}").status == 200
        assert client.get("/page.js").headers["content-type"].startswith("text/javascript")
        assert set(re.findall(rb'(?:src|href)="([^"]*)"', page.data)) == {b"page.css", b"page.js", b"favicon.svg"}
        assert client.get("/props").status == 401
    with running(load, ServerSettings(has_page=False)) as client:
        assert client.get("/").status == 404


def test_tools_are_offered_and_a_tool_that_is_not_among_them_is_refused(server: Client) -> None:
    function = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
    body = {"messages": MESSAGES, "tools": [{"type": "function", "function": function}], "max_tokens": 8}
    assert server.post("/v1/chat/completions", **body).status == 200
    other = {"type": "function", "function": {"name": "other"}}
    assert server.post("/v1/chat/completions", tool_choice=other, **body).status == 400
    assert server.post("/v1/chat/completions", grammar='root ::= "a"', **body).status == 400
    # the embedded model's template knows no tools
    refused = server.post("/v1/chat/completions", tool_choice="required", **body)
    assert refused.status == 400 and "knows no tools" in refused.json["error"]["message"]
    form = {"type": "json_object"}  # an answer that has to be a call has no such content
    assert server.post("/v1/chat/completions", tool_choice="required", response_format=form, **body).status == 400


def test_a_request_may_leave_lookup_alone(server: Client) -> None:
    asked = {"prompt": "one two three four " * 8, "n_predict": 8, "temperature": 0}
    found = server.post("/completion", draft_lookup="off", **asked).json
    assert found["drafting"]["draft_lookup"] == "off"
    assert found["content"] == server.post("/completion", **asked).json["content"]


@needs_exact_texts
def test_texts_are_shared_between_requests_with_the_same_key_only() -> None:
    def load_sharing() -> Model:
        return Model(draft="lookup", draft_max=8, draft_lookup="shared", n_ctx=512, n_threads=1)

    with running(load_sharing, ServerSettings(api_keys=("one", "two"), has_metrics=True)) as client:

        def ask(key: str, **options: Any) -> tuple[str, int]:
            body = {"prompt": PROMPT, "n_predict": 40, "temperature": 0, "ignore_eos": True, **options}
            found = client.send("POST", "/completion", body, {"Authorization": f"Bearer {key}"}).json
            return found["content"], found["timings"]["draft_n_accepted"]

        text, n_alone = ask("one")
        assert ask("two") == ask("one", draft_lookup="self") == (text, n_alone)
        found, n_shared = ask("one", draft_lookup="shared")
        assert found == text
        assert n_shared > n_alone + 10
        lines = client.get("/metrics", Authorization="Bearer one").data.decode().splitlines()
        assert any(line.startswith("pymtp:lookup_bytes ") and int(line.split()[1]) > 0 for line in lines)


def test_forced_acceptance_is_drawn_for_each_request(text: str) -> None:
    with load() as model:
        defaults = model.defaults

    def drafts(rates: list[float], **asked: Any) -> tuple[int, int, str]:
        params = replace(defaults, forced=Forced(rates))
        with running(load, ServerSettings(params=params)) as client:
            body = {"prompt": PROMPT, "temperature": 0, "n_predict": 16, **asked}
            replies = [client.post("/completion", **body).json for _ in range(2)]
        found = [(one["timings"]["draft_n"], one["timings"]["draft_n_accepted"], one["content"]) for one in replies]
        assert found[0] == found[1] and found[0][0] > 0
        return found[0]

    assert drafts([0.0, 0.0])[1:] == (0, text)
    n_drafts, n_accepted, _ = drafts([1.0, 1.0])
    assert n_drafts == n_accepted
    assert 0 < drafts([0.5, 0.5], seed=3)[1] < n_drafts
    assert set(drafts([1.0, 1.0], grammar='root ::= "a"+')[2]) == {"a"}


@pytest.mark.parametrize("shares", [False, True])
def test_prompts_are_reused_across_keys_only_if_that_is_asked_for(tmp_path: Path, shares: bool) -> None:
    settings = ServerSettings(
        GenerationParams(cache_prompt=True), api_keys=("one", "two"), shares_cache=shares, slot_save_path=tmp_path
    )

    def load_two() -> Model:
        return Model(n_ctx=256, n_threads=1, n_seq_max=1, draft="none")

    with running(load_two, settings) as client:

        def send(path: str, key: str, **body: Any) -> Any:
            found = client.send("POST", path, body, {"Authorization": f"Bearer {key}"})
            assert found.status == 200
            return found.json

        def n_reused(key: str, prompt: str) -> int:
            asked = {"prompt": prompt, "n_predict": 1, "temperature": 0}
            return int(send("/completion", key, **asked)["timings"]["cache_n"])

        secret = "the password of the house by the sea is a number of nine digits"
        assert n_reused("one", secret) == 0
        first = n_reused("two", secret)
        assert (first > 5) is shares
        assert n_reused("two", secret) > 5
        # what was there before is in host memory now, and still of its own key
        assert n_reused("two", "another text, so that the slot is needed for something else altogether") < 3
        assert n_reused("one", secret) > 5
        # what a slot holds is saved by whom it belongs to
        n_saved = send("/slots/0?action=save", "two", filename="taken")["n_saved"]
        assert (n_saved > 5) is shares
        # a slot that is restored is the key's who restores it
        send("/slots/0?action=save", "one", filename="kept")
        send("/slots/0?action=restore", "two", filename="kept")
        assert n_reused("two", secret) > 5


def test_a_stream_takes_headers_as_any_response_does() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: first\n\n"
        yield b"data: second\n\n"

    async def stream(request: Request) -> Response:
        response = Stream(events(), ping_s=0)
        response.headers["x-own"] = "kept"
        return response

    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(request_response(stream)(scope, receive, send))
    start, *body = sent
    assert start["status"] == 200
    assert dict(start["headers"]) == {
        b"content-type": b"text/event-stream",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
        b"x-own": b"kept",
    }
    assert b"".join(each["body"] for each in body) == b"data: first\n\ndata: second\n\n"


def test_all_paths_begin_with_the_prefix() -> None:
    settings = ServerSettings(api_prefix="/llm", api_keys=("k",))
    with running(lambda: Model(n_ctx=64, n_threads=1), settings) as client:
        key = {"Authorization": "Bearer k"}
        assert client.send("GET", "/llm/v1/models", headers=key).status == 200
        assert client.get("/llm/v1/models").status == 401
        assert (
            client.get("/llm/health").status == client.get("/llm/").status == client.get("/llm/page.js").status == 200
        )
        assert [client.get(path).status for path in ("/", "/health", "/v1/models", "/llm", "/llmx/health")] == [404] * 5
        assert client.send("POST", "/llm/tokenize/", {"content": ""}, key).json == {"tokens": []}
        assert client.get("/llm/v1/models/").status == 401


def test_kept_prompts_leave_half_of_the_memory() -> None:
    with running(lambda: Model(n_ctx=64, n_threads=1), ServerSettings(cache_bytes=1 << 60)) as client:
        cache = client.app.state.served.model._scheduler.admission.slots.cache
        assert 0 < cache.n_bytes_max < 0.8 * host_free_bytes()
