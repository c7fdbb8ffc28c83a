"""Damaged JSON schemas and grammars."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pymtp import PymtpError
from pymtp.chat.schema import grammar_of_schema
from pymtp.sampling.rules import check_grammar

from .fuzzer import NUMBERS, ODD_VALUES, Fuzzer, damaged_json, damaged_text, random_json

_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 1, "maxLength": 9}, "b": {"$ref": "#/$defs/x"}},
        "required": ["a"],
        "additionalProperties": {"type": "integer", "minimum": -5, "maximum": 500},
        "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "maxItems": 3}},
    },
    {"anyOf": [{"type": "string", "pattern": "^[a-z]{2,5}(x|y)?$"}, {"const": 5}, {"enum": ["a", None, 1.5]}]},
    {"allOf": [{"properties": {"a": {"type": "number"}}}, {"properties": {"b": {"type": "boolean"}}}]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]},
    {"type": ["string", "integer"], "minimum": 3},
    {"type": "string", "format": "date-time"},
]
_OTHERS: list[Any] = [*ODD_VALUES, *NUMBERS, "string", "object", "array", "integer", "#", "#/$defs/x", "#/a/b", "uuid"]
_OTHERS += ["^(a|b)*$", "^a{0,99999}$", "^" + "(" * 500 + ")" * 500 + "$"]
_OTHERS += ["^[^]]$", "^[z-a]$", "^\\u{1}$", "^a{5,2}$", "^(?:a)$"]
_OTHERS += [{"$ref": "#"}, {"$ref": "#/properties/a"}]
_OTHERS += [{"$ref": "https://example.com/x"}, {"type": "string", "pattern": "^x+$"}]

_GRAMMARS = [
    'root ::= ("yes" | "no")+ end\nend ::= [^a-z\\n]{2,5} "\\x41" | "" # c\n',
    'root ::= item{1,3}\nitem ::= "a" item? | [0-9]*\n',
    'root ::= "é" ws <think> .\nws ::= [ \\t]{0,20}\n',
]
_PIECES = ["::=", "|", "(", ")", "*", "+", "?", "{1,3}", "{99999}"]
_PIECES += ["{3,1}", "{1,999999999}", "[", "]", "[^", "[z-a]", '"', "\\x"]
_PIECES += ["root", "item", "\n", "<[5]>", "!<[99999999999]>", "<a>", ".", "\\uD800", '""', "root ::= root\n", "#"]


class Schemas(Fuzzer):
    """What is made of a schema is a grammar that llama.cpp takes."""

    name = "schemas"

    def __init__(self, folder: Path) -> None:
        self._bases = [*_SCHEMAS, *_of_llama_cpp()]

    def case(self, chance: random.Random) -> Any:
        if chance.random() < 0.1:
            return random_json(chance, 4)
        return damaged_json(chance, chance.choice(self._bases), _OTHERS)

    def run(self, case: Any) -> str:
        try:
            grammar = grammar_of_schema(case)
        except PymtpError:
            return "refused"
        try:
            check_grammar(grammar)
        except PymtpError:
            return "converted, but too large"
        return "converted"


class Grammars(Fuzzer):
    """GBNF, nearly."""

    name = "grammars"

    def __init__(self, folder: Path) -> None:
        pass

    def case(self, chance: random.Random) -> str:
        return damaged_text(chance, chance.choice(_GRAMMARS), _PIECES, 8)

    def run(self, case: str) -> str:
        try:
            check_grammar(case)
        except PymtpError:
            return "refused"
        return "accepted"


def _of_llama_cpp() -> list[Any]:
    """The schemas of llama.cpp's own test, where its archive is at hand."""
    try:
        from llama_archive import schema_cases
    except ImportError:  # native/ is not on the path
        return []
    found = []
    for case in schema_cases():
        try:
            found.append(json.loads(case.schema))
        except ValueError:
            continue
    return [one for one in found if isinstance(one, dict)]
