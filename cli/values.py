"""How the texts of flags become values, without typer's way there.

typer checks every value with pydantic. Importing that and building a schema for each flag, given or not, takes longer
than loading a small model; text and flags with a parser of their own need neither.
"""

from __future__ import annotations

from typing import Any


def parse_without_schemas(params: list[Any]) -> None:
    """Let `params` of a command call their own parsers. Does nothing in releases of typer that work in another way."""
    for param in params:
        if hasattr(param, "get_runtime_param") and "get_runtime_param" not in vars(param):
            param.get_runtime_param = _Value(param.get_runtime_param, param.type_descriptor).ready


class _Value:
    """Stands in for typer's coercion of one parameter, and leaves to it the types that it knows better."""

    def __init__(self, of_typer: Any, descriptor: Any) -> None:
        self._of_typer, self._annotation = of_typer, descriptor.annotation
        self._parse = descriptor.parameter_info.parser

    def ready(self) -> _Value:
        """Replaces typer's `get_runtime_param`."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the parameter for what was given, or for its default."""
        is_list = param.multiple or param.nargs == -1
        if value is None:
            return () if is_list else None
        if self._parse:
            return [self._parse(each) for each in value] if is_list else self._parse(value)
        if self._annotation in (str, list[str]):
            return value
        return self._of_typer().coerce(value, param=param, ctx=ctx)
