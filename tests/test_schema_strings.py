"""What grammars of JSON schemas allow: JSON, whatever is in their strings, within the bounds of numbers.

Texts are drawn from a grammar by the sampler, from random logits in which what JSON escapes is likely.
"""

from __future__ import annotations

import ipaddress
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_archive import texts
from pymtp import ChatParams, ChatTemplate
from pymtp.binding.arrays import Logits
from pymtp.chat.schema import grammar_of_schema
from pymtp.errors import InvalidParameter, PymtpError
from pymtp.loader import Weights
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.chain import Sampler
from pymtp.sampling.params import SamplingParams
from pymtp.sampling.rules import AnswerRules

TEMPLATES = texts("models/templates", ".jinja")
QUESTION = [{"role": "user", "content": "Hello"}]
ODD = ['"', "\\\\", "\\n", "\\t", "\\x01", "\\x22", "\\u005C", "\\.", "/", "a", "é", "]", "\\]", "-"]
"""Characters of patterns."""
CLASSES = [
    ".",
    "[^a]",
    '[^"]',
    "[^\\\\]",
    "[ -~]",
    "[!-#]",
    '["\\\\]',
    "[Z-^]",
    "[^ -~]",
    "[\\n-a]",
    "[a-z]",
    "[^\\n]",
    "[^]",
]


@pytest.fixture(scope="module")
def vocabulary(embedded_model: Path) -> Iterator[Vocabulary]:
    from pymtp.gguf.facts import model_facts
    from pymtp.loading.params import ModelParams

    weights = Weights(model_facts(embedded_model), ModelParams(), with_heads=False)
    yield Vocabulary(weights.model, None)
    weights.close()


def random_pattern(chance: random.Random, depth: int = 2) -> str:
    """Without ^ and $."""
    parts = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        if depth and kind < 0.2:
            parts.append("(" + "|".join(random_pattern(chance, depth - 1) for _ in range(2)) + ")")
        else:
            parts.append(chance.choice(CLASSES if kind < 0.6 else ODD))
        parts[-1] += chance.choice(["", "", "", "+", "?", "{2}", "{1,3}", "+?"])
    return "".join(parts)


def random_schema(chance: random.Random, depth: int = 2) -> dict[str, Any]:
    kind = chance.choice(["pattern", "pattern", "string", "enum", "object", "array"][: 6 if depth else 4])
    if kind == "pattern":
        return {"type": "string", "pattern": f"^{random_pattern(chance)}$"}
    if kind == "string":
        return {"type": "string", "maxLength": chance.randint(1, 4)}
    if kind == "enum":
        return {"enum": [chance.choice(['a"', "\\", "\n", "\x01é", 3, None]), True]}
    if kind == "array":
        return {"type": "array", "items": random_schema(chance, depth - 1), "maxItems": 2}
    names = chance.sample(['"', "\\", "a", "ab", "a\\", "]", "^x", "\n", "é", "-"], 2)
    properties = {name: random_schema(chance, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "additionalProperties": {"type": "integer"}}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is of such a schema, of those that are made here."""
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "string":
        pattern = schema.get("pattern", "^(?:.|\\s)*$").replace("[^]", "(?:.|\\s)")
        return (
            isinstance(value, str)
            and bool(re.fullmatch(pattern[1:-1], value))
            and len(value) <= schema.get("maxLength", 10**9)
        )
    if schema["type"] == "integer":
        return isinstance(value, int)
    if schema["type"] == "array":
        return isinstance(value, list) and len(value) <= 2 and all(fits(one, schema["items"]) for one in value)
    properties = schema["properties"]
    return isinstance(value, dict) and all(
        fits(one, properties.get(name, schema["additionalProperties"])) for name, one in value.items()
    )


class Drawn:
    """Draws texts of a grammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [vocabulary.special_piece(token) for token in range(vocabulary.size)]
        self._vocabulary, self._pieces = vocabulary, pieces
        self._odd = np.array([5.0 * any(c in b'"\\\x01\n\t]' for c in piece[:3]) for piece in pieces], np.float32)
        self._odd -= np.array([20.0 * (piece.isspace() and b"\n\n" not in piece) for piece in pieces], np.float32)
        ends = [piece.strip() in (b'"', b"}", b"]", b'"}', b'"]') for piece in pieces]
        self._ends = np.array([30.0 * is_end for is_end in ends], np.float32)
        self._ends[list(vocabulary.end_of_generation)] = 40.0

    def text(self, grammar: str, seed: int, prefill: str = "", n_free: int = 12) -> bytes | None:
        """None: it has not come to an end, or is one that can be followed in too many ways."""
        params = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=seed)
        sampler = Sampler(params, self._vocabulary, rules=AnswerRules(grammar, prefill=prefill))
        noise, text = np.random.default_rng(seed), b""
        for i in range(200):
            logits: Logits = noise.normal(scale=2, size=self._vocabulary.size).astype(np.float32)
            try:
                token = sampler.sample(logits + self._odd + self._ends * (i > n_free))
            except PymtpError as error:
                assert "too many ways" in str(error)
                return None
            if token in self._vocabulary.end_of_generation:
                return text
            text += self._pieces[token]
        return None


