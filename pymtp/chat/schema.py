"""JSON schemas for answers: llama.cpp converts them to grammars; what it ignores of them is found here.

Knows schemas as decoded JSON; no grammars but as text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pymtp.binding.library import json_of, lib
from pymtp.errors import InvalidParameter, PymtpError

_IGNORED = {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef", "multipleOf", "patternProperties"}
_IGNORED |= {"propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas"}
_IGNORED |= {"dependencies", "unevaluatedProperties", "contains", "minContains", "maxContains", "uniqueItems"}
_IGNORED |= {"additionalItems", "unevaluatedItems"}
"""Keywords that llama.cpp's converter passes over, though JSON Schema does not."""
_INSIDE = {"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"}
_NAMED = {"properties", "$defs", "definitions"}
"""Keywords that hold schemas; these under names."""
_FORMATS = {"date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"}
_REPEATED = r"(?:[*+?]|\{[\d,]+\})?"
_PATTERN = re.compile(rf"\^(?:\((?:\?:)?|\||(?:[\w )/:;,@#%&=<>!~'`-]|\\[][^$.|(){{}}*+?]|\[[\w.-]+\]){_REPEATED})*\$")
"""Patterns that it follows. Others are any string to it, or allow what is no JSON: dots, quotes and negated classes."""
_REPETITIONS_MAX = 2000
"""The most repetitions that llama.cpp's grammars limit: they ignore a larger number."""
_PATH_MAX = 200


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """The GBNF of a JSON schema, given as JSON text or as decoded JSON, as llama-server makes it.

    Raises InvalidParameter for what is not a schema, or says what the grammar would not.
    """
    _, gbnf, ignored = schema_grammar(schema)
    refuse_ignored("json_schema", ignored)
    return gbnf


def schema_grammar(schema: str | Mapping[str, Any]) -> tuple[Mapping[str, Any], str, list[str]]:
    """The decoded JSON of a schema, its grammar, and what of it the grammar does not follow, each with its place.

    Raises InvalidParameter for what is not a schema.
    """
    schema = _decoded(schema)
    try:
        gbnf = json_of(str, lib.pymtp_schema_to_grammar, json.dumps(schema).encode())
    except PymtpError as error:
        why = str(error).removeprefix("JSON schema conversion failed: ")  # it quotes the schema
        why = why if len(why) <= 300 else f"{why[:150]} ... {why[-150:]}"
        raise InvalidParameter("json_schema", f"a schema that can be turned into a grammar ({why})") from None
    return schema, gbnf, ignored_of(schema)


def refuse_ignored(name: str, ignored: Sequence[str]) -> None:
    """Raise InvalidParameter about the parameter `name` if there is anything."""
    if ignored:
        fix = "leave it out, or set strict_schemas=False in ChatParams"
        raise InvalidParameter(name, f"a schema that grammars can follow: they cannot know {ignored[0]}; {fix}")


def _decoded(schema: str | Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        value = json.loads(schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False))
    except RecursionError:
        raise InvalidParameter("json_schema", "valid JSON that is not nested so deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidParameter("json_schema", f"valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidParameter("json_schema", "a JSON object", value=str(schema)[:60])
    return value


def ignored_of(schema: Any) -> list[str]:
    """Keywords of a schema that llama.cpp's converter does not follow, wherever they stand, each with its place."""
    ahead: list[tuple[Any, str]] = [(schema, "#")]
    ignored: list[str] = []
    while ahead:
        value, path = ahead.pop()
        inside: list[tuple[object, Any]] = []
        if isinstance(value, list):
            inside += enumerate(value)
        elif isinstance(value, Mapping):
            ignored += (f"{key} at {path}" for key in value if _is_ignored(key, value))
            inside += ((key, value[key]) for key in value if key in _INSIDE)
            for key in _NAMED & value.keys():
                inside += ((f"{key}/{name}", one) for name, one in _mapping(value[key]).items())
        ahead += ((one, f"{path}/{name}"[:_PATH_MAX]) for name, one in reversed(inside))
    return ignored


def _is_ignored(key: str, schema: Mapping[str, Any]) -> bool:
    value, kind = schema[key], schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return "integer" not in kinds or (isinstance(value, (int, float)) and abs(value) >= 2**63)
    if key == "format":
        return kinds[:1] in ([None], ["string"]) and str(value) not in _FORMATS
    if key == "$ref":  # it has one rule for all that have the same ASCII
        return not str(value).isascii()
    if key == "pattern":
        return not _PATTERN.fullmatch(str(value))
    if key in ("maxItems", "maxLength"):
        return isinstance(value, int) and value > _REPETITIONS_MAX
    if key == "required" and isinstance(value, list):
        return not {str(name) for name in value} <= _mapping(schema.get("properties")).keys()
    if key == "allOf" and isinstance(value, list):
        return not all(_mapping(part).keys() & {"$ref", "properties", "enum"} for part in value)
    return key in _IGNORED and value is not False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
