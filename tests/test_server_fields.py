"""Fields of requests that other tests do not look at: each changes the answer as it says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from http_server import Client, running
from llama_archive import texts
from pymtp import GenerationParams, Model
from pymtp.server import access, respond
from pymtp.server.responses import ResponsesReply
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

MESSAGES = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ greeting }}{% if word is defined %}{{ word }}{% endif %}"
    "{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    settings = ServerSettings(template_kwargs={"greeting": "welcome"})
    with running(lambda: Model(n_ctx=512, n_seq_max=2, n_threads=1, chat_template=TEMPLATE), settings) as client:
        yield client


@pytest.fixture(scope="module")
def endless() -> Iterator[Client]:
    """Of one slot, in which a text only ends at the deadline."""
    settings = ServerSettings(deadline_s=1)
    with running(lambda: Model(n_ctx=2048, n_seq_max=1, n_threads=1), settings) as client:
        yield client


def content(client: Client, **body: Any) -> str:
    reply = client.post("/completion", **{"prompt": "One, two,", "temperature": 0, "n_predict": 8} | body)
    assert reply.status == 200, reply.data
    return str(reply.json["content"])


def test_any_json_object_will_do(server: Client) -> None:
    reply = server.post(
        "/v1/chat/completions",
        messages=MESSAGES,
        max_tokens=80,
        temperature=0,
        logit_bias={"}": 20},
        response_format={"type": "json_object"},
    )
    text = reply.json["choices"][0]["message"]["content"]
    assert text.strip().startswith("{")
    if reply.json["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_bias_bans_and_forces_tokens(server: Client) -> None:
    first = server.post("/completion", prompt="One, two,", temperature=0, n_predict=1, return_tokens=True).json
    token = first["tokens"][0]
    assert content(server, n_predict=1, logit_bias=[[token, False]]) != first["content"]
    assert content(server, n_predict=3, logit_bias={str(token): 1000}) == 3 * first["content"]
    too_long = str(token + 1).zfill(20) + "0"
    assert content(server, n_predict=1, logit_bias={too_long: 1000}) == first["content"]


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1, "seed": 1}, {"mirostat": 2}])
def test_a_text_ends_where_nothing_is_allowed(server: Client, options: dict[str, Any]) -> None:
    """All tokens are banned, or those that may follow in the grammar."""
    vocabulary = server.app.state.served.model.vocabulary
    everything = [[token, False] for token in range(vocabulary.size)]
    ends = [[token, False] for token in vocabulary.end_of_generation]
    for body, text in (
        ({"logit_bias": everything}, ""),
        ({"grammar": 'root ::= "One" [^a-z]', "logit_bias": everything}, ""),
        ({"grammar": 'root ::= "One two three four"', "logit_bias": ends}, "One two three four"),
    )[: 1 if "mirostat" in options else 3]:  # which has no grammars
        reply = server.post("/completion", prompt="Say:", n_predict=40, **options | body)
        assert (reply.status, reply.json["content"], reply.json["stop_type"]) == (200, text, "blocked")
        for stream in (False, True):
            reply = server.post("/v1/completions", prompt="Say:", max_tokens=40, stream=stream, **options | body)
            end = reply.events[-1] if stream else reply.json
            found = reply.status, end["choices"][0]["finish_reason"], end["stop_type"]
            assert found == (200, "length", "blocked")


@pytest.mark.parametrize(
    ("path", "asked", "cut"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, '"finish_reason":"length"'),
        ("/v1/messages", {"messages": MESSAGES}, '"stop_reason":"max_tokens"'),
        ("/v1/responses", {"input": "Hello"}, '"incomplete_details":{"reason":"max_output_tokens"}'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_chats_and_their_kin_say_that_nothing_was_allowed(
    server: Client, path: str, asked: dict[str, Any], cut: str, stream: bool
) -> None:
    n_vocab = server.app.state.served.model.vocabulary.size
    reply = server.post(path, **asked, stream=stream, logit_bias=[[token, False] for token in range(n_vocab)])
    text = reply.data.decode().replace('": ', '":')
    assert reply.status == 200 and cut in text and '"stop_type":"blocked"' in text


def test_a_request_without_stop_strings_has_those_of_the_server() -> None:
    settings = ServerSettings(params=GenerationParams(stop=("ree",)))
    with running(lambda: Model(n_ctx=256, n_threads=1), settings) as server:
        body = {"prompt": "Count.", "grammar": 'root ::= "one two three four"'}
        ends = {"ree": (None, [], "", [""]), "wo": ("wo", ["", "wo"])}
        for word, given in ends.items():
            for stop in given:
                assert server.post("/completion", **body, stop=stop).json["stopping_word"] == word
        chat = {"messages": MESSAGES, "grammar": body["grammar"]}
        assert server.post("/v1/messages", **chat, stop_sequences=[]).json["content"][0]["text"] == "one two th"


def test_the_servers_shortest_draft_is_no_longer_than_a_requests_longest() -> None:
    settings = ServerSettings(params=GenerationParams(draft_min=3))
    with running(lambda: Model(n_ctx=256, n_threads=1, draft_max=4), settings) as server:
        for longest, shortest in ((None, 3), (2, 2), (0, 0), ("auto", 3)):
            reply = server.post("/completion", prompt="Count.", n_predict=1, draft_max=longest).json
            assert reply["drafting"]["draft_min"] == shortest


def test_a_turn_that_the_template_ends_has_no_stop_sequence() -> None:
    template = texts("models/templates", ".jinja")["poolside-Laguna-XS.2.jinja"]  # its answers end at </assistant>
    body = {"messages": MESSAGES, "grammar": 'root ::= "one two</assistant>"', "reasoning_effort": "none"}
    with running(lambda: Model(n_ctx=256, n_threads=1, chat_template=template), ServerSettings()) as server:
        for given, reason, sequence in (([], "end_turn", None), (["two"], "stop_sequence", "two")):
            reply = server.post("/v1/messages", **body, stop_sequences=given).json
            assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)
            assert reply["content"][0]["text"] == ("one " if given else "one two")


def test_the_template_of_the_server_is_shown(server: Client) -> None:
    assert server.get("/props").json["chat_template"] == TEMPLATE


def test_time_to_generate_ends_with_a_line(server: Client) -> None:
    body = {"prompt": "a\n" * 60, "temperature": 0, "n_predict": 400, "grammar": 'root ::= "a\\n"+'}
    reply = server.post("/completion", **body, t_max_predict_ms=1).json
    assert reply["stop_type"] == "limit" and reply["tokens_predicted"] < 400 and "\n" in reply["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_cut_at_its_deadline_and_leaves_its_slot(endless: Client, stream: bool) -> None:
    began = time.monotonic()
    reply = endless.post("/completion", prompt="Once", ignore_eos=True, stream=stream, deadline_ms=500)
    last = reply.events[-1] if stream else reply.json
    assert reply.status == 200 and last["stop_type"] == "limit" and last["tokens_predicted"] > 0
    assert time.monotonic() - began >= 0.5
    assert not any(slot["is_processing"] for slot in endless.get("/slots").json)


def test_without_a_token_at_the_deadline_there_is_an_error(endless: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(access, "log", lambda event, **_: logged.append(event))
    with ThreadPoolExecutor(1) as pool:
        # the deadline of the server's settings
        other = pool.submit(endless.post, "/completion", prompt="Once", ignore_eos=True)
        while not any(slot["is_processing"] for slot in endless.get("/slots").json):
            time.sleep(0.01)
        for path, body in (("/completion", {"prompt": "Once"}), ("/v1/messages", {"messages": MESSAGES})):
            late = endless.post(path, **body, max_tokens=5, deadline_ms=50)
            assert late.status == 504 and "50 ms" in late.json["error"]["message"]
        assert other.result().status == 200
    assert set(logged) == {"request"}  # the server did what it was asked
    assert endless.post("/completion", prompt="Once", deadline_ms=0).status == 400


def test_cached_tokens_are_part_of_the_usage(server: Client) -> None:
    body = {"prompt": "The sea is wide, and the sky above it is wider", "max_tokens": 2, "cache_prompt": True}
    n_cached = []
    for _ in range(2):
        usage = server.post("/v1/completions", **body).json["usage"]
        n_cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert n_cached[0] < n_cached[1] == usage["prompt_tokens"] - 1


def test_thinking_is_apart_from_the_content() -> None:
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    template = texts("models/templates", ".jinja")["deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"]
    with running(lambda: Model(n_ctx=256, n_threads=1, chat_template=template), ServerSettings()) as server:
        whole = server.post("/v1/chat/completions", **body).json["choices"][0]["message"]
        events = server.post("/v1/chat/completions", **body, stream=True).events
        inside = server.post("/v1/chat/completions", **body, reasoning_format="none").json["choices"][0]["message"]
        response = server.post("/v1/responses", input="Hello", max_output_tokens=12, temperature=0).json
    assert 9 <= response["usage"]["output_tokens_details"]["reasoning_tokens"] <= 12  # it only thinks
    assert whole["reasoning_content"] and not whole["content"]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == whole["reasoning_content"]
    assert whole["reasoning_content"].strip() in inside["content"] and "reasoning_content" not in inside


@pytest.mark.parametrize("stream", [False, True])
def test_others_do_not_wait_while_a_long_answer_is_put_together(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    threads: list[int] = []
    put_together = ResponsesReply._whole

    def watched(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return put_together(*arguments)

    monkeypatch.setattr(ResponsesReply, "_whole", watched)
    with running(lambda: Model(n_ctx=256, n_threads=1), ServerSettings()) as server:
        for n_bytes in (1000, 8):
            monkeypatch.setattr(respond, "LONG_BYTES", n_bytes)
            server.post("/v1/responses", input="Hello", max_output_tokens=12, temperature=0, stream=stream)
    one, other = threads
    assert one != other


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"])
def test_json_follows_thinking_that_would_be_in_the_content(name: str) -> None:
    template = texts("models/templates", ".jinja")[f"{name}.jinja"]
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes"]}}}
    settings = ServerSettings(reasoning_format="none", reasoning_budget=3)
    with running(lambda: Model(n_ctx=256, n_threads=1, chat_template=template), settings) as server:
        for thinks in (True, False):
            body = {"messages": MESSAGES, "max_tokens": 30, "response_format": form, "temperature": 0}
            reply = server.post("/v1/chat/completions", **body, chat_template_kwargs={"enable_thinking": thinks})
            assert json.loads(reply.json["choices"][0]["message"]["content"]) == "yes"


def test_messages_may_turn_thinking_off() -> None:
    template = texts("models/templates", ".jinja")["Qwen-Qwen3-0.6B.jinja"]
    with running(lambda: Model(n_ctx=256, n_threads=1, chat_template=template), ServerSettings()) as server:
        for kind, is_off in (("disabled", True), ("enabled", False), ("adaptive", False)):
            body = {"messages": MESSAGES, "max_tokens": 1, "thinking": {"type": kind}, "verbose": True}
            prompt = server.post("/v1/messages", **body).json["__verbose"]["prompt"]
            assert prompt.endswith("</think>\n\n") == is_off


def test_templates_get_what_a_request_gives_them(server: Client) -> None:
    def prompt(**body: Any) -> str:
        return str(server.post("/apply-template", messages=MESSAGES, **body).json["prompt"])

    assert "tulip" in prompt(chat_template_kwargs={"word": "tulip"}) and "tulip" not in prompt()
    assert "welcome" in prompt(chat_template_kwargs={"word": "tulip"})  # what the server was started with stays
    assert "welcome" not in prompt(chat_template_kwargs={"greeting": "hello"})
    assert "high" in prompt(reasoning_effort="high") and "high" not in prompt()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_images_are_refused_by_name(server: Client, path: str) -> None:
    url = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    parts: dict[str, Any] = {
        "/v1/chat/completions": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        "/v1/messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        "/v1/responses": url,
    }
    name = "input" if path == "/v1/responses" else "messages"
    reply = server.post(path, **{name: [{"role": "user", "content": [parts[path]]}], "max_tokens": 4})
    assert reply.status == 400 and "image input is not supported" in reply.json["error"]["message"]
