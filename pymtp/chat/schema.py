"""JSON schemas for answers: llama.cpp converts them to grammars; what it ignores of them is found here.

Knows schemas as decoded JSON and llama.cpp's order of looking at their keywords; no grammars but as text.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pymtp.binding.library import lib
from pymtp.chat.native import Failed, Refused, json_of
from pymtp.errors import InvalidParameter, require

_LIMITS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
_NEVER = {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"}
_DECIDES = ("$ref", "oneOf", "anyOf", "const", "enum", "allOf")
"""Keywords next to which llama.cpp looks at no others."""
_IGNORED = {
    "object": {"patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"}
    | {"dependentSchemas", "dependencies", "unevaluatedProperties"},
    "array": {"contains", "minContains", "maxContains", "uniqueItems", "additionalItems", "unevaluatedItems"},
    "integer": {"multipleOf"},
    "number": {"multipleOf"},
}
"""What it passes over, though JSON Schema does not, by type."""
_ALL = {"properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "pattern"}
_ALL |= {"format", "minLength", "maxLength"}.union(_NEVER, _DECIDES, *_LIMITS, *_IGNORED.values())
"""What says anything of a value of some type."""

_REPETITIONS_MAX = 2000
"""The most repetitions that llama.cpp's grammars limit: they ignore a larger number."""
_LEVELS_MAX = 400
"""Schemas in each other, or references to each other. llama.cpp's stack is enough for about 800."""
_VALUES_MAX = 100_000
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


def ignored_of(root: Any, name: str) -> list[str]:
    """What llama.cpp's converter passes over of a schema, which is the parameter `name`, each with its place.

    Walks the schema as it does, and leaves to it what is malformed. Not by recursion, which Python limits. Raises
    InvalidParameter for a schema that is too large, or that nothing fits.
    """
    references: set[str] = set()
    ahead: list[tuple[Any, str, int]] = [(root, "#", 1)]
    ignored: list[str] = []
    n_values = 0
    while ahead:
        schema, path, level = ahead.pop()
        if not isinstance(schema, Mapping):
            continue
        n_values += 1 + len(schema)  # a list of types looks at the same again
        require(level <= _LEVELS_MAX, name, f"a schema that is not nested so deeply (of at most {_LEVELS_MAX} levels)")
        require(n_values <= _VALUES_MAX, name, f"a schema of at most {_VALUES_MAX} values")
        kind, reference = _kind(schema), schema.get("$ref")
        ignored += _passed_over(schema, kind, path)
        inside = _inside(schema, kind, path, ignored)
        if isinstance(reference, str) and reference not in references:
            references.add(reference)
            inside = [(_target(root, reference), reference)]
        if kind == "allOf":
            ignored += _closed_parts(root, schema.get("allOf"), f"{path}/allOf")
        ahead += ((*place, level + 1) for place in reversed(inside))
    return ignored


def _target(root: Any, reference: str) -> Any:
    """What a reference leads to."""
    target = root
    for part in reference.split("/")[1:]:
        if isinstance(target, Mapping):
            target = target.get(part)
        elif isinstance(target, list) and part.isdigit() and int(part) < len(target):
            target = target[int(part)]
    return target


def _kind(schema: Mapping[str, Any]) -> str:
    """What llama.cpp takes a schema for: the keyword that decides, a type, "types" of several, or "any"."""
    kind = schema.get("type")
    for key in ("$ref", "oneOf", "anyOf"):
        if key in schema:
            return key
    if isinstance(kind, list):
        return "types"
    for key in ("const", "enum"):
        if key in schema:
            return key
    is_object = "properties" in schema or schema.get("additionalProperties", True) is not True
    if "allOf" in schema and (kind == "string" or (kind in (None, "object") and not is_object)):
        return "allOf"
    if kind:
        return str(kind)
    if is_object:
        return "object"
    if schema.keys() & {"items", "prefixItems"}:
        return "array"
    if schema.keys() & {"pattern", "minLength", "maxLength"} or str(schema.get("format")) in _FORMATS:
        return "string"
    return "any"


