"""Chat templates: prompts against jinja2's, for the templates that llama.cpp's sources carry, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from llama_archive import texts
from pymtp import ChatParams, ChatTemplate, InvalidParameter, Model, ModelError
from pymtp.binding.library import lib
from pymtp.chat.prompt import Trigger

TEMPLATES = texts("models/templates", ".jinja")
needs_templates = pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi, <b>é</b>"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "And 1 < 2?"},
]

DIFFER = {
    "Apertus-8B-Instruct.jinja": "it offers a thinking that llama.cpp does not see, and does not ask for",
    "deepseek-ai-DeepSeek-V4.jinja": "llama.cpp keeps the place of earlier thinking",
    "deepseek-ai-DeepSeek-V4-Flash-0731.jinja": "llama.cpp keeps the place of earlier thinking",
    "meta-llama-Llama-3.1-8B-Instruct.jinja": "llama.cpp gives it the date",
    "meta-llama-Llama-3.3-70B-Instruct.jinja": "llama.cpp gives it the date",
}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def template(name: str) -> ChatTemplate:
    return ChatTemplate(None, TEMPLATES[f"{name}.jinja"])


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_prompt_is_what_jinja2_makes_of_the_same_template(name: str) -> None:
    source = TEMPLATES[name]
    if name in DIFFER:
        pytest.skip(DIFFER[name])
    try:
        reference = Jinja2ChatFormatter(template=source, eos_token="", bos_token="")
        expected = reference(messages=MESSAGES, enable_thinking=True).prompt  # type: ignore[arg-type]
    except Exception as error:
        pytest.skip(f"jinja2 fails: {error}")
    assert ChatTemplate(None, source).render(MESSAGES).text == expected


def test_the_models_own_template_makes_the_prompt_without_the_bos_that_is_added(embedded_model: Path) -> None:
    with Model(embedded_model) as model:
        assert model.chat_prompt(MESSAGES[3:]) == "<|im_start|>user\nAnd 1 < 2?<|im_end|>\n<|im_start|>assistant\n"


@needs_templates
def test_reasoning_off_reaches_the_template() -> None:
    qwen = template("Qwen-Qwen3-0.6B")
    assert qwen.caps["supports_thinking"]
    assert qwen.render(MESSAGES, ChatParams(reasoning="off")).text.endswith("<think>\n\n</think>\n\n")
    assert qwen.render(MESSAGES).text.endswith("<|im_start|>assistant\n")


@needs_templates
def test_further_variables_reach_the_template() -> None:
    off = ChatParams(template_kwargs={"enable_thinking": False})
    assert template("Qwen-Qwen3-0.6B").render(MESSAGES, off).text.endswith("</think>\n\n")
    effort = ChatParams(template_kwargs={"reasoning_effort": "high"})
    assert "Reasoning: high" in template("openai-gpt-oss-120b").render(MESSAGES, effort).text


@needs_templates
def test_json_is_an_answer_without_fences() -> None:
    prompt = template("Qwen-Qwen3-0.6B").render(MESSAGES, ChatParams(json_schema={"const": 42}))
    assert prompt.grammar and "```" not in prompt.grammar and "response-format space" in prompt.grammar
    assert (parser := prompt.parse()).finish("42") and parser.message.content == "42"


@needs_templates
def test_tools_make_a_lazy_grammar_and_a_required_tool_one_from_the_start() -> None:
    qwen = template("Qwen-Qwen3-0.6B")
    free = qwen.render(MESSAGES, ChatParams(tools=[WEATHER]))
    assert free.grammar and "weather" in free.grammar and "weather" in free.text
    assert free.triggers == (Trigger("<tool_call>\n"),)
    assert {"<tool_call>", "<think>"} <= set(free.preserved_tokens)
    assert (free.thinking_begin, free.thinking_ends) == ("<think>", ("</think>",))

    bound = qwen.render(MESSAGES, ChatParams(tools=[WEATHER], tool_choice="required"))
    assert bound.grammar and not bound.triggers
    none = qwen.render(MESSAGES, ChatParams(tools=[WEATHER], tool_choice="none"))
    assert none.grammar is None


@needs_templates
def test_a_tool_that_has_to_be_called_is_the_only_one() -> None:
    other = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    choice = {"type": "function", "function": {"name": "clock"}}
    prompt = template("Qwen-Qwen3-0.6B").render(MESSAGES, ChatParams(tools=[WEATHER, other], tool_choice=choice))
    assert prompt.grammar and "clock" in prompt.grammar and "weather" not in prompt.grammar


@needs_templates
def test_a_schema_makes_a_grammar_of_the_answer() -> None:
    schema = {"type": "integer", "minimum": 1, "maximum": 6}
    prompt = template("Qwen-Qwen3-0.6B").render(MESSAGES, ChatParams(json_schema=schema))
    assert prompt.grammar and "([1-6])" in prompt.grammar


@needs_templates
def test_the_assistants_last_message_is_continued() -> None:
    messages = [*MESSAGES[:2], {"role": "assistant", "content": "Hel"}]
    prompt = template("Qwen-Qwen3-0.6B").render(messages, ChatParams(continue_final_message=True))
    assert prompt.text.endswith("Hel")
    parser = prompt.parse()
    deltas = parser.push("lo") + parser.finish()
    assert "".join(delta.content for delta in deltas) == "lo" == parser.message.content


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        ([{"role": "user", "content": 5}], "messages and tools"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages and tools"),
        ([{"role": "user", "content": "\udcff"}], "messages"),
        ([{"role": "assistant", "tool_calls": [{"type": "x"}]}], "messages and tools"),
        ([{"role": "user", "content": {1, 2}}], "messages"),
        ([{"role": "user"}], "messages"),
        ("hello", "messages"),
        ([], "messages"),
    ],
)
def test_messages_that_cannot_be_used_are_refused(messages: Any, name: str) -> None:
    with pytest.raises(InvalidParameter, match=f"^{name} must be"):
        ChatTemplate(None, CHATML).render(messages)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tools": "weather"}, "^tools must be a list"),
        ({"tools": [{"type": "function"}]}, "^messages and tools must be as in OpenAI"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "thing"}}}]},
            "unrecognized type",
        ),
        ({"tools": [WEATHER], "tool_choice": "weather"}, "^tool_choice must be one of auto"),
        ({"tools": [WEATHER], "tool_choice": True}, "^tool_choice must be one of auto, .*, not True"),
        ({"tools": [WEATHER], "tool_choice": [WEATHER]}, "^tool_choice must be one of auto"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "clock"}}}, "^tool_choice must be one of the tools"),
        ({"reasoning": "yes"}, "^reasoning must be one of auto, on, off"),
        ({"reasoning_format": "x"}, "^reasoning_format must be one of"),
        ({"json_schema": "{"}, "^json_schema must be valid JSON"),
        ({"json_schema": {"type": "number", "minimum": 0.5}}, "^json_schema must be a schema that grammars can follow"),
        ({"template_kwargs": {"enable_thinking": "no"}}, "enable_thinking has to be true or false"),
        ({"continue_final_message": True}, "the message to continue has to be the assistant's"),
        ({"continue_final_message": "x"}, "^continue_final_message must be"),
    ],
)
def test_what_a_chat_cannot_be_asked_is_refused(options: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        ChatTemplate(None, CHATML).render(MESSAGES[3:], ChatParams(**options))


def test_a_template_that_is_not_jinja_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="^chat_template must be Jinja, or the name"):
        ChatTemplate(None, "{% for %}")


def asked(source: str) -> ChatTemplate:
    """A template that does it for MESSAGES, not while llama.cpp tries a template on some of its own."""
    return ChatTemplate(None, "{% if messages[0].content == 'Be brief.' %}" + source + "{% endif %}")


LOOP = "{% for i in range(40) %}{% set ns.x = STEP %}{% endfor %}"
DEEP = "nested too deeply, or without end"
STEPS = "it takes too many steps"
TEXT, MEMORY = "it makes a text of more than 32 MiB", "it takes more than 256 MiB of memory"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DEEP),
        ("{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ caller() }}{% endcall %}", "not a function"),
        ("{% set ns.x = ns %}{{ ns | tojson }}", DEEP),
        ("{% set a = [] %}{% set _ = a.append(a) %}{{ a }}", DEEP),
        ("{{ 'a' * 99999999999 }}", TEXT),
        ("{% set ns.x = [1, 2] %}" + LOOP.replace("STEP", "ns.x + ns.x"), f"{TEXT}|{MEMORY}"),
        ("{% set ns.x = [] %}" + LOOP.replace("STEP", "[ns.x, ns.x]") + "{{ ns.x }}", STEPS),
        ("{% set x = 'a' * 9999 %}{{ x | replace('a', x) }}", TEXT),
        ("{% set x = 'a' * 9999 %}{{ x | replace('', x) }}", TEXT),
        ("{{ range(9999) | join('a' * 9999) }}", TEXT),
        ("{{ 'a\nb' | indent(99999999) }}", TEXT),
        ("{{ 'a\nb' | indent(-1) }}", TEXT),
        ("{{ ('a\n' * 9999) | indent('a' * 9999) }}", TEXT),
        ("{{ range(9223372036854775807) }}", MEMORY),
        ("{{ 3 is divisibleby 0 }}", "division by zero"),
    ],
)
def test_a_template_without_bounds_is_an_error(source: str, why: str) -> None:
    template = asked("{% set ns = namespace() %}" + source)
    with pytest.raises(ModelError, match=why):
        template.render(MESSAGES)


def test_a_template_that_takes_too_many_steps_to_be_analysed_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=STEPS):
        ChatTemplate(None, "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
        "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
        "{{ " + "not " * 30_000 + "1 }}",
        "{{ " + "1 + " * 30_000 + "1 }}",
        "{{ 1 " + "| int " * 30_000 + "}}",
        "{{ x" + ".x" * 30_000 + " }}",
        "{{ x" + "()" * 30_000 + " }}",
        "{{ " + "1 if x else " * 30_000 + "1 }}",
        "{% if x %}" + "{% elif x %}" * 30_000 + "{% endif %}",
        "{% if x %}" * 30_000 + "{% endif %}" * 30_000,
    ],
    ids=lambda source: source[3:15],
)
def test_a_deeply_nested_template_is_an_error(source: str) -> None:
    with pytest.raises(InvalidParameter, match="nested too deeply"):
        ChatTemplate(None, source)


@pytest.mark.parametrize("step", ["set ns.x = [ns.x]", "set _ = a.append(k=a.pop())"])
def test_values_of_a_template_that_are_deeply_nested_are_freed_one_after_the_other(step: str) -> None:
    template = asked(
        "{% set ns = namespace(x=1) %}{% set a = [1] %}{% for i in range(10000) %}{% " + step + " %}{% endfor %}end"
    )
    made, before = [], threading.stack_size(1280 << 10)  # destructors that call each other need 2 MB and more
    try:
        thread = threading.Thread(target=lambda: made.append(template.render(MESSAGES).text))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert made == ["end"]


def test_values_of_a_template_that_hold_themselves_are_freed() -> None:
    ring = "{% for i in range(200) %}{% set a = [] %}{% set _ = a.append([a, 'a' * 5000]) %}{% endfor %}end"  # 50 MB
    template = asked(ring)
    assert template.render(MESSAGES).text == "end"
    before = psutil.Process().memory_info().rss
    for _ in range(5):
        template.render(MESSAGES)
    assert psutil.Process().memory_info().rss < before + (100 << 20)


def test_what_has_no_order_is_sorted_without_harm() -> None:
    mixed = "{% set x = namespace(a=[9, '10', 'a', 1.5, none, '9', 10, [], 'b', 2]) %}"
    mixed += "{% for i in range(8) %}{% set x.a = x.a + x.a %}{% endfor %}{{ x.a | sort | length }}"
    assert ChatTemplate(None, mixed).render(MESSAGES).text == "2560"


def test_a_template_that_begins_with_a_nul_is_refused() -> None:
    """For C it is empty, which llama.cpp takes for none, and looks for the model's."""
    with pytest.raises(InvalidParameter, match="there is no chat template"):
        ChatTemplate(None, "\0{{ messages }}")