@pytest.mark.parametrize("n_schemas", [20, pytest.param(600, marks=pytest.mark.slow)])
def test_what_a_grammar_allows_is_json_that_fits_its_schema(vocabulary: Vocabulary, n_schemas: int) -> None:
    drawn, n_texts = Drawn(vocabulary), 0
    for seed in range(n_schemas):
        schema = random_schema(random.Random(seed))
        try:
            grammar = grammar_of_schema(schema)
        except InvalidParameter:
            continue
        for i in range(4):
            text = drawn.text(grammar, 10 * seed + i)
            if text is None:
                continue
            n_texts += 1
            shown = text.decode(errors="replace")  # as a text is shown: a grammar lets bytes through that are no UTF-8
            try:
                value = json.loads(shown)
            except ValueError as error:
                raise AssertionError(f"{schema} allows {shown!r}: {error}\n{grammar}") from None
            assert "\ufffd" in shown or fits(value, schema), f"{schema} allows {shown!r}\n{grammar}"
    assert n_texts > 2 * n_schemas


def test_each_reference_and_name_has_a_rule_of_its_own(vocabulary: Vocabulary) -> None:
    """Also where the same ASCII is left of them; the name of the root is empty."""
    names = ["颜色", "大小", "A_B", "A-B"]
    properties: dict[str, Any] = {name: {"$ref": f"#/$defs/{name}"} for name in names} | {"": {"enum": [""]}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    grammar = grammar_of_schema(schema | {"$defs": {name: {"enum": [name]} for name in names}})
    text = Drawn(vocabulary).text(grammar, seed=1)
    assert text is not None and json.loads(text) == {name: name for name in properties}


@pytest.mark.parametrize("inner", [{"enum": [7]}, {"$ref": "#/$defs/a"}, {"allOf": [{"anyOf": [{"const": 7}]}]}])
def test_an_allof_of_one_schema_is_that_schema(inner: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Tools that generate schemas write references to enums so."""
    grammar = grammar_of_schema({"allOf": [inner], "$defs": {"a": {"const": 7}}})
    assert Drawn(vocabulary).text(grammar, seed=1) == b"7"


NUMBERS = ["0", "-0", "0.0", "0.5", "1", "1.0", "1.5", "2", "3", "3.001", "9.999", "10", "10.5", "100", "12345.678"]
NUMBERS += ["-" + number for number in NUMBERS[3:]]
BOUNDS: list[dict[str, float]] = [
    {"minimum": 0},
    {"exclusiveMinimum": 0},
    {"maximum": 0},
    {"exclusiveMaximum": 0},
    {"minimum": 0, "maximum": 1},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"minimum": 1, "maximum": 10},
    {"minimum": -10, "maximum": 10},
    {"exclusiveMinimum": -10, "exclusiveMaximum": -1},
    {"exclusiveMinimum": -1, "maximum": 100.0},
    {"minimum": 3, "maximum": 3},
    {"minimum": -100},
    {"maximum": 3},
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_numbers_stay_within_their_bounds(vocabulary: Vocabulary, bounds: dict[str, float]) -> None:
    grammar = grammar_of_schema({"type": "number", **bounds})
    least, most = bounds.get("minimum", -1e9), bounds.get("maximum", 1e9)
    above, below = bounds.get("exclusiveMinimum", -1e9), bounds.get("exclusiveMaximum", 1e9)
    fitting = {text for text in NUMBERS if least <= float(text) <= most and above < float(text) < below}
    allowed = {text for text in NUMBERS if allows(vocabulary, grammar, text)}
    assert allowed <= fitting
    assert fitting - allowed <= {"-0"}


def allows(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    logits = np.zeros(vocabulary.size, np.float32)
    logits[list(vocabulary.end_of_generation)] = 100
    try:
        sampler = Sampler(SamplingParams(temperature=0), vocabulary, rules=AnswerRules(grammar, prefill=text))
        return sampler.sample(logits) in vocabulary.end_of_generation
    except PymtpError:
        return False


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (
            "email",
            ["a@b.de", "first.last+x@mail.example-1.org"],
            ["a", "a@b", "@b.de", "a b@c.de", "a@-b.de", ".a@b.de"],
        ),
        ("ipv4", ["0.0.0.0", "192.168.1.255"], ["1.2.3", "256.1.1.1", "01.1.1.1", "1.1.1.1."]),
        (
            "uri",
            ["https://a.example/b?c=d#e", "mailto:a@b.de", "file:///tmp/a"],
            ["a", "//a.example", "https://a b", "1:a"],
        ),
    ],
)
def test_strings_have_the_format_of_their_schema(
    vocabulary: Vocabulary, kind: str, right: list[str], wrong: list[str]
) -> None:
    grammar = grammar_of_schema({"type": "string", "format": kind})
    texts = [*right, *wrong]
    assert [text for text in texts if allows(vocabulary, grammar, f'"{text}"')] == right
    if kind == "ipv4":
        assert all(ipaddress.ip_address(text) for text in right)


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize("pattern", ['^a"b$', "^\\\\$", "^.{1,3}$", "^[^a]{2}$", "^[\\n-a]+$"])
def test_a_call_that_is_required_is_read_whatever_its_pattern(vocabulary: Vocabulary, pattern: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    params = ChatParams(tools=[tool], tool_choice="required", parallel_tool_calls=False)
    prompt = ChatTemplate(None, TEMPLATES["Qwen-Qwen2.5-7B-Instruct.jinja"]).render(QUESTION, params)
    assert prompt.grammar
    drawn, n_calls = Drawn(vocabulary), 0
    for seed in range(8):
        begin = "<tool_call>\n"
        text = drawn.text(prompt.grammar, seed, prompt.generation_prompt + begin, n_free=0)
        if text is None:
            continue
        parser = prompt.parse()
        parser.finish(begin + text.decode(errors="replace"))
        call = parser.message.tool_calls[0]
        value = json.loads(call.arguments)["x"]
        assert "\ufffd" in value or re.fullmatch(pattern[1:-1], value)
        n_calls += 1
    assert n_calls > 1


CITY = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Rom"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("weather", "clock")]
NAMED: Any = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"city": "Ulm"}}\n</tool_call>\n'


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": True}, [1, 2]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [1]),
        ({"tool_choice": NAMED}, [1]),
        ({"tool_choice": NAMED, "parallel_tool_calls": True}, [1]),
        ({"parallel_tool_calls": False}, [1]),
    ],
)
def test_one_call_is_one(vocabulary: Vocabulary, asked: dict[str, Any], allowed: list[int]) -> None:
    template = ChatTemplate(None, TEMPLATES["Qwen-Qwen2.5-7B-Instruct.jinja"])
    prompt = template.render(QUESTION, ChatParams(tools=TOOLS, **asked))
    assert prompt.grammar
    begun = "" if prompt.triggers else prompt.generation_prompt
    assert [n for n in (1, 2) if allows(vocabulary, prompt.grammar, begun + n * CALL)] == allowed
