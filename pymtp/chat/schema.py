"""JSON schemas for answers: llama.cpp converts them to grammars; what it ignores of them is found here.

Knows schemas as decoded JSON and llama.cpp's order of looking at their keywords; no grammars but as text.
"""

import json
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from pymtp.binding.library import lib
from pymtp.chat.native import Failed, Refused, json_of
from pymtp.errors import InvalidParameter, require

_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_KNOWN = {"properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"}
_KNOWN |= {"pattern", "format", "minLength", "maxLength"} | _LIMITS
"""What llama.cpp looks at where the type is the keyword's own."""

_IGNORED = {
    "object": {"patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"},
    "array": {"contains", "minContains", "maxContains", "uniqueItems", "additionalItems", "unevaluatedItems"},
    "integer": {"multipleOf"},
    "number": {"multipleOf"},
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
_PATTERNS = {"email", "ipv4", "uri"}
"""Formats that have a pattern in native/src/chat/json-pattern.cpp."""
_FORMATS = {"date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"}

_NOTE = "# ignored: "
"""What a comment begins with that names a pattern: see native/src/chat/json-pattern.h."""

_Place = tuple[Any, str]
"""A schema, and the path to it."""


class SchemaGrammar(NamedTuple):
    schema: Mapping[str, Any]
    """Its decoded JSON."""
    gbnf: str
    ignored: list[str]
    """What of the schema the grammar does not follow, each with its place."""


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """The GBNF of a JSON schema, given as JSON text or as decoded JSON, as llama-server makes it.

    Raises InvalidParameter for what is not a schema, or says what the grammar would not.
    """
    made = schema_grammar(schema)
    refuse_ignored("json_schema", made.ignored)
    return made.gbnf


def schema_grammar(schema: str | Mapping[str, Any]) -> SchemaGrammar:
    """The grammar of a JSON schema, which may be looser. Raises InvalidParameter for what is not a schema."""
    schema = _decoded(schema)
    ignored = ignored_of(schema, "json_schema")
    try:
        gbnf = str(json_of(lib.pymtp_schema_to_grammar, json.dumps(schema).encode()))
    except (Refused, Failed) as error:
        why = _shortened(str(error).removeprefix("JSON schema conversion failed: "), 300)  # it quotes the schema
        raise InvalidParameter("json_schema", f"a schema that can be turned into a grammar ({why})") from None
    return SchemaGrammar(schema, gbnf, ignored + patterns_ignored(gbnf))


def patterns_ignored(gbnf: str) -> list[str]:
    """The patterns in whose place a grammar takes any string: llama.cpp's converter names them in comments."""
    notes = [line.removeprefix(_NOTE) for line in gbnf.splitlines() if line.startswith(_NOTE)]
    short = (_shortened(note, 400) for note in notes)
    return [note.removesuffix(", accepting any string").replace(" is not supported", "") for note in short]


def _shortened(text: str, n: int) -> str:
    """`text`, or its beginning and its end: `n` characters of it."""
    return text if len(text) <= n else f"{text[: n // 2]} ... {text[-n // 2 :]}"


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


def _check_size(schema: Any, name: str) -> None:
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


def ignored_of(root: Any, name: str) -> list[str]:
    """What llama.cpp's converter passes over of a schema, which is the parameter `name`, each with its place.

    Walks the schema as it does, and leaves to it what is malformed. Not by recursion, which Python limits. Raises
    InvalidParameter for a schema that is too large, or that nothing fits.
    """
    _check_size(root, name)
    seen: set[str] = set()  # references
    ahead: list[_Place] = [(root, "#")]
    ignored: list[str] = []
    n_values = 0
    while ahead:
        n_values += 1
        if n_values > _VALUES_MAX:  # a list of types looks at the same again
            raise _too_large(name)
        schema, path = ahead.pop()
        if not isinstance(schema, Mapping):
            continue
        if "$ref" in schema:
            ignored += _unknown(schema, _ALL - {"$ref"}, path, "$ref")
            reference = schema["$ref"]
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                ahead.append((_target(root, reference), reference))
        else:
            ahead += reversed(_inside(schema, path, ignored))
            ignored += _closed_parts(root, schema.get("allOf"), f"{path}/allOf")
    return ignored


def _closed_parts(root: Any, parts: Any, path: str) -> list[str]:
    """The parts of an allOf that allow no properties but their own, where other parts have some: all are taken."""
    if not isinstance(parts, list):
        return []
    found = [
        _target(root, str(part["$ref"])) if isinstance(part, Mapping) and "$ref" in part else part for part in parts
    ]
    properties = [part.get("properties") if isinstance(part, Mapping) else None for part in found]
    names = [set(own) if isinstance(own, Mapping) else set() for own in properties]
    return [
        f"additionalProperties beside the properties of other parts at {path}/{i}"
        for i, part in enumerate(found)
        if isinstance(part, Mapping) and part.get("additionalProperties") is False and set().union(*names) - names[i]
    ]


def _inside(schema: Mapping[str, Any], path: str, ignored: list[str]) -> list[_Place]:
    """Look at the keywords of one schema, which is no reference; returns the schemas in it, in their order."""
    for key in ("oneOf", "anyOf"):
        if key in schema:
            ignored += _unknown(schema, _ALL - {key}, path, key)
            return _numbered(schema[key], f"{path}/{key}")
    kind = schema.get("type")
    if isinstance(kind, list):
        return [({**schema, "type": one}, path) for one in kind]
    for key in ("const", "enum"):
        if key in schema:
            ignored += _unknown(schema, _ALL - {key}, path, key)
            return []
    kind = kind or _implied(schema)
    if kind == "allOf" or ("allOf" in schema and kind in ("object", "string") and not _is_object(schema)):
        ignored += _unknown(schema, _ALL - {"allOf"}, path, "allOf")
        return _numbered(schema["allOf"], f"{path}/allOf")
    # a keyword of another type says nothing
    ignored += _unknown(schema, _ALL if kind == "any" else _NEVER | _COMBINED | _IGNORED.get(str(kind), set()), path)
    if kind == "object":
        return _of_object(schema, path, ignored)
    if kind == "array":
        return _of_array(schema, path, ignored)
    if kind == "string":
        ignored += _of_string(schema, path)
    elif kind in ("integer", "number"):
        ignored += _of_number(schema, path, is_whole=kind == "integer")
    return []


def _of_object(schema: Mapping[str, Any], path: str, ignored: list[str]) -> list[_Place]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    inside: list[_Place] = []
    if isinstance(properties, Mapping) and isinstance(required, list):
        missing = [name for name in required if not isinstance(name, str) or name not in properties]
        ignored += (f"required {name!r} without a property of that name at {path}" for name in missing)
        inside += ((value, f"{path}/properties/{name}") for name, value in properties.items())
    return [*inside, (schema.get("additionalProperties"), f"{path}/additionalProperties")]


def _of_array(schema: Mapping[str, Any], path: str, ignored: list[str]) -> list[_Place]:
    if "items" in schema and "prefixItems" in schema:
        ignored.append(f"prefixItems beside items at {path}")
    key = "items" if "items" in schema else "prefixItems"
    items = schema.get(key)
    if not isinstance(items, list):
        ignored += _length(schema, "minItems", "maxItems", path)
        return [(items, f"{path}/{key}")]
    counts = {limit for limit in ("minItems", "maxItems") if schema.get(limit) != len(items)}
    ignored += _unknown(schema, counts, path, f"a list of {key}")
    return _numbered(items, f"{path}/{key}")


def _of_string(schema: Mapping[str, Any], path: str) -> list[str]:
    given = [key for key in ("pattern", "format") if key in schema]
    if "format" in schema and str(schema["format"]) not in _FORMATS | _PATTERNS:
        given.remove("format")
        ignored = [f"the format {schema['format']!r} (not {', '.join(sorted(_FORMATS | _PATTERNS))}) at {path}"]
    else:
        ignored = []
    lengths = [key for key in ("minLength", "maxLength") if key in schema]
    if given:
        return ignored + [f"{key} beside {given[0]} at {path}" for key in (*given[1:], *lengths)]
    return ignored + _length(schema, "minLength", "maxLength", path)


def _of_number(schema: Mapping[str, Any], path: str, *, is_whole: bool) -> list[str]:
    """Of numbers that need not be whole a grammar follows bounds that are."""
    if is_whole and (beyond := next((key for key in _LIMITS if abs(_bound(schema, key, 0)) >= 2**63), None)):
        raise InvalidParameter("json_schema", f"one without a {beyond} of more than 64 bits, which is at {path}")
    least = max(_bound(schema, "minimum", -math.inf), _bound(schema, "exclusiveMinimum", -math.inf) + is_whole)
    most = min(_bound(schema, "maximum", math.inf), _bound(schema, "exclusiveMaximum", math.inf) - is_whole)
    require(least <= most, "json_schema", f"one that something fits: at {path} no number is allowed")
    ignored = []
    for a, b in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        given = [key for key in (a, b) if key in schema and schema[key] is not False]
        usable = [key for key in given if is_whole or _is_short(schema[key])]
        ignored += [
            f"{key} beside {usable[0]} at {path}" if usable else f"{key} at {path}"
            for key in given
            if key not in usable[:1]
        ]
    return ignored


def _is_short(value: object) -> bool:
    """Whether it is a number that json-pattern.cpp takes for a bound."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value % 1 == 0 and abs(value) < 10**15


def _numbered(schemas: object, path: str) -> list[_Place]:
    return [(one, f"{path}/{i}") for i, one in enumerate(schemas if isinstance(schemas, list) else ())]


def _unknown(schema: Mapping[str, Any], keywords: Container[str], path: str, beside: str = "") -> list[str]:
    """Those of the keywords that are in a schema and say something."""
    where = (f" beside {beside}" if beside else "") + f" at {path}"
    return [key + where for key in schema if key in keywords and schema[key] is not False]


def _bound(schema: Mapping[str, Any], key: str, missing: float) -> float:
    value = schema.get(key, missing)
    return value if isinstance(value, (int, float)) else missing


def _length(schema: Mapping[str, Any], least: str, most: str, path: str) -> list[str]:
    limit = _bound(schema, most, 0)
    if most in schema and limit < _bound(schema, least, 0):
        raise InvalidParameter("json_schema", f"one that something fits: at {path} {most} is below {least}")
    return [f"{most} above {_REPETITIONS_MAX} at {path}"] if limit > _REPETITIONS_MAX else []


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
