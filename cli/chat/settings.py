"""Parses the values that people type for parameters, by the parameters' declared types.

Owns the parsing of one value. Works with any dataclass.
"""

import re
from dataclasses import fields, replace
from typing import Any, TypeVar, get_args, get_type_hints

from pymtp import InvalidParameter

_SWITCH = {"on": True, "true": True, "off": False, "false": False}

Params = TypeVar("Params")


def names(params: Any) -> list[str]:
    """The parameters that can be set."""
    return [field.name for field in fields(params)]


def with_value(params: Params, name: str, text: str) -> Params:
    """Return `params`, a frozen dataclass, with `name` set to the value in `text`. Raises InvalidParameter."""
    value = _parse(name, text, get_type_hints(type(params))[name])
    try:
        return replace(params, **{name: value})  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidParameter):
            raise
        raise InvalidParameter(name, "of another type", value=text) from error


def typed(value: Any) -> str:
    """How people type a value: what `with_value` reads again."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ";".join(map(typed, value))
    return str(value)


def _parse(name: str, text: str, kind: Any) -> Any:
    if type(None) in get_args(kind):
        if text.lower() in ("none", "random", "default"):
            return None
        [kind] = (one for one in get_args(kind) if one is not type(None))
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise InvalidParameter(name, "one of " + ", ".join(_SWITCH), value=text)
        return _SWITCH[text.lower()]
    if kind == tuple[str, ...]:
        return tuple(part.strip(" ") for part in re.split("[;,]", text) if part.strip(" ") and text != "none")
    if kind not in (int, float):
        raise InvalidParameter(name, "set by a flag when the program starts: it cannot be typed here")
    try:
        return kind(text)
    except ValueError:
        raise InvalidParameter(name, "an integer" if kind is int else "a number", value=text) from None
