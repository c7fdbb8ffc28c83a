"""Parsers of answers: what models write, taken apart whole and in pieces."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_archive import texts
from pymtp import ChatMessage, ChatParams, ChatPrompt, ChatTemplate
from pymtp.chat.parser import ChatDelta
from test_chat_template import WEATHER

TEMPLATES = texts("models/templates", ".jinja")
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")


HELLO = [{"role": "user", "content": "Hello"}]


class Answer(NamedTuple):
    """What a model of a template writes, and what it means."""

    template: str
    text: str
    reasoning: str
    content: str
    arguments: str | None = None


ANSWERS = [
    Answer("Qwen-Qwen3-0.6B", "<think>\nHm ü.\n</think>\n\nYes, 😀.", "Hm ü.", "Yes, 😀."),
    Answer("Qwen-Qwen3-0.6B", "Yes.", "", "Yes."),
    Answer(
        "Qwen-Qwen3-0.6B",
        '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>',
        "Hm.",
        "",
        '{"city": "Köln"}',
    ),
    Answer(
        "GLM-4.6",
        "\n<think>Hm.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n</tool_call>",
        "Hm.",
        "",
        '{"city": "Ulm"}',
    ),
    Answer(
        "Qwen3.5-4B",
        "Hm.\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>",
        "Hm.",
        "",
        '{"city": "Ulm"}',
    ),
    Answer(
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "Hm.",
        "Yes.",
    ),
]


def rendered(answer: Answer) -> ChatPrompt:
    messages = [{"role": "user", "content": "How is the weather?"}]
    return ChatTemplate(None, TEMPLATES[f"{answer.template}.jinja"]).render(messages, ChatParams(tools=[WEATHER]))


def joined(deltas: list[ChatDelta]) -> tuple[str, str, str]:
    calls = [delta.tool_call for delta in deltas if delta.tool_call]
    return (
        "".join(delta.content for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        "".join(call.name + call.arguments for call in calls),
    )


def check(message: ChatMessage, answer: Answer) -> None:
    assert (message.reasoning.strip(), message.content.strip()) == (answer.reasoning, answer.content)
    called = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert called == ([("weather", json.loads(answer.arguments))] if answer.arguments else [])


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: f"{a.template}-{'tool' if a.arguments else 'text'}")
def test_an_answer_is_taken_apart(answer: Answer) -> None:
    parser = rendered(answer).parse()
    parser.finish(answer.text)
    check(parser.message, answer)
    assert all(len(call.id) > 0 for call in parser.message.tool_calls)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: f"{a.template}-{'tool' if a.arguments else 'text'}")
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_deltas_of_any_pieces_make_up_the_message(answer: Answer, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer.text) - 1), max_size=30)))
    pieces = [answer.text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    parser = rendered(answer).parse()
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    message = parser.message
    check(message, answer)
    calls = "".join(call.name + call.arguments for call in message.tool_calls)
    assert joined(deltas) == (message.content, message.reasoning, calls)


def test_reasoning_stays_in_the_content_if_asked_to() -> None:
    qwen = ChatTemplate(None, TEMPLATES["Qwen-Qwen3-0.6B.jinja"])
    parser = qwen.render([{"role": "user", "content": "hi"}], ChatParams(reasoning_format="none")).parse()
    parser.finish("<think>\nHm.\n</think>\n\nYes.")
    assert parser.message == ChatMessage("<think>\nHm.\n</think>\n\nYes.")


def test_a_cut_answer_keeps_what_there_is() -> None:
    parser = rendered(ANSWERS[2]).parse()
    parser.finish(ANSWERS[2].text[:60], is_cut=True)
    assert parser.message.reasoning.strip() == "Hm."


@pytest.mark.parametrize("n", [1, 7, 100])
def test_what_is_no_answer_of_the_template_is_content(n: int) -> None:
    parser, text = rendered(ANSWERS[2]).parse(), "<think>\nHm.\n</think>\n\n<tool_call>\nno JSON"
    deltas = [delta for i in range(0, len(text), n) for delta in parser.push(text[i : i + n])] + parser.finish()
    message = parser.message
    assert text.endswith(message.reasoning + message.content) and message.content.endswith("<tool_call>\nno JSON")
    assert joined(deltas) == (message.content, message.reasoning, "")


@pytest.mark.parametrize(
    ("template", "text", "content"),
    [
        ("inclusionai-ling-3.0-flash", "Use a <table> here</think>\n\nHello", "\n\nHello"),
        (
            "openai-gpt-oss-120b",
            '<|channel|>commentary to=functions.weather<|constrain|>json<|message|>{"city": "a"}',
            "",
        ),
    ],
)
def test_what_parts_of_an_answer_looked_like_is_not_in_the_message(template: str, text: str, content: str) -> None:
    """As in "<t", which may begin an answer of another form."""
    tools = [WEATHER] if "weather" in text else []
    params = ChatParams(tools=tools, reasoning_format="none" if tools else "auto")
    parser = ChatTemplate(None, TEMPLATES[f"{template}.jinja"]).render(HELLO, params).parse()
    for char in text:
        parser.push(char)
    parser.finish()
    assert parser.message.content == content


def test_what_follows_the_arguments_of_a_broken_call_is_content() -> None:
    parser = rendered(ANSWERS[2]).parse()
    parser.push('<tool_call>\n{"name": "weather", "arguments": {"city": "a')
    parser.finish('"b"}}\n</tool_call>')
    assert parser.message.content == '"b"}}\n</tool_call>'


@given(st.lists(st.text(st.sampled_from("a \nü<>/think|{"), max_size=6), max_size=8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_answers_that_are_content_alone_come_as_they_are_written(pieces: list[str], is_cut: bool) -> None:
    parser = ChatTemplate(None, TEMPLATES["Qwen-Qwen2.5-7B-Instruct.jinja"]).render(HELLO).parse()
    assert [parser.push(piece) for piece in pieces] == [[ChatDelta(piece)] if piece else [] for piece in pieces]
    assert parser.finish("end", is_cut=is_cut) == [ChatDelta("end")]
    assert parser.message == ChatMessage("".join(pieces) + "end")
