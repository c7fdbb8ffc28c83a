"""Parses the values that people type for parameters, by the parameters' declared types.

Owns the parsing of one value. Works with any dataclass.
"""

from __future__ import annotations

import re
import types
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pymtp import InvalidParameter

_NOT_HERE = "set by a flag when the program starts: it cannot be typed here"

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
    if get_origin(kind) in (Union, types.UnionType):
        return _parse_union(name, text, get_args(kind))
    if get_origin(kind) is Literal:
        return _parse_choice(name, text, {str(choice): choice for choice in get_args(kind)})
    if kind is bool:
        return _parse_choice(name, text, {"on": True, "true": True, "off": False, "false": False})
    if get_origin(kind) in (tuple, list):
        element = next(iter(get_args(kind)), str)
        if get_origin(element) is not None:
            raise InvalidParameter(name, _NOT_HERE)
        parts = [] if text == "none" else (part.strip(" ") for part in re.split("[;,]", text))
        return tuple(_parse(name, part, element) for part in parts if part)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise InvalidParameter(name, "an integer" if kind is int else "a number", value=text) from None
    if kind is not str:
        raise InvalidParameter(name, _NOT_HERE)
    return text


def _parse_union(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and text.lower() in ("none", "random", "default"):
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    for kind in others[:-1]:
        try:
            return _parse(name, text, kind)
        except InvalidParameter:
            continue
    return _parse(name, text, others[-1])


def _parse_choice(name: str, text: str, choices: dict[str, Any]) -> Any:
    if text.lower() not in choices:
        raise InvalidParameter(name, "one of " + ", ".join(choices), value=text)
    return choices[text.lower()]