def test_a_template_that_fails_says_why_in_one_line() -> None:
    failing = ChatTemplate(None, "{{ raise_exception('only\ncats') }}")
    with pytest.raises(ModelError, match=r"^the chat template fails \(only cats\); use --raw"):
        failing.render(MESSAGES)


@needs_templates
def test_threads_share_a_template() -> None:
    qwen = template("Qwen-Qwen3-0.6B")
    questions = [[{"role": "user", "content": f"{n}?"}] for n in range(64)]
    with ThreadPoolExecutor(8) as threads:
        prompts = list(threads.map(lambda messages: qwen.render(messages).text, questions))
    assert prompts == [qwen.render(messages).text for messages in questions]


def test_names_of_templates_are_those_of_llama_cpp() -> None:
    with pytest.raises(InvalidParameter, match="the name of a template .*has none of this name.*command-z"):
        ChatTemplate(None, "command-z")
    assert "<|im_start|>" in ChatTemplate(None, "chatml").render(MESSAGES).text
    named = ChatTemplate(None, "llama3").render(MESSAGES, ChatParams(json_schema={"const": 4}))
    begin, end = "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"
    turns = "".join(begin.format(each["role"]) + each["content"] + end for each in MESSAGES)
    assert named.text == turns + begin.format("assistant") and named.grammar and "4" in named.grammar
    assert named.parse().finish("a <b>")[0].content == "a <b>"


@needs_templates
def test_a_template_is_analysed_once() -> None:
    source = TEMPLATES["ByteDance-Seed-OSS.jinja"]

    template = ChatTemplate(None, source)
    init_steps = lib.pymtp_chat_steps()
    template.render(MESSAGES)
    assert lib.pymtp_chat_steps() < init_steps / 3  # about as many, where the analysis is made again
