"""Damaged chat templates, messages and parameters, through llama.cpp's template engine and parser."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pymtp import ChatParams, ChatTemplate, PymtpError
from pymtp.chat.parser import ChatParser

from .fuzzer import Fuzzer, damaged_json, damaged_text

_CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
_TOOLS = (
    "{%- if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}{% endfor %}{% endif %}"
    "{%- for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}{% for c in m.tool_calls %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "{% elif m['role'] != 'system' or loop.first %}[{{ m.role | upper }}] {{ m.content | trim }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT]{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)
_MACRO = (
    "{% macro f(a, b=1) %}{{ a }}{{ b + 1 }}{% endmacro %}{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}"
    "{% set ns.n = ns.n + 1 %}{{ f(m.content.split('a')[0], ns.n) }}{{ '%s' | format(1) }}{% endfor %}"
    "{{ messages | length }}"
)
_PIECES = ["{%", "%}", "{{", "}}", "{#", "#}", "-%}", "| tojson"]
_PIECES += ["| length", "[0]", "[::-1]", "[-1]", ".x", "(", ")", "~", "+"]
_PIECES += ["* 99999999", "{% for i in range(3) %}", "{% for i in range(10**9) %}"]
_PIECES += ["{% endfor %}", "{% if x %}", "{% else %}"]
_PIECES += ["{% endif %}", "{% set x = 1 %}", "{% break %}", "none"]
_PIECES += ["true", "'a'", '"b"', "9223372036854775807", "1.5", "// 0"]
_PIECES += ["% 0", "{{ raise_exception('a') }}"]
_PIECES += ["{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "messages", "loop.index"]
_PIECES += ["is defined", "not", "in", "| default('')", "| map(attribute='role')"]
_PIECES += ["| join(',')", "| sort", "| indent(99999999)"]
_PIECES += ["{{ 'a' * 99999999999 }}", "{{ strftime_now('%Y') }}"]
_PIECES += ["| replace('a', 'b')", "{{ (" + "(" * 3000, "[" * 3000, "| list"]

_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "a",
        "tool_calls": [{"type": "function", "id": "1", "function": {"name": "weather", "arguments": '{"city": "a"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
    {"role": "user", "content": "And now?"},
]
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_ANSWERS = ["Hello", "<think>a</think>b"]
_ANSWERS += ['<tool_call>{"name": "weather", "arguments": {"city": "x"}}</tool_call>', "[TOOL", "{", ""]
Case = tuple[str, Any, dict[str, Any], str]


class Templates(Fuzzer):
    """Templates of a model file are programs: they may fail, with an error, and within a time."""

    name = "templates"
    limit_s = 25.0  # a template that does not end is stopped after some million steps

    def __init__(self, folder: Path) -> None:
        self._sources = [_CHATML, _TOOLS, _MACRO, *_of_llama_cpp()]

    def case(self, chance: random.Random) -> Case:
        source, messages = chance.choice(self._sources), _MESSAGES
        if chance.random() < 0.7:
            source = damaged_text(chance, source, _PIECES)
        if chance.random() < 0.5:
            messages = damaged_json(chance, messages)
        params: dict[str, Any] = {"tools": [_TOOL]} if chance.random() < 0.5 else {}
        if params and chance.random() < 0.5:
            params = damaged_json(chance, params)
        if not isinstance(params, dict):
            params = {}
        if chance.random() < 0.3:
            params["tool_choice"] = chance.choice(["auto", "none", "required", "weather"])
        if chance.random() < 0.3:
            params["reasoning"] = chance.choice(["off", "on", "auto"])
        answer = damaged_text(
            chance, chance.choice(_ANSWERS), ["<think>", "</think>", "<tool_call>", "}", "[", "weather"]
        )
        return source, messages, params, answer

    def run(self, case: Case) -> str:
        source, messages, params, answer = case
        try:
            template = ChatTemplate(None, source)
        except PymtpError:
            return "no template"
        try:
            asked = ChatParams(**params) if isinstance(params, dict) else ChatParams()
        except (PymtpError, TypeError):  # a name that no parameter has
            asked = ChatParams()
        try:
            made = template.render(messages, asked)
        except PymtpError:
            return "not rendered"
        try:
            assert made.parser
            parser = ChatParser(made.parser)
            for i in range(0, len(answer), 5):
                parser.push(answer[i : i + 5])
            parser.finish()
        except PymtpError:
            return "rendered, not parsed"
        return "rendered"


def _of_llama_cpp() -> list[str]:
    """The templates that llama.cpp's archive has, where it is at hand."""
    try:
        from llama_archive import texts

        return sorted(texts("models/templates", ".jinja").values())
    except ImportError:  # native/ is not on the path
        return []
