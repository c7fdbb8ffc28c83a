"""What a flag is, how those of a command become its parameters and come back as one object, and which are unknown.

Owns the way from a table to typer; knows no single flag.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from .llama_cpp import REFUSED, found, variables
from .parsers import Parser, Several, each

OF_LLAMA_CPP = {"run", "chat", "serve"}
"""Commands that llama.cpp has as well, with variables for flags."""
REQUIRED = Parameter.empty
"""The default of a flag that has to be given."""

Values = SimpleNamespace
"""The values of a command's flags, by their names."""


class Flag:
    """A flag, or an argument, of the commands `on`.

    `name`: pymtp's name of the parameter; `usage`: the flag's names, and what stands for its value; without a value it
    is a switch. `parse`: makes the value of a text, of the default too. `many`: may be given several times, each with
    a value; `is_list`: each with several values, of which duplicates are dropped. `more`: what else typer.Option takes.
    """

    def __init__(
        self,
        name: str,
        usage: str,
        parse: Parser | None = None,
        help: str = "",
        *,
        on: str,
        default: Any = None,
        kind: Any = Any,
        many: bool = False,
        is_list: bool = False,
        **more: Any,
    ) -> None:
        self.name, self.commands, self.is_list = name, frozenset(on.split()), is_list
        self.flags = flags = [word for word in usage.split() if word.startswith("-")]
        has_variables = self.commands & OF_LLAMA_CPP and not is_list
        self.variables = variables("/".join(flags).split("/")) if has_variables else []
        choices = getattr(getattr(parse, "one", parse), "choices", None)
        metavar = " ".join(word for word in usage.split() if word not in flags) or "|".join(choices or ()) or None
        metavar = f"{metavar},..." if isinstance(parse, Several) else metavar
        words = choices or [word for word in re.split("[|,]", metavar or "") if word.islower() and "|" in usage]
        if parse is None and kind is Any:
            kind, default = bool, bool(default)
        elif many or is_list:
            kind, default = list[Any], default or ()
        if flags:
            info = typer.Option(
                *flags,
                parser=parse,
                metavar=metavar,
                help=help,
                autocompletion=_completing(words) if words else None,
                envvar=self.variables or None,
                show_envvar=False,
                **more,
            )
        else:
            info = typer.Argument(parser=parse, metavar=metavar, show_default=False)
        self.parameter = Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default)


def with_flags(flags: Sequence[Flag], command: Callable[[Values], None]) -> Callable[..., None]:
    """A command that gets the values of `flags` in one object; typer sees a parameter for each."""

    def wrapped(**values: Any) -> None:
        command(Values(**values | {flag.name: each(values[flag.name]) for flag in flags if flag.is_list}))

    parameters = [flag.parameter for flag in flags]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return wrapped


def _completing(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Completes a value in a shell; in a list, the part after the last comma."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + choice for choice in choices if choice.startswith(last)]

    return complete


def parse_without_schemas(params: list[Any]) -> None:
    """Let `params` of a command call their own parsers. Does nothing in releases of typer that work in another way.

    typer checks every value with pydantic. Importing that and building a schema for each flag, given or not, takes
    longer than loading a small model; flags with a parser of their own need neither.
    """
    for param in params:
        if hasattr(param, "get_runtime_param") and "get_runtime_param" not in vars(param):
            value_of = partial(_value, param.type_descriptor.parameter_info.parser, param.get_runtime_param)
            param.get_runtime_param = partial(SimpleNamespace, coerce=value_of)


_ON_WORDS = {"enabled": "on", "disabled": "off"}
"""llama.cpp's words in variables of switches that typer does not know."""


def _value(parse: Parser | None, of_typer: Callable[[], Any], value: Any, param: Any, ctx: Any) -> Any:
    is_list = param.multiple or param.nargs == -1
    if value is None:
        return () if is_list else None
    if parse is None:
        return of_typer().coerce(_ON_WORDS.get(value, value), param=param, ctx=ctx)
    return [parse(each) for each in value] if is_list else parse(value)


def unknown_flag(argument: str, known: Collection[str]) -> str | None:
    """The flag in an argument that begins with a dash, if it is not among `known`.

    A value may follow a single letter without a space (-n5), but not one that begins with a letter: -sys is a flag.
    """
    name = argument.partition("=")[0]
    if name in known:
        return None
    has_value = not name.startswith("--") and not re.match("-[^-][^\\W\\d]", name)
    return None if has_value and argument[:2] in known else name


def values_of_flags(params: Sequence[Any]) -> dict[str, int]:
    """How many values follow each flag."""
    return {flag: param.nargs for param in params if not getattr(param, "is_flag", True) for flag in param.opts}


def first_unknown(args: Sequence[str], params: Sequence[Any], known: Collection[str], *, ends: bool) -> str | None:
    """The first flag in a command line that is not among `known`. `ends`: the first argument ends the flags.

    The parser itself would take the letters of -sys for the short flags -s, -y and -s, and a value that ends them.
    """
    n_values = values_of_flags(params)
    rest = iter(args)
    for argument in rest:
        if argument == "--" or (ends and not argument.startswith("-")):
            return None
        if argument.startswith("-") and len(argument) > 1 and (name := unknown_flag(argument, known)):
            return name
        for _ in range(n_values.get(argument, 0)):
            next(rest, None)
    return None


def answer(name: str, others: Mapping[str, Collection[str]]) -> str | None:
    """What to say about the flag `name`; None: what the parser says. `others`: the flags of other commands."""
    having = [f"pymtp {command}" for command, flags in others.items() if name in flags]
    elsewhere = f"; {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it" if having else ""
    if hint := found(REFUSED, name):
        return f"{name} of llama.cpp is not supported here: {hint}{elsewhere}"
    return f"No such option: {name}{elsewhere}" if elsewhere or not name.startswith("--") else None
