"""JSON schemas for answers: llama.cpp converts them to grammars; what it would ignore is refused here.

Knows schemas as decoded JSON and llama.cpp's order of looking at their keywords; no grammars but as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
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
"""Of a larger number llama.cpp's grammars make no limit at all."""
_DEPTH_MAX = 400
"""Levels of a schema. 20 references to each other are deep already, and llama.cpp's stack is enough for about 800."""
_VALUES_MAX = 100_000
_DEFINITIONS = {"$defs", "definitions"}
_FORMATS = {"date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"}


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """The GBNF of a JSON schema, given as JSON text or as decoded JSON, as llama-server makes it.

    Raises InvalidParameter for a schema that is none, or that says what the grammar would not.
    """
    return _converted(_checked(decoded(schema)))


def checked_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, if it can be converted. Raises InvalidParameter."""
    _converted(_checked(schema))
    return schema


def decoded(schema: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema as decoded JSON. Raises InvalidParameter."""
    try:
        value = json.loads(schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False))
    except RecursionError:
        raise InvalidParameter("json_schema", "valid JSON that is not nested so deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidParameter("json_schema", f"valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidParameter("json_schema", "a JSON object", value=str(schema)[:60])
    return value


def _converted(schema: Mapping[str, Any]) -> str:
    data = json.dumps(schema).encode()
    try:
        if b'"pattern"' not in data:
            return str(json_of(lib.pymtp_schema_to_grammar, data))
        # of a pattern that it cannot convert it says so there, and takes any string for one
        with captured_stderr() as lines:
            grammar = str(json_of(lib.pymtp_schema_to_grammar, data))
            said = " ".join(lines())
    except (Refused, Failed) as error:
        raise _unusable(str(error).removeprefix("JSON schema conversion failed: ")) from None
    if said:
        raise _unusable(said.removeprefix("WARNING: JSON schema conversion was incomplete: "))
    return grammar


def _unusable(why: str) -> InvalidParameter:
    return InvalidParameter("json_schema", f"a schema that can be turned into a grammar ({why})")


def _checked(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    check_size(schema, "json_schema")
    _Check(schema).run()
    return schema


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


class _Check:
    """Walks a schema as llama.cpp's converter does, and refuses the keywords that it passes over.

    What is malformed is left to the converter.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._seen: set[str] = set()  # references
        self._below: list[tuple[Any, str]] = [(root, "#")]  # of the schema at hand

    def run(self) -> None:
        """Check the schema and those in it, in their order; not by recursion, which Python limits."""
        ahead: list[tuple[Any, str]] = []
        n_values = 0
        while self._below or ahead:
            n_values += 1
            if n_values > _VALUES_MAX:  # a list of types looks at the same again
                raise _too_large("json_schema")
            ahead += reversed(self._below)
            self._below = []
            self._node(*ahead.pop())

    def node(self, schema: Any, path: str) -> None:
        """Check it later."""
        self._below.append((schema, path))

    def _node(self, schema: Any, path: str) -> None:
        if not isinstance(schema, Mapping):
            return
        if "$ref" in schema:
            self._refuse(schema, _ALL - {"$ref"}, path, "$ref")
            self._reference(schema["$ref"])
            return
        kind = schema.get("type")
        for key in ("oneOf", "anyOf"):
            if key in schema:
                self._refuse(schema, _ALL - {key}, path, key)
                self._all(schema[key], f"{path}/{key}")
                return
        if isinstance(kind, list):
            for one in kind:
                self.node({**schema, "type": one}, path)
            return
        for key in ("const", "enum"):
            if key in schema:
                self._refuse(schema, _ALL - {key}, path, key)
                return
        self._typed(schema, kind or _implied(schema), path)

    def _typed(self, schema: Mapping[str, Any], kind: object, path: str) -> None:
        if kind == "allOf" or ("allOf" in schema and kind in ("object", "string") and not _is_object(schema)):
            self._refuse(schema, _ALL - {"allOf"}, path, "allOf")
            self._all(schema["allOf"], f"{path}/allOf")
            return
        # a keyword of another type says nothing
        self._refuse(schema, _ALL if kind == "any" else _NEVER | _COMBINED | _IGNORED.get(str(kind), set()), path)
        if kind == "object":
            self._object(schema, path)
        elif kind == "array":
            self._array(schema, path)
        elif kind == "string":
            self._string(schema, path)
        elif kind == "integer":
            for a, b in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
                if a in schema and b in schema:
                    raise _refusal(path, f"{a} beside {b}")
            if beyond := next((key for key in _LIMITS if abs(_bound(schema, key, 0)) >= 2**63), None):
                raise _refusal(path, f"a {beyond} of more than 64 bits")
            least = max(_bound(schema, "minimum", -math.inf), _bound(schema, "exclusiveMinimum", -math.inf) + 1)
            most = min(_bound(schema, "maximum", math.inf), _bound(schema, "exclusiveMaximum", math.inf) - 1)
            if least > most:
                raise InvalidParameter("json_schema", f"one that something fits: at {path} no integer is allowed")

    def _object(self, schema: Mapping[str, Any], path: str) -> None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if isinstance(properties, Mapping) and isinstance(required, list):
            for name in required:
                if not isinstance(name, str) or name not in properties:
                    raise _refusal(path, f"required {name!r} without a property of that name")
            for name, value in properties.items():
                self.node(value, f"{path}/properties/{name}")
        self.node(schema.get("additionalProperties"), f"{path}/additionalProperties")

    def _array(self, schema: Mapping[str, Any], path: str) -> None:
        _check_length(schema, "minItems", "maxItems", path)
        if "items" in schema and "prefixItems" in schema:
            raise _refusal(path, "prefixItems beside items")
        for key in ("items", "prefixItems"):
            items = schema.get(key)
            if isinstance(items, list):
                self._refuse(schema, {"minItems", "maxItems"}, path, f"a list of {key}")
                self._all(items, f"{path}/{key}")
            else:
                self.node(items, f"{path}/{key}")

    def _string(self, schema: Mapping[str, Any], path: str) -> None:
        _check_length(schema, "minLength", "maxLength", path)
        if "format" in schema and str(schema["format"]) not in _FORMATS:
            raise _refusal(path, f"the format {schema['format']!r} (there are {', '.join(sorted(_FORMATS))})")
        given = [key for key in ("pattern", "format") if key in schema]
        lengths = [key for key in ("minLength", "maxLength") if key in schema]
        if len(given) > 1 or (given and lengths):
            raise _refusal(path, f"{(given[1:] or lengths)[0]} beside {given[0]}")

    def _all(self, schemas: object, path: str) -> None:
        for i, one in enumerate(schemas if isinstance(schemas, list) else ()):
            self.node(one, f"{path}/{i}")

    def _reference(self, reference: object) -> None:
        if not isinstance(reference, str) or reference in self._seen:
            return
        self._seen.add(reference)
        self.node(_target(self._root, reference), reference)

    @staticmethod
    def _refuse(schema: Mapping[str, Any], keywords: Iterable[str], path: str, beside: str = "") -> None:
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
