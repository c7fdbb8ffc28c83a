"""Templates, schemas and grammars are refused by counts of work, not by a clock: the same everywhere, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from llama_archive import schema_cases, texts
from pymtp import ChatParams, ChatTemplate
from pymtp.binding.library import lib
from pymtp.chat.schema import grammar_of_schema, schema_grammar
from pymtp.errors import InvalidParameter, ModelError, PymtpError
from pymtp.sampling.rules import check_grammar

TEMPLATES = texts("models/templates", ".jinja")
STEPS_MAX = 8_000_000
"""Of native/src/chat/chat-limits.cpp, and 128 more for each byte of a request, up to LONG_STEPS_MAX."""
LONG_STEPS_MAX = 32_000_000
ROOM = 12
"""Of what models have, IFM-K2-Horizon takes most: 0.13 million steps for each tool."""
CPU_S_MAX = 5
"""About twenty times of what the slowest of these takes on an idle core."""

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{i}",
            "parameters": {"type": "object", "properties": {f"p{j}": {"type": "string"} for j in range(5)}},
        },
    }
    for i in range(5)
]


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_template_that_models_have_takes_few_of_the_steps(name: str) -> None:
    template = ChatTemplate(None, TEMPLATES[name])
    counts = [lib.pymtp_chat_steps()]
    for tools in ([], TOOLS):
        template.render(ASKED, ChatParams(tools=tools))
        counts.append(lib.pymtp_chat_steps())
    assert min(counts) > 1000 and max(counts) < STEPS_MAX / ROOM, counts


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
def test_a_long_chat_has_steps_for_all_its_messages() -> None:
    turn = [{"role": "user", "content": "What is next?"}, {"role": "assistant", "content": "This is."}]
    prompt = ChatTemplate(None, TEMPLATES["Qwen-Qwen3-0.6B.jinja"]).render([*turn * 2000, *ASKED[1:]])
    assert prompt.text.count("What is next?") == 2000


READS_ALL_AGAIN = ["google-gemma-4-31B-it.jinja", "Reka-Edge.jinja", "Kimi-K3.jinja"]


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize("name", READS_ALL_AGAIN)
@pytest.mark.parametrize("n_turns", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_a_template_that_reads_all_messages_for_each_takes_hundreds(name: str, n_turns: int) -> None:
    turn = [{"role": "user", "content": "What is next?"}, {"role": "assistant", "content": "This is. " * 50}]
    prompt = ChatTemplate(None, TEMPLATES[name]).render([*turn * n_turns, *ASKED[1:]])
    assert prompt.text.count("What is next?") == n_turns


@pytest.mark.parametrize("case", schema_cases(), ids=lambda case: case.name)
def test_a_schema_of_llama_cpps_own_test_takes_few_of_the_steps(case: Any) -> None:
    try:
        schema_grammar(case.schema)
    except InvalidParameter:
        pytest.skip("refused for what it says")
    assert 0 < lib.pymtp_chat_steps() < STEPS_MAX / ROOM


def of_optional(n: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}}


def doubling(n: int) -> dict[str, object]:
    """Definitions that each lead to the next twice."""
    twice: dict[str, object] = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(n)}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {**twice, str(n): {"type": "null"}}}


def same_names(n: int) -> dict[str, object]:
    """Properties whose names are the same in a grammar, which has only letters and digits for them."""
    return {"type": "object", "properties": {chr(0x4E00 + i): {"type": "integer", "minimum": i} for i in range(n)}}


def of_patterns(n: int, times: int) -> dict[str, object]:
    """Each has rules of its own; those of all before it are copied."""
    properties = {
        f"p{i}-{j}": {"type": "string", "pattern": f"^a{{{i + 1}}}{'b' * j}$"} for i in range(n) for j in range(times)
    }
    return {"type": "object", "properties": properties}


SCHEMAS: dict[str, tuple[dict[str, object], str]] = {
    "values": (of_optional(60_000), "too many steps"),
    "names": (same_names(6_000), "too many steps"),
    "patterns": (of_patterns(1_990, 2), "too many steps"),
    "a pattern": ({"type": "string", "pattern": "^a" + "*" * 200_000 + "$"}, "too many steps"),
    "types": ({**of_optional(400), "type": ["object"] * 4000}, "too many steps"),
    "allOf": ({"allOf": [{"$ref": "#/$defs/a"}] * 3000, "$defs": {"a": of_optional(1000)}}, "too many steps"),
    "a long name": (
        {"type": "object", "properties": {"a" * 20_000: {}}, "additionalProperties": True},
        "nested too deeply",
    ),
}

SET = "{% set ns = namespace(x='a' * 64) %}{% for i in range(14) %}{% set ns.x = [ns.x, ns.x] | join('') %}{% endfor %}"
"""A text of 1 MiB."""
LIST = "{% set ns = namespace(x=range(1000)) %}{% for i in range(8) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
"""A list of 256,000."""


def again(what: str) -> str:
    return "{% for i in range(9999) %}{{ " + what + " }}{% endfor %}"


def template_of(source: str) -> Callable[[], object]:
    """Renders it where it is asked to: not while llama.cpp tries what the template can do."""
    guarded = "{% if messages[0].content == 'Go' %}" + source + "{% endif %}"
    return lambda: ChatTemplate(None, guarded).render([{"role": "user", "content": "Go"}])


def grammar_of(schema: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: grammar_of_schema(schema)


def tool_of(schema: Mapping[str, Any]) -> Callable[[], object]:
    tools = [{"type": "function", "function": {"name": "a", "parameters": schema}}]
    template = ChatTemplate(None, TEMPLATES["Qwen3-Coder.jinja"]) if TEMPLATES else None
    return lambda: template and template.render(ASKED, ChatParams(tools=tools))


STEPS = "it takes too many steps"
TEMPLATE_CODE = {
    "loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "nothing repeated": "{% set x %}{% endset %}{{ x * 9223372036854775807 }}",
    "copies": SET + again("ns.x | upper | length"),
    "sought": SET + again("'ab' in ns.x"),
    "long ones sought": SET + "{{ (ns.x[:99999] ~ 'b') in ns.x }}",
    "compared": SET + again("ns.x == ns.x[1:]"),
    "as JSON": SET + again("ns.x | tojson | length"),
    "split": SET + again("ns.x.split('ab') | length"),
    "as keys": SET + "{% set d = {ns.x: 1} %}" + again("ns.x in d"),
    "lists": LIST + again("ns.x | reverse | length"),
    "sought in lists": LIST + again("-5 in ns.x"),
    "sorted": LIST + again("ns.x | sort | length"),
    "selected": LIST + again("ns.x | selectattr('a') | length"),
    "from the front": LIST + again("ns.x.pop(0)"),
    "variables": "".join(f"{{% set v{i} = 1 %}}" for i in range(500)) + again("i }}{% for j in [1] %}{% endfor %}{{ i"),
    "doubled": "{% set ns = namespace(x=[]) %}"
    "{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
}

CASES: dict[str, tuple[Callable[[], object], str]] = {
    **{f"template: {name}": (template_of(source), STEPS) for name, source in TEMPLATE_CODE.items()},
    **{f"schema: {name}": (grammar_of(schema), why) for name, (schema, why) in SCHEMAS.items()},
    "tool: doubled": (tool_of(doubling(40)), STEPS),
    "tool: keys": (tool_of(of_optional(30_000)), STEPS),
    "tool: types": (tool_of({**of_optional(400), "type": ["object"] * 4000}), STEPS),
    "template: line ends": (lambda: ChatTemplate(None, "\r\n" * 1_000_000 + "{% for %}"), "Jinja, or the name"),
}


def check_refused(run: Callable[[], object], why: str, n_times: int = 2) -> None:
    """It has to fail for this reason, soon, and again in the same words."""
    said = []
    for _ in range(n_times):
        began = time.thread_time()
        with pytest.raises(PymtpError, match=why) as caught:
            run()
        assert time.thread_time() - began < CPU_S_MAX
        said.append(str(caught.value))
    assert len(set(said)) == 1


DEAR = ("template: doubled",)
"""What a test of test_chat_template.py shows soon."""


@pytest.mark.parametrize(
    ("name", "n_times"),
    [
        *((name, 1) for name in CASES if name not in DEAR),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_what_takes_too_long_is_refused_by_a_count(name: str, n_times: int) -> None:
    run, why = CASES[name]
    if name.startswith("tool") and not TEMPLATES:
        pytest.skip("llama.cpp's templates are not at hand: run make")
    check_refused(run, why, n_times)


def test_a_long_request_has_no_more_than_so_many_steps() -> None:
    template = ChatTemplate(None, "{% if messages[0].content == 'Hi' %}" + TEMPLATE_CODE["copies"] + "{% endif %}")
    with pytest.raises(ModelError, match=STEPS):
        template.render([*ASKED[1:], {"role": "user", "content": "a" * 1_000_000}])
    assert LONG_STEPS_MAX <= lib.pymtp_chat_steps() < LONG_STEPS_MAX * 1.02


GRAMMARS = {
    "groups": ("root ::= " + "(" * 201 + '"a"' + ")" * 201, "more than 200 parentheses in each other"),
    "options": ("root ::= " + '"a"{0,2000} ' * 3000, "its repetitions make too many rules"),
    "a long text": ("root ::= " + f'"{"a" * 300_000}"{{2000}}', "its repetitions make too many rules"),
    "empty rules": (
        "root ::= " + "b " * 100_000 + f'\nb ::= "{"x" * 100_000}" | ""',
        "its rules begin with each other in too many ways",
    ),
    "ways to begin": (
        "root ::= a0\n"
        + "".join(f'a{i} ::= "{"y" * 5000}" | a{i + 1} | a{i + 1}\n' for i in range(18))
        + 'a18 ::= "x"',
        "its rules begin with each other in too many ways",
    ),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_is_checked_by_counts(name: str) -> None:
    grammar, why = GRAMMARS[name]
    check_refused(lambda: check_grammar(grammar), why)