def _passed_over(schema: Mapping[str, Any], kind: str, path: str) -> list[str]:
    """Keywords that say something, and that llama.cpp does not look at in a schema of this kind."""
    if kind in _DECIDES or kind == "any":
        concerned = _ALL - {kind}
    else:  # a keyword of another type says nothing
        concerned = set() if kind == "types" else _NEVER.union(_DECIDES, _IGNORED.get(kind, ()))
    where = (f" beside {kind}" if kind in _DECIDES else "") + f" at {path}"
    return [key + where for key in schema if key in concerned and schema[key] is not False]


def _inside(schema: Mapping[str, Any], kind: str, path: str, ignored: list[str]) -> list[_Place]:
    """Look at the values of a schema's keywords; returns the schemas in it, in their order."""
    if kind in ("oneOf", "anyOf", "allOf"):
        return _numbered(schema.get(kind), f"{path}/{kind}")
    if kind == "types":
        return [({**schema, "type": one}, path) for one in schema["type"]]
    if kind == "object":
        return _of_object(schema, path, ignored)
    if kind == "array":
        return _of_array(schema, path, ignored)
    if kind == "string":
        ignored += _of_string(schema, path)
    elif kind in ("integer", "number"):
        ignored += _of_number(schema, path, is_whole=kind == "integer")
    return []


def _closed_parts(root: Any, parts: Any, path: str) -> list[str]:
    """The parts of an allOf that allow no properties but their own, where other parts have some: all are taken."""
    found = []
    for part, _ in _numbered(parts, path):
        target = _target(root, str(part["$ref"])) if isinstance(part, Mapping) and "$ref" in part else part
        found.append(target if isinstance(target, Mapping) else {})
    properties = [part.get("properties") for part in found]
    names = [set(own) if isinstance(own, Mapping) else set() for own in properties]
    return [
        f"additionalProperties beside the properties of other parts at {path}/{i}"
        for i, part in enumerate(found)
        if part.get("additionalProperties") is False and set().union(*names) - names[i]
    ]


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
    limits = [limit for limit in ("minItems", "maxItems") if schema.get(limit, len(items)) != len(items)]
    ignored += (f"{limit} beside a list of {key} at {path}" for limit in limits)
    return _numbered(items, f"{path}/{key}")


def _of_string(schema: Mapping[str, Any], path: str) -> list[str]:
    given = [key for key in ("pattern", "format", "minLength", "maxLength") if key in schema]
    ignored = []
    if "format" in given and str(schema["format"]) not in _FORMATS | _PATTERNS:
        given.remove("format")
        ignored.append(f"the format {schema['format']!r} (not {', '.join(sorted(_FORMATS | _PATTERNS))}) at {path}")
    if given and given[0] in ("pattern", "format"):
        return ignored + [f"{key} beside {given[0]} at {path}" for key in given[1:]]
    return ignored + _length(schema, "minLength", "maxLength", path)


def _of_number(schema: Mapping[str, Any], path: str, *, is_whole: bool) -> list[str]:
    """Of numbers that need not be whole a grammar follows bounds that are."""
    if is_whole and (beyond := next((key for key in chain(*_LIMITS) if abs(_bound(schema, key, 0)) >= 2**63), None)):
        raise InvalidParameter("json_schema", f"one without a {beyond} of more than 64 bits, which is at {path}")
    least = max(_bound(schema, "minimum", -math.inf), _bound(schema, "exclusiveMinimum", -math.inf) + is_whole)
    most = min(_bound(schema, "maximum", math.inf), _bound(schema, "exclusiveMaximum", math.inf) - is_whole)
    require(least <= most, "json_schema", f"one that something fits: at {path} no number is allowed")
    ignored = []
    for keys in _LIMITS:
        given = [key for key in keys if key in schema and schema[key] is not False]
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


def _bound(schema: Mapping[str, Any], key: str, missing: float) -> float:
    value = schema.get(key, missing)
    return value if isinstance(value, (int, float)) else missing


def _length(schema: Mapping[str, Any], least: str, most: str, path: str) -> list[str]:
    limit = _bound(schema, most, 0)
    if most in schema and limit < _bound(schema, least, 0):
        raise InvalidParameter("json_schema", f"one that something fits: at {path} {most} is below {least}")
    return [f"{most} above {_REPETITIONS_MAX} at {path}"] if limit > _REPETITIONS_MAX else []
