"""Parsers of flags' values, and completions of them.

Our own, because the messages of typer's change from release to release. Knows no single flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import typer

MAX_INT = 2**31 - 1


def integer(least: int, most: int = MAX_INT) -> Callable[[str], int]:
    return integer_or((), least, most)


def auto_or_integer(least: int, most: int) -> Callable[[str], int | str]:
    return integer_or(("auto",), least, most)


def integer_or(words: tuple[str, ...], least: int, most: int) -> Callable[[str], Any]:
    def parse(text: str) -> int | str:
        if text in words:
            return text
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            allowed = " or ".join([*words, f"an integer between {least} and {most}"])
            raise typer.BadParameter(f"must be {allowed}, not {text!r}")
        return value

    return parse


def listed(one: Callable[[str], Any], what: str = "") -> Callable[[str], list[Any]]:
    """A parser of several values, with commas or slashes between them. `what` they are, for errors."""

    def parse(text: str) -> list[Any]:
        try:
            return [one(part) for part in re.split("[,/]", text)]
        except ValueError:
            raise typer.BadParameter(f"must be {what}, not {text!r}") from None

    return parse


def one_of(
    choices: tuple[str, ...], number: str = "", aliases: Mapping[str, str] | None = None
) -> Callable[[str], str]:
    """A parser of choices. `number`: what to use for a number; `aliases`: other words, and the choices they mean."""

    def parse(text: str) -> str:
        text = (aliases or {}).get(text, text)
        if text not in choices:
            hint = f"; {number}" if number and text.lstrip("-").isdecimal() else ""
            raise typer.BadParameter(f"must be one of {', '.join(choices)}, not {text!r}{hint}")
        return text

    return parse


def completing(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Completes a value in a shell; in a list, the part after the last comma."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + choice for choice in choices if choice.startswith(last)]

    return complete


def choice(kind: Any, *names: str, help_text: str, number: str = "", aliases: Mapping[str, str] | None = None) -> Any:
    """An option that takes one of the values of the Literal `kind`."""
    choices = get_args(kind)
    return typer.Option(
        *names,
        parser=one_of(choices, number, aliases),
        metavar="|".join(choices),
        help=help_text,
        autocompletion=completing(choices),
    )
