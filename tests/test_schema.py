"""JSON schemas: the grammar is that of llama.cpp's own converter, and what it would ignore is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llama_archive import SchemaCase, schema_cases, texts
from pymtp import ChatParams, ChatPrompt, ChatTemplate
from pymtp.binding.library import lib
from pymtp.chat.schema import grammar_of_schema, schema_grammar
from pymtp.errors import InvalidParameter, ModelError

TEMPLATES = texts("models/templates", ".jinja")

CASES = schema_cases()

IGNORED = {
    "array with empty items and prefixItems": "prefixItems beside items",
    "unanchored regexp": r"not anchored",
    "regexp with unsupported shorthand": r"unsupported escape: \\w",
    "unsupported regexp in a property": "unsupported group syntax",
    "mix of allOf, anyOf and $ref (similar to https://json.schemastore.org/tsconfig.json)": "anyOf in the allOf",
}
"""Cases in which llama.cpp makes a grammar of a part of the schema, and what it passes over."""


MENDED = {
    r'root ::= "\"" ("\"") "\""': r'root ::= "\"" ("\\\"") "\""',
    r"dot ::= [^\x0A\x0D]": r'dot ::= [^"\\\x00-\x1F\u2028\u2029] | [\\] ["\\bft]',
    '| [^"': r'| [^"\\\x7F\x00-\x1F',
    'root ::= ("-"? integral-part)\nroot0 ::=': "root ::=",
    r'-kv ::= "\"\"" space ":" space root': r'-kv ::= "\"\"" space ":" space integer',
}
"""What llama.cpp expects allows texts that are no JSON, or not of the schema; and what is allowed instead."""


def trimmed(grammar: str) -> str:
    """As llama.cpp's test compares them: without indentation."""
    return re.sub(r"(^|\n)[ \t]+", r"\1", grammar.strip())


def mended(grammar: str) -> str:
    for wrong, right in MENDED.items():
        grammar = grammar.replace(wrong, right)
    return grammar


@pytest.mark.skipif(not CASES, reason="llama.cpp's tests are not at hand (build/ holds no archive): run make")
def test_all_cases_of_llama_cpps_own_test_are_found() -> None:
    assert len(CASES) > 70
    assert IGNORED.keys() <= {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_grammar_is_what_llama_cpps_own_test_expects(case: SchemaCase) -> None:
    if case.name in IGNORED:
        with pytest.raises(InvalidParameter, match=IGNORED[case.name]):
            grammar_of_schema(case.schema)
    elif case.grammar is None:
        with pytest.raises(InvalidParameter, match="^json_schema must be a schema that can be turned into a grammar"):
            grammar_of_schema(case.schema)
    else:
        assert trimmed(grammar_of_schema(case.schema)) == mended(trimmed(case.grammar))


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "object", "required": ["name"]}, "required 'name' without a property of that name at #;"),
        ({"type": "object", "required": [{}]}, "required {} without a property of that name at #;"),
        ({"properties": {"a": {"type": "number", "minimum": 0.5}}}, "minimum at #/properties/a;"),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": 0}, "exclusiveMinimum beside minimum"),
        ({"type": "integer", "multipleOf": 5}, "multipleOf"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": 1}, "exclusiveMinimum beside minimum"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "minItems": 1, "maxItems": 2},
            "maxItems beside a list of prefixItems",
        ),
        ({"type": "object", "patternProperties": {"^a$": {}}}, "patternProperties"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"type": "string", "format": "idn-email"}, "the format 'idn-email'"),
        ({"type": "string", "pattern": "^a$", "maxLength": 3}, "maxLength beside pattern"),
        ({"anyOf": [{"type": "null"}], "minLength": 3}, "minLength beside anyOf"),
        ({"anyOf": [{"not": {"type": "null"}}]}, "not at #/anyOf/0;"),
        ({"$defs": {"a": {"minimum": 1}}, "items": {"$ref": "#/$defs/a"}}, "minimum at #/\\$defs/a;"),
        ({"type": ["string", "number"], "multipleOf": 3}, "multipleOf"),
        ({"type": "object", "properties": {}, "allOf": [{}]}, "allOf"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "string", "maxLength": 2001}, "maxLength above 2000 at #;"),
        ({"type": "string", "pattern": "(?=a)"}, "pattern \\(\\?=a\\) \\(not anchored"),
        ({"type": "array", "items": {}, "maxItems": 10**9}, "maxItems above 2000"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "string in the allOf of root;"),
        (
            {"items": {"allOf": [{"$ref": "#/$defs/a"}] * 2}, "$defs": {"a": {"const": 1}}},
            "const in the allOf of item;",
        ),
        ({"allOf": [{"properties": {"a": {}}}] * 2}, "a second property a in the allOf of root;"),
        ({"allOf": [{"properties": {}, "additionalProperties": {"type": "null"}}, {}]}, "additionalProperties in the"),
        ({"allOf": [{"enum": [1]}, {}]}, "enum in the allOf of root;"),
        (
            {
                "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {}}}],
                "$defs": {"a": {"properties": {}, "additionalProperties": False}},
            },
            "additionalProperties beside the properties of other parts at #/allOf/0;",
        ),
    ],
)
def test_what_a_grammar_would_ignore_is_refused_with_its_place(schema: Any, what: str) -> None:
    refusal = f"must be a schema that grammars can follow: they cannot know .*{what}"
    with pytest.raises(InvalidParameter, match=f"^json_schema {refusal}"):
        grammar_of_schema(schema)
    assert re.search(what, f"{schema_grammar(schema).ignored[0]};")


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
        assert ignored[0].startswith("multipleOf at #/properties/x") and "pattern (?=a)" in ignored[1]
    assert template.render(messages).ignored == ()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 10**22},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "number", "exclusiveMinimum": 1, "maximum": 0.5},
        {"type": "string", "minLength": 3, "maxLength": 2},
    ],
)
def test_what_nothing_fits_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="^json_schema must be one "):
        schema_grammar(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "A", "description": "b", "default": 3, "examples": [1], "type": "integer", "format": "int32"},
        {"type": ["string", "null"], "maxLength": 3},
        {"type": "array", "items": {"type": "null"}, "uniqueItems": False, "minLength": 3},
        {"$schema": "x", "$defs": {"unused": {"not": {}}}, "type": "boolean", "x-own": {"minimum": 1}},
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
    chained(50_000, {"type": "integer"}),
]


@pytest.mark.parametrize("schema", WITHOUT_END, ids=["ring", "two", "chain"])
def test_a_schema_without_end_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match="nested so deeply|nested too deeply, or without end"):
        grammar_of_schema(schema)


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize("schema", WITHOUT_END, ids=["ring", "two", "chain"])
def test_a_tool_whose_schema_has_no_end_is_refused(schema: dict[str, object]) -> None:
    tools = [{"type": "function", "function": {"name": "a", "parameters": schema}}]
    template = ChatTemplate(None, TEMPLATES["Qwen-Qwen3-0.6B.jinja"])
    with pytest.raises((InvalidParameter, ModelError), match="nested so deeply|nested too deeply, or without end"):
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
    with pytest.raises(InvalidParameter, match="^json_schema must be .* at most 400 levels"):
        grammar_of_schema(nested(400))
    with pytest.raises(InvalidParameter, match="^tools must be .* at most 400 levels"):
        template.render(messages, tool(nested(400)))


def test_a_pattern_needs_no_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file systems are read-only, where Python finds no folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert "root" in grammar_of_schema({"type": "string", "pattern": "^a+$"})
    with pytest.raises(InvalidParameter, match="not anchored"):
        grammar_of_schema({"type": "string", "pattern": "a+"})
