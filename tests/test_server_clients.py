"""The Python clients of OpenAI and Anthropic, where they are installed: the APIs as others read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from http_server import Client, running
from llama_archive import texts
from pymtp import Model
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}
FRUIT = {
    "type": "object",
    "properties": {"ripe": {"type": "boolean"}},
    "required": ["ripe"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "schema": FRUIT}


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    # a template that knows tools: the embedded model's own does not
    template = texts("models/templates", ".jinja")["Qwen-Qwen2.5-7B-Instruct.jinja"]
    settings = ServerSettings(api_keys=("secret",), aliases=("nano",))
    with running(lambda: Model(n_ctx=1024, n_seq_max=2, n_threads=1, chat_template=template), settings) as client:
        yield client


@pytest.fixture(scope="module")
def openai(server: Client) -> Any:
    module = pytest.importorskip("openai")
    return module.OpenAI(api_key="secret", base_url=f"{server.url}/v1", max_retries=0)


@pytest.fixture(scope="module")
def anthropic(server: Client) -> Any:
    module = pytest.importorskip("anthropic")
    return module.Anthropic(api_key="secret", base_url=server.url, max_retries=0)


def test_openai_lists_the_model(openai: Any) -> None:
    assert [model.id for model in openai.models.list()] == ["nano"]


def test_openai_streams_what_it_returns(openai: Any) -> None:
    asked: dict[str, Any] = {"model": "nano", "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = openai.chat.completions.create(**asked)
    stream = openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.prompt_tokens + whole.usage.completion_tokens == whole.usage.total_tokens


def test_openai_reads_completions_and_log_probabilities(openai: Any) -> None:
    reply = openai.completions.create(model="nano", prompt="One, two,", max_tokens=4, temperature=0, logprobs=2, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.choices[0].text == reply.choices[1].text == "".join(reply.choices[0].logprobs.tokens)
    chat = openai.chat.completions.create(
        model="nano", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=3, temperature=0
    )
    for entry in chat.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= entry.top_logprobs[0].logprob + 1e-6


def test_openai_streams_log_probabilities_of_calls(openai: Any) -> None:
    asked: dict[str, Any] = {"model": "nano", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    asked |= {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required", "logprobs": True}
    whole = openai.chat.completions.create(**asked).choices[0].logprobs.content
    chunks = openai.chat.completions.create(**asked, stream=True)
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    tokens = [entry.token for each in streamed if each for entry in each.content]
    assert tokens == [entry.token for entry in whole] and len(tokens) == 12


def test_openai_streams_completions_with_the_tokens_of_all(openai: Any) -> None:
    asked: dict[str, Any] = {"model": "nano", "prompt": ["One, two,", "A"], "max_tokens": 4, "temperature": 0, "n": 2}
    whole = openai.completions.create(**asked)
    *chunks, last = openai.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage) == ([], whole.usage) and not any(chunk.usage for chunk in chunks)
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    for i, choice in enumerate(whole.choices):
        assert "".join(each.text for chunk in chunks for each in chunk.choices if each.index == i) == choice.text


def test_openai_reads_json_that_follows_a_schema(openai: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": FRUIT}}
    reply = openai.chat.completions.create(
        model="nano", messages=MESSAGES, response_format=form, max_tokens=60, temperature=0
    )
    assert isinstance(json.loads(reply.choices[0].message.content)["ripe"], bool)
    text: Any = {"format": {"type": "json_schema", "name": "fruit", "strict": True, "schema": FRUIT}}
    response = openai.responses.create(model="nano", input="Hello", text=text, max_output_tokens=60, temperature=0)
    assert isinstance(json.loads(response.output_text)["ripe"], bool)


def test_openai_offers_tools_and_brings_their_results(openai: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    reply = openai.chat.completions.create(
        model="nano",
        messages=[
            *MESSAGES,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ],
        tools=[{"type": "function", "function": FUNCTION}],
        max_tokens=5,
    )
    assert reply.usage.completion_tokens > 0


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_openai_gets_the_call_that_it_requires(openai: Any, choice: Any) -> None:
    asked: dict[str, Any] = {
        **{"model": "nano", "messages": MESSAGES, "max_tokens": 100, "temperature": 0},
        **{"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": choice, "parallel_tool_calls": False},
    }
    whole = openai.chat.completions.create(**asked).choices[0]
    call = whole.message.tool_calls[0]
    assert (whole.message.content, call.function.name, call.type) == (None, "weather", "function")
    assert list(json.loads(call.function.arguments)) == ["city"]
    chunks = [chunk.choices[0] for chunk in openai.chat.completions.create(**asked, stream=True)]
    deltas = [each for chunk in chunks for each in chunk.delta.tool_calls or ()]
    assert not any(chunk.delta.content for chunk in chunks)
    first = [delta for delta in deltas if delta.index == 0]
    assert [delta.function.name for delta in first if delta.id] == ["weather"]
    assert "".join(delta.function.arguments for delta in first) == call.function.arguments


def test_openai_gets_a_call_as_a_response(openai: Any) -> None:
    asked: dict[str, Any] = {
        **{"model": "nano", "input": "Hello", "max_output_tokens": 100, "temperature": 0, "parallel_tool_calls": False},
        **{"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    }
    call = openai.responses.create(**asked).output[0]
    assert (call.type, call.name, list(json.loads(call.arguments))) == ("function_call", "weather", ["city"])
    last = list(openai.responses.create(**asked, stream=True))[-1]
    assert last.response.output[0].arguments == call.arguments


def test_openai_allows_some_of_the_tools(openai: Any) -> None:
    clock = {"type": "function", "function": {**FUNCTION, "name": "clock"}}
    weather = {"type": "function", "function": FUNCTION}
    asked: dict[str, Any] = {"model": "nano", "messages": MESSAGES, "max_tokens": 100, "temperature": 1}
    choice = {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    reply = openai.chat.completions.create(
        tools=[clock, weather], tool_choice={"type": "allowed_tools", "allowed_tools": choice}, seed=0, **asked
    )
    assert {call.function.name for call in reply.choices[0].message.tool_calls} == {"clock"}
    for choice in ({"type": "allowed_tools", "mode": "required"}, {"type": "function"}):
        named = {"tools": [{"type": "function", "name": "clock"}]} if "mode" in choice else {"name": "clock"}
        response = openai.responses.create(
            model="nano",
            input="Hello",
            max_output_tokens=200,
            tool_choice=choice | named,
            tools=[{"type": "function", **FUNCTION}, {"type": "function", **FUNCTION, "name": "clock"}],
        )
        assert {item.name for item in response.output} == {"clock"}


def test_openai_streams_responses(openai: Any) -> None:
    asked: dict[str, Any] = {"model": "nano", "input": "Hello", "max_output_tokens": 20, "temperature": 0}
    whole = openai.responses.create(**asked)
    text, last = "", None
    for event in openai.responses.create(**asked, stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    assert text == whole.output_text != ""
    assert last.type == "response.completed" and last.response.output_text == text
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_openai_raises_its_own_errors(openai: Any, server: Client) -> None:
    module = pytest.importorskip("openai")
    with pytest.raises(module.BadRequestError, match="temperature"):
        openai.chat.completions.create(model="nano", messages=MESSAGES, temperature="hot")
    with pytest.raises(module.BadRequestError, match="context size"):
        openai.chat.completions.create(model="nano", messages=[{"role": "user", "content": "word " * 5000}])
    with pytest.raises(module.AuthenticationError):
        module.OpenAI(api_key="wrong", base_url=f"{server.url}/v1").models.list()
    with pytest.raises(module.BadRequestError, match="embeddings"):
        openai.embeddings.create(model="nano", input="a")


def test_openai_asks_once_for_what_the_server_has_not(server: Client) -> None:
    module = pytest.importorskip("openai")
    client = module.OpenAI(api_key="secret", base_url=f"{server.url}/v1")
    for ask in (
        lambda: client.embeddings.create(model="nano", input="a"),
        lambda: client.completions.create(model="nano", prompt="a", suffix="b"),
        lambda: client.chat.completions.create(model="nano", messages=MESSAGES, web_search_options={}),
        lambda: client.post("/../slots/0?action=save", cast_to=object),  # 501
        lambda: client.chat.completions.create(model="nano", messages=[{"role": "user", "content": [PICTURE]}]),
    ):
        with pytest.raises(module.APIStatusError) as caught:
            ask()
        assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_both_find_the_model(openai: Any, anthropic: Any) -> None:
    assert openai.models.retrieve("nano").id == "nano"
    with pytest.raises(pytest.importorskip("openai").NotFoundError, match="no model 'gpt'"):
        openai.models.retrieve("gpt")
    found = anthropic.models.retrieve("nano")
    assert (found.id, found.type, found.display_name, found.created_at.year > 2024) == ("nano", "model", "nano", True)
    assert [model.id for model in anthropic.models.list()] == ["nano"]
    with pytest.raises(pytest.importorskip("anthropic").NotFoundError, match="no model 'gpt'"):
        anthropic.models.retrieve("gpt")


def test_openai_gets_the_classes_of_pydantic(openai: Any) -> None:
    """Bounds of whole numbers are followed; what no grammar follows is named in a header."""
    pydantic = pytest.importorskip("pydantic")
    bounds = {"price": (float, ...), "stars": (int, pydantic.Field(gt=0, le=5))}
    asked: dict[str, Any] = {"model": "nano", "messages": MESSAGES, "max_tokens": 400, "temperature": 0.8, "seed": 1}
    for seed in range(2):
        offer = openai.chat.completions.parse(
            response_format=pydantic.create_model("Offer", **bounds), **asked | {"seed": seed}
        )
        assert offer.choices[0].message.parsed.stars > 0
    few = asked | {"max_tokens": 2}
    assert "x-pymtp-ignored" not in openai.chat.completions.with_raw_response.create(**few).headers
    user = pydantic.create_model(
        "User",
        mail=(str, pydantic.Field(json_schema_extra={"format": "email"})),
        link=pydantic.HttpUrl,
        numbers=set[int],
        even=(int, pydantic.Field(multiple_of=2)),
        share=(float, pydantic.Field(ge=0, le=1)),
        **bounds,
    )
    form = {"type": "json_schema", "json_schema": {"name": "user", "schema": user.model_json_schema()}}
    tool = {"type": "function", "function": {"name": "user", "parameters": user.model_json_schema()}}
    for more in ({"response_format": form}, {"tools": [tool], "tool_choice": "required"}):
        reply = openai.chat.completions.with_raw_response.create(**few, **more)
        ignored = reply.headers["x-pymtp-ignored"]
        passed_over = {"uniqueItems": "numbers", "multipleOf": "even", "maximum": "share", "format": "mail"}
        for keyword, name in passed_over.items():
            assert f"{keyword} at #/properties/{name}" in ignored
        assert "price" not in ignored and "stars" not in ignored
        with pytest.raises(pytest.importorskip("openai").BadRequestError, match="cannot know format at #"):
            openai.chat.completions.create(**few, **more, extra_body={"strict_schemas": True})


def test_anthropic_gets_the_class_that_it_asks_for(anthropic: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    offer = pydantic.create_model("Offer", price=float, sold=bool)  # this client sends no bounds
    asked: dict[str, Any] = {"model": "nano", "messages": MESSAGES, "max_tokens": 500}
    reply = anthropic.messages.parse(output_format=offer, **asked)
    assert isinstance(reply.parsed_output.price, float)
    for body in ({"output_config": {"format": FORM}}, {"output_format": FORM}):
        raw = anthropic.messages.create(**asked, extra_body=body)
        assert isinstance(json.loads(raw.content[0].text)["ripe"], bool)
    assert raw._request_id and raw.usage.cache_creation_input_tokens == 0


def test_anthropic_streams_what_it_returns(anthropic: Any) -> None:
    asked: dict[str, Any] = {
        "model": "nano",
        "messages": MESSAGES,
        "max_tokens": 20,
        "extra_body": {"temperature": 0},
        "system": "Be brief.",
    }
    whole = anthropic.messages.create(**asked)
    with anthropic.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text != ""
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    counted = anthropic.messages.count_tokens(model="nano", messages=MESSAGES, system="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_anthropic_offers_tools_and_brings_their_results(anthropic: Any) -> None:
    tool = {"name": "weather", "description": "The weather of a city.", "input_schema": PARAMETERS}
    use = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Ulm"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "rain"}]}
    conversation = [*MESSAGES, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    reply = anthropic.messages.create(model="nano", messages=conversation, tools=[tool], max_tokens=5)
    assert reply.usage.output_tokens > 0
    conversation[-1] = {"role": "user", "content": [result, {"type": "text", "text": "And tomorrow?"}]}
    asked: dict[str, Any] = {"model": "nano", "messages": conversation, "tools": [tool], "max_tokens": 5}
    prompt = anthropic.messages.create(**asked, extra_body={"verbose": True}).model_extra["__verbose"]["prompt"]
    assert 0 < prompt.index('<tool_call>\n{"name": "weather"') < prompt.index("rain") < prompt.index("And tomorrow?")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_anthropic_gets_the_call_that_it_requires(anthropic: Any, choice: Any) -> None:
    tool = {"name": "weather", "description": "The weather of a city.", "input_schema": PARAMETERS}
    asked: dict[str, Any] = {
        **{"model": "nano", "messages": MESSAGES, "max_tokens": 100, "extra_body": {"temperature": 0}},
        **{"tools": [tool], "tool_choice": {**choice, "disable_parallel_tool_use": True}},
    }
    whole = anthropic.messages.create(**asked)
    use = whole.content[0]
    assert (use.type, use.name, list(use.input)) == ("tool_use", "weather", ["city"])
    with anthropic.messages.stream(**asked) as stream:
        last = stream.get_final_message()
    assert (last.stop_reason, last.content[0].name, last.content[0].input) == (whole.stop_reason, "weather", use.input)


def test_anthropic_gets_what_there_is_of_a_call_that_was_cut(anthropic: Any) -> None:
    tool = {"name": "weather", "description": "The weather of a city.", "input_schema": PARAMETERS}
    asked: dict[str, Any] = {"model": "nano", "messages": MESSAGES, "tools": [tool], "tool_choice": {"type": "any"}}
    cut = []
    for most in range(8, 29, 5):
        reply = anthropic.messages.create(**asked, max_tokens=most, extra_body={"temperature": 0})
        if [block.type for block in reply.content] == ["text", "tool_use"] and reply.stop_reason == "max_tokens":
            cut.append(reply.content)
    assert cut
    for text, use in cut:
        assert text.text.startswith("{") and use.input == {}


def test_anthropic_raises_its_own_errors(anthropic: Any) -> None:
    module = pytest.importorskip("anthropic")
    with pytest.raises(module.BadRequestError, match="messages"):
        anthropic.messages.create(model="nano", messages=3, max_tokens=1)
