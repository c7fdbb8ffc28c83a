"""Flags as values: a decorator replaces one parameter of a command by all flags of a group.

Owns how a group becomes parameters and comes back as one value; knows no single flag.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

Command = Callable[..., None]


def with_flags(
    command: Command, name: str, flags: Mapping[str, tuple[Any, Any]], value_of: Callable[[dict[str, Any]], Any]
) -> Command:
    """Replace the parameter `name` of `command` by `flags` (type and default of each).

    The command gets in its place what `value_of` makes of their values.
    """
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for flag, (kind, default) in flags.items()
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        given = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += added if parameter.name == name else [given]

    def wrapped(**values: Any) -> None:
        given = {flag: values.pop(flag) for flag in flags}
        command(**values, **{name: value_of(given)})

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped


def with_own(flags: type[Any]) -> Callable[[Command], Command]:
    """Replace a command's parameter `own`, a dataclass `flags`, by a flag for each field."""
    kinds = get_type_hints(flags, include_extras=True)
    table = {
        field.name: (kinds[field.name], inspect.Parameter.empty if field.default is MISSING else field.default)
        for field in fields(flags)
    }
    return lambda command: with_flags(command, "own", table, lambda values: flags(**values))
