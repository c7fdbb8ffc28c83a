"""What to answer to a flag that a command does not have. Knows names only."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .llama_cpp import REFUSED, found


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
