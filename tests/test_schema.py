"""JSON schemas: the grammar is that of llama.cpp's own converter, and what it would ignore is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llama_archive import SchemaCase, schema_cases, texts
from log_level import logged
from pymtp import ChatParams, ChatPrompt, ChatTemplate
from pymtp.binding.library import lib
from pymtp.chat.schema import grammar_of_schema, schema_grammar
from pymtp.errors import InvalidParameter, ModelError

TEMPLATES = texts("models/templates", ".jinja")

CASES = schema_cases()


def trimmed(grammar: str) -> str:
    """As llama.cpp's test compares them: without indentation."""
    return re.sub(r"(^|\n)[ \t]+", r"\1", grammar.strip())


@pytest.mark.skipif(not CASES, reason="llama.cpp's tests are not at hand (build/ holds no archive): run make")
def test_all_cases_of_llama_cpps_own_test_are_found() -> None:
    assert len(CASES) > 70


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_grammar_is_what_llama_cpps_own_test_expects(case: SchemaCase) -> None:
    if case.grammar is None:
        with pytest.raises(InvalidParameter, match="^json_schema must be a schema that can be turned into a grammar"):
            schema_grammar(case.schema)
    else:
        assert trimmed(schema_grammar(case.schema)[1]) == trimmed(case.grammar)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "object", "required": ["name"]}, "required at #;"),
        ({"type": "object", "required": [{}]}, "required at #;"),
        ({"properties": {"a": {"type": "number", "minimum": 0.5}}}, "minimum at #/properties/a;"),
        ({"type": "integer", "multipleOf": 5}, "multipleOf at #;"),
        ({"type": "integer", "minimum": 10**22}, "minimum at #;"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems at #;"),
        ({"type": "object", "patternProperties": {"^a$": {}}}, "patternProperties at #;"),
        ({"type": "object", "minProperties": 1}, "minProperties at #;"),
        ({"type": "string", "format": "email"}, "format at #;"),
        ({"anyOf": [{"not": {"type": "null"}}]}, "not at #/anyOf/0;"),
        ({"$defs": {"a": {"minimum": 1}}, "items": {"$ref": "#/$defs/a"}}, "minimum at #/\\$defs/a;"),
        ({"$defs": {"ä": {}}, "items": {"$ref": "#/$defs/ä"}}, "\\$ref at #/items;"),
        ({"type": ["string", "number"], "multipleOf": 3}, "multipleOf at #;"),
        ({"type": "object", "properties": {}, "allOf": [{}]}, "allOf at #;"),
        ({"if": {}, "then": {}}, "if at #;"),
        ({"type": "string", "maxLength": 2001}, "maxLength at #;"),
        ({"type": "array", "items": {}, "maxItems": 10**9}, "maxItems at #;"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf at #;"),
        *(
            ({"items": {"pattern": pattern}}, "pattern at #/items;")
            for pattern in ("a", "^(?=a)$", "^\\w$", "^.$", '^"$', "^\\\\$", "^[^a]$", "^[ -~]$", "^a+?$", "^a$|^b$")
        ),
    ],
)
def test_what_a_grammar_would_ignore_is_refused_with_its_place(schema: Any, what: str) -> None:
    refusal = f"must be a schema that grammars can follow: they cannot know .*{what}"
    with pytest.raises(InvalidParameter, match=f"^json_schema {refusal}"):
        grammar_of_schema(schema)
    assert re.search(what, f"{schema_grammar(schema)[2][0]};")


