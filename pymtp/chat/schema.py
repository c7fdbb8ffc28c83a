"""JSON schemas for answers: llama.cpp converts them to grammars; what it would ignore is refused here.

Knows schemas as decoded JSON and llama.cpp's order of looking at their keywords; no grammars but as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from typing import Any

from pymtp.binding.library import lib
from pymtp.binding.log import captured_stderr
from pymtp.chat.native import Failed, Refused, json_of
from pymtp.errors import InvalidParameter

_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_KNOWN = {"properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"}
_KNOWN |= {"pattern", "format", "minLength", "maxLength"} | _LIMITS
"""What llama.cpp looks at where the type is the keyword's own."""

_IGNORED = {
    "object": {"patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"},
    "array": {"contains", "minContains", "maxContains", "uniqueItems", "additionalItems", "unevaluatedItems"},
    "integer": {"multipleOf"},
    "number": {"multipleOf"} | _LIMITS,
}
"""What it passes over, though JSON Schema does not, by type."""

_NEVER = {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"}
_COMBINED = {"$ref", "oneOf", "anyOf", "allOf", "const", "enum"}
_ALL = _KNOWN.union(*_IGNORED.values()) | _NEVER | _COMBINED
_REPETITIONS_MAX = 2000
"""The most repetitions that llama.cpp's grammars limit: they ignore a larger number."""
_DEPTH_MAX = 400
"""Levels of a schema. 20 references to each other are deep already, and llama.cpp's stack is enough for about 800."""
_VALUES_MAX = 100_000
_DEFINITIONS = {"$defs", "definitions"}
_FORMATS = {"date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"}

_Place = tuple[Any, str]
"""A schema, and the path to it."""


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """The GBNF of a JSON schema, given as JSON text or as decoded JSON, as llama-server makes it.

    Raises InvalidParameter for what is not a schema, or says what the grammar would not.
    """
    return checked_schema(schema)[1]


def checked_schema(schema: str | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The decoded JSON of a schema, and its GBNF. Raises InvalidParameter: see grammar_of_schema."""
    schema = _decoded(schema)
    check_size(schema, "json_schema")
    _check(schema)
    data = json.dumps(schema).encode()
    try:
        if b'"pattern"' not in data:
            return schema, str(json_of(lib.pymtp_schema_to_grammar, data))
        # of a pattern that it cannot convert it says so there, and takes any string for one
        with captured_stderr() as lines:
            grammar = str(json_of(lib.pymtp_schema_to_grammar, data))
            said = " ".join(lines())
    except (Refused, Failed) as error:
        raise _unusable(str(error).removeprefix("JSON schema conversion failed: ")) from None
    if said:
        raise _unusable(said.removeprefix("WARNING: JSON schema conversion was incomplete: "))
    return schema, grammar


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


def _unusable(why: str) -> InvalidParameter:
    if len(why) > 300:  # it quotes the schema
        why = f"{why[:150]} ... {why[-150:]}"
    return InvalidParameter("json_schema", f"a schema that can be turned into a grammar ({why})")


def check_size(schema: Any, name: str) -> None:
    """Raise InvalidParameter for a schema of too many levels, a reference being one, or of too many values."""
    seen: set[str] = set()
    level, n_values = [schema], 0
    for _ in range(_DEPTH_MAX):
        below: list[Any] = []
        for value in level:
            if isinstance(value, list):
                below += value
            elif isinstance(value, Mapping):
                below += (inner for key, inner in value.items() if key not in _DEFINITIONS)
                reference = value.get("$ref")
                if isinstance(reference, str) and reference not in seen:
                    seen.add(reference)
                    below.append(_target(schema, reference))
        level = below
        n_values += len(level)
        if n_values > _VALUES_MAX:
            raise _too_large(name)
        if not level:
            return
    raise InvalidParameter(name, f"a schema that is not nested so deeply (of at most {_DEPTH_MAX} levels)")


def _too_large(name: str) -> InvalidParameter:
    return InvalidParameter(name, f"a schema of at most {_VALUES_MAX} values")


def _target(root: Any, reference: str) -> Any:
    """What a reference leads to."""
    target = root
    for part in reference.split("/")[1:]:
        if isinstance(target, Mapping):
            target = target.get(part)
        elif isinstance(target, list) and part.isdigit() and int(part) < len(target):
            target = target[int(part)]
    return target


def _check(root: Mapping[str, Any]) -> None:
    """Walk a schema as llama.cpp's converter does, and refuse the keywords that it passes over.

    What is malformed is left to the converter. Not by recursion, which Python limits.
    """
    seen: set[str] = set()  # references
    ahead: list[_Place] = [(root, "#")]
    n_values = 0
    while ahead:
        n_values += 1
        if n_values > _VALUES_MAX:  # a list of types looks at the same again
            raise _too_large("json_schema")
        schema, path = ahead.pop()
        if not isinstance(schema, Mapping):
            continue
        if "$ref" in schema:
            _refuse(schema, _ALL - {"$ref"}, path, "$ref")
            reference = schema["$ref"]
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                ahead.append((_target(root, reference), reference))
        else:
            ahead += reversed(_inside(schema, path))


def _inside(schema: Mapping[str, Any], path: str) -> list[_Place]:
    """Check the keywords of one schema, which is no reference; returns the schemas in it, in their order."""
    for key in ("oneOf", "anyOf"):
        if key in schema:
            _refuse(schema, _ALL - {key}, path, key)
            return _numbered(schema[key], f"{path}/{key}")
    kind = schema.get("type")
    if isinstance(kind, list):
        return [({**schema, "type": one}, path) for one in kind]
    for key in ("const", "enum"):
        if key in schema:
            _refuse(schema, _ALL - {key}, path, key)
            return []
    kind = kind or _implied(schema)
    if kind == "allOf" or ("allOf" in schema and kind in ("object", "string") and not _is_object(schema)):
        _refuse(schema, _ALL - {"allOf"}, path, "allOf")
        return _numbered(schema["allOf"], f"{path}/allOf")
    # a keyword of another type says nothing
    _refuse(schema, _ALL if kind == "any" else _NEVER | _COMBINED | _IGNORED.get(str(kind), set()), path)
    if kind == "object":
        return _of_object(schema, path)
    if kind == "array":
        return _of_array(schema, path)
    if kind == "string":
        _check_string(schema, path)
    elif kind == "integer":
        _check_integer(schema, path)
    return []


def _of_object(schema: Mapping[str, Any], path: str) -> list[_Place]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    inside: list[_Place] = []
    if isinstance(properties, Mapping) and isinstance(required, list):
        for name in required:
            if not isinstance(name, str) or name not in properties:
                raise _refusal(path, f"required {name!r} without a property of that name")
        inside += ((value, f"{path}/properties/{name}") for name, value in properties.items())
    return [*inside, (schema.get("additionalProperties"), f"{path}/additionalProperties")]


def _of_array(schema: Mapping[str, Any], path: str) -> list[_Place]:
    _check_length(schema, "minItems", "maxItems", path)
    if "items" in schema and "prefixItems" in schema:
        raise _refusal(path, "prefixItems beside items")
    key = "items" if "items" in schema else "prefixItems"
    items = schema.get(key)
    if not isinstance(items, list):
        return [(items, f"{path}/{key}")]
    _refuse(schema, {"minItems", "maxItems"}, path, f"a list of {key}")
    return _numbered(items, f"{path}/{key}")


def _check_string(schema: Mapping[str, Any], path: str) -> None:
    _check_length(schema, "minLength", "maxLength", path)
    if "format" in schema and str(schema["format"]) not in _FORMATS:
        raise _refusal(path, f"the format {schema['format']!r} (there are {', '.join(sorted(_FORMATS))})")
    given = [key for key in ("pattern", "format") if key in schema]
    lengths = [key for key in ("minLength", "maxLength") if key in schema]
    if len(given) > 1 or (given and lengths):
        raise _refusal(path, f"{(given[1:] or lengths)[0]} beside {given[0]}")


def _check_integer(schema: Mapping[str, Any], path: str) -> None:
    for a, b in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if a in schema and b in schema:
            raise _refusal(path, f"{a} beside {b}")
    if beyond := next((key for key in _LIMITS if abs(_bound(schema, key, 0)) >= 2**63), None):
        raise _refusal(path, f"a {beyond} of more than 64 bits")
    least = max(_bound(schema, "minimum", -math.inf), _bound(schema, "exclusiveMinimum", -math.inf) + 1)
    most = min(_bound(schema, "maximum", math.inf), _bound(schema, "exclusiveMaximum", math.inf) - 1)
    if least > most:
        raise InvalidParameter("json_schema", f"one that something fits: at {path} no integer is allowed")


def _numbered(schemas: object, path: str) -> list[_Place]:
    return [(one, f"{path}/{i}") for i, one in enumerate(schemas if isinstance(schemas, list) else ())]


def _refuse(schema: Mapping[str, Any], keywords: Container[str], path: str, beside: str = "") -> None:
    ignored = [key for key in schema if key in keywords and schema[key] is not False]
    if ignored:
        raise _refusal(path, ignored[0] + (f" beside {beside}" if beside else ""))


def _bound(schema: Mapping[str, Any], key: str, missing: float) -> float:
    value = schema.get(key, missing)
    return value if isinstance(value, (int, float)) else missing


def _check_length(schema: Mapping[str, Any], least: str, most: str, path: str) -> None:
    limit = _bound(schema, most, 0)
    if limit > _REPETITIONS_MAX:
        raise _refusal(path, f"{most} above {_REPETITIONS_MAX}")
    if most in schema and limit < _bound(schema, least, 0):
        raise InvalidParameter("json_schema", f"one that something fits: at {path} {most} is below {least}")


def _implied(schema: Mapping[str, Any]) -> str:
    """What llama.cpp takes a schema without a type for."""
    if _is_object(schema):
        return "object"
    if "allOf" in schema:
        return "allOf"
    if schema.keys() & {"items", "prefixItems"}:
        return "array"
    if schema.keys() & {"pattern", "minLength", "maxLength"} or str(schema.get("format")) in _FORMATS:
        return "string"
    return "any"


def _is_object(schema: Mapping[str, Any]) -> bool:
    return "properties" in schema or schema.get("additionalProperties", True) is not True


def _refusal(path: str, what: str) -> InvalidParameter:
    return InvalidParameter("json_schema", f"a schema that grammars can follow: at {path} they cannot know {what}")
