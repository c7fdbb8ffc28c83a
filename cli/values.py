"""How the texts of flags become values, without typer's way there.

typer checks every value with pydantic. Importing that and building a schema for each flag, given or not, takes longer
than loading a small model; flags with a parser of their own need neither.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from .parsers import Parser


def parse_without_schemas(params: list[Any]) -> None:
    """Let `params` of a command call their own parsers. Does nothing in releases of typer that work in another way."""
    for param in params:
        if hasattr(param, "get_runtime_param") and "get_runtime_param" not in vars(param):
            value_of = partial(_value, param.type_descriptor.parameter_info.parser, param.get_runtime_param)
            param.get_runtime_param = partial(SimpleNamespace, coerce=value_of)


def _value(parse: Parser | None, of_typer: Callable[[], Any], value: Any, param: Any, ctx: Any) -> Any:
    """The value of a parameter for what was given, or for its default."""
    is_list = param.multiple or param.nargs == -1
    if value is None:
        return () if is_list else None
    if parse is None:
        return of_typer().coerce(value, param=param, ctx=ctx)
    return [parse(each) for each in value] if is_list else parse(value)