def test_what_the_converter_says_goes_to_llama_cpps_log(capfd: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "string", "pattern": "^(?=a)$"}
    schema_grammar(schema)
    assert capfd.readouterr().err == ""  # what it ignores is named otherwise
    with logged("warn"):
        schema_grammar(schema)
    assert "JSON schema conversion was incomplete: pattern ^(?=a)$ is not supported" in capfd.readouterr().err


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_schema_is_followed_or_named_with_tools_and_without(name: str) -> None:
    """Of llama.cpp's templates 7 have no place for it, and 19 none beside tools that may be called."""
    template = ChatTemplate(None, TEMPLATES[name])
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    schema = {"type": "object", "properties": {"found": {"type": "null"}}, "required": ["found"]}

    def made(**options: Any) -> ChatPrompt:
        params = ChatParams(json_schema=schema, strict_schemas=False, **options)
        return template.render([{"role": "user", "content": "a"}], params)

    tools = [{"type": "function", "function": function}]
    for prompt in (made(), made(tools=tools), made(tools=tools, tool_choice="none")):
        assert ("found" in (prompt.grammar or "")) != bool(prompt.ignored)
    grammar = made(tools=tools, tool_choice="required").grammar
    assert "look" in grammar if grammar else not template.caps["supports_tool_calls"]


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
def test_answers_and_tools_have_one_rule() -> None:
    """What a grammar cannot follow is refused, or named by the prompt if schemas are not strict."""
    loose = {"type": "object", "properties": {"x": {"type": "number", "multipleOf": 2}, "y": {"pattern": "(?=a)"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": loose}}
    template = ChatTemplate(None, TEMPLATES["Qwen-Qwen2.5-7B-Instruct.jinja"])
    messages = [{"role": "user", "content": "a"}]
    asked: list[dict[str, Any]] = [{"json_schema": loose}, {"tools": [tool], "tool_choice": "required"}]
    for params, name in zip(asked, ("json_schema", "parameters of tools"), strict=True):
        with pytest.raises(
            InvalidParameter, match=f"^{name} must be a schema that .* know multipleOf at #/properties/x"
        ):
            template.render(messages, ChatParams(**params))
        ignored = template.render(messages, ChatParams(**params, strict_schemas=False)).ignored
        assert ignored[0].startswith("multipleOf at #/properties/x") and ignored[1].startswith(
            "pattern at #/properties/y"
        )
    assert template.render(messages).ignored == ()


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "A", "description": "b", "default": 3, "examples": [1], "type": "integer", "format": "int32"},
        {"type": ["string", "null"], "maxLength": 3},
        {"type": "array", "items": {"type": "null"}, "uniqueItems": False, "minLength": 3},
        {"$schema": "x", "$defs": {"unused": {}}, "type": "boolean", "x-own": {"minimum": 1}},
        {"type": ["integer", "null"], "minimum": 1, "allOf": []},
        {"enum": [{"not": 1}], "default": {"not": 1}},
        {"pattern": r"^(?:[a-z_]{2,3}\.|-|\d?)*$".replace(r"\d", "[0-9]")},
        {
            "type": "object",
            "properties": {"not": {"type": "string"}},
            "required": ["not"],
            "additionalProperties": True,
        },
    ],
)
def test_what_constrains_nothing_is_let_through(schema: object) -> None:
    assert "root ::=" in grammar_of_schema(schema)  # type: ignore[arg-type]


def chained(n: int, end: object) -> dict[str, object]:
    """References that lead to references, n of them, and to `end`."""
    links: dict[str, object] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(n)}
    return {"$ref": "#/$defs/0", "$defs": {**links, str(n): end}}


WITHOUT_END = [
    {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    chained(5_000, {"type": "integer"}),
]


@pytest.mark.parametrize("schema", WITHOUT_END, ids=["ring", "two", "chain"])
def test_a_schema_without_end_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match="nested too deeply, or without end"):
        grammar_of_schema(schema)


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize("schema", WITHOUT_END, ids=["ring", "two", "chain"])
def test_a_tool_whose_schema_has_no_end_is_refused(schema: dict[str, object]) -> None:
    tools = [{"type": "function", "function": {"name": "a", "parameters": schema}}]
    template = ChatTemplate(None, TEMPLATES["Qwen-Qwen3-0.6B.jinja"])
    with pytest.raises((InvalidParameter, ModelError), match="nested too deeply, or without end"):
        template.render([{"role": "user", "content": "a"}], ChatParams(tools=tools))


def of_optional(n: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}}


def test_many_optional_properties_take_few_steps() -> None:
    assert grammar_of_schema(of_optional(1000)).count("-rest ::=") == 999
    assert lib.pymtp_chat_steps() < 1_000_000  # llama.cpp looks at each as often as there are others


@pytest.mark.parametrize("n", [20, 390])
def test_references_may_lead_to_references(n: int) -> None:
    assert "integer" in grammar_of_schema(chained(n, {"type": "integer"}))


def nested(n: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


def test_the_levels_of_a_schema_are_counted_wherever_it_comes_from() -> None:
    def tool(schema: dict[str, object]) -> ChatParams:
        return ChatParams(tools=[{"type": "function", "function": {"name": "a", "parameters": schema}}])

    template, messages = ChatTemplate(None, "chatml"), [{"role": "user", "content": "a"}]
    assert "integer" in grammar_of_schema(nested(390))
    template.render(messages, tool(nested(390)))
    with pytest.raises(InvalidParameter, match="^json_schema must be .*nested too deeply"):
        grammar_of_schema(nested(500))
    with pytest.raises(InvalidParameter, match="^messages and tools must be .*nested too deeply"):
        template.render(messages, tool(nested(500)))


def test_a_pattern_needs_no_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file systems are read-only, where Python finds no folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert "root" in grammar_of_schema({"type": "string", "pattern": "^a+$"})
    with pytest.raises(InvalidParameter, match="pattern at #"):
        grammar_of_schema({"type": "string", "pattern": "a+"})
