"""Parsers of flags' values: of one value, and of lists in llama-bench's notation.

Our own, because the messages of typer's change from release to release. Knows no single flag.
"""

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer

from pymtp.errors import INT_MAX
from pymtp.loading.params import ADAPTER_SCALE_MAX

from .text import decoded

_ITEM = re.compile(r"(?P<first>\d+)-(?P<last>\d+)((?P<how>[+*])(?P<step>\d+))?")
_MAX_ITEMS = 1000

Parser = Callable[[str], Any]


@dataclass(frozen=True)
class OneOf:
    """Parses one of some words."""

    choices: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other words, and the choices they mean."""

    def __call__(self, text: str) -> str:
        text = self.aliases.get(text, text)
        _require(text in self.choices, f"one of {', '.join(self.choices)}", text)
        return text


def _require(is_right: object, what: str, text: str) -> None:
    """Raise BadParameter unless `text` is `what` it must be."""
    if not is_right:
        raise typer.BadParameter(f"must be {what}, not {text!r}")


def integer(least: int, most: int = INT_MAX, *words: str) -> Parser:
    """A parser of integers in a range, and of some words."""

    def parse(text: str) -> int | str:
        if text in words:
            return text
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        _require(least <= value <= most, " or ".join([*words, f"an integer between {least} and {most}"]), text)
        return value

    return parse


def zero_or_one(text: str) -> bool:
    """False or true, as 0 or 1."""
    return bool(integer(0, 1)(text))


def number(kind: type[float] | type[int]) -> Parser:
    """A parser of numbers that leaves anything else to pymtp, which rejects it and says what range there is."""

    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return text

    return parse


def text(value: str) -> str:
    """A text: see text.decoded."""
    try:
        return decoded(value)
    except UnicodeError:
        raise typer.BadParameter("must be valid UTF-8; convert it first (iconv -t UTF-8)") from None


def gpu_layers(text: str) -> int:
    """A number of layers, or as in llama.cpp: auto (-1) for as many as have room, all (below -1) for all of them."""
    words = {"auto": -1, "all": -2}
    value = integer(-INT_MAX, INT_MAX, *words)(text)
    return words[text] if text in words else max(int(value), -2)


def listed(one: Parser, what: str = "") -> Parser:
    """A parser of several values, with commas or slashes between them. `what` they are, for errors."""

    def parse(text: str) -> list[Any]:
        try:
            return [one(part) for part in re.split("[,/]", text)]
        except ValueError:
            raise typer.BadParameter(f"must be {what}, not {text!r}") from None

    return parse


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def drafts(text: str) -> str:
    """Where drafts come from, in pymtp's words or llama.cpp's; between several of these pymtp chooses."""
    kinds = {_DRAFTS(re.sub("^ngram-.+", "lookup", word)) for word in text.split(",")}
    return kinds.pop() if len(kinds) == 1 else "auto"


_DRAFTS = OneOf(("auto", "mtp", "lookup", "none"), {"draft-mtp": "mtp"})


def devices(text: str) -> list[str]:
    """Names of devices; none of them for "none"."""
    found = list(names(text))
    _require(found, "none, or names of devices (see --list-devices)", text)
    return [] if found == ["none"] else found


def pair(separator: str, what: str) -> Callable[[str], tuple[str, str]]:
    """A parser of two texts with the last `separator` between them. `what` they are, for errors."""

    def parse(text: str) -> tuple[str, str]:
        left, _, right = text.rpartition(separator)
        _require(left and right, what, text)
        return left, right

    return parse


def bias(text: str) -> tuple[int, float]:
    """A token's bias, as llama.cpp writes it: `15043+1` or `15043-inf`."""
    try:
        token, sign, value = re.split("([+-])", text, maxsplit=1)
        return int(token), float(sign + value)
    except ValueError:
        raise typer.BadParameter(f"must be TOKEN_ID+BIAS or TOKEN_ID-BIAS, not {text!r}") from None


def overrides(text: str) -> list[tuple[str, str]]:
    """Patterns of tensors' names, and buffer types."""
    return [pair("=", "PATTERN=BUFFER,...")(part) for part in text.split(",")]


def metadata(text: str) -> list[tuple[str, Any]]:
    """Keys of a GGUF's metadata, and values."""
    found = []
    for item in items(text):
        key, _, typed = item.partition("=")
        kind, _, value = typed.partition(":")
        try:
            found.append((key, _TYPES[kind if key else ""](value)))
        except (KeyError, ValueError):
            raise typer.BadParameter(f"must be KEY=int|float|bool|str:VALUE,..., not {item!r}") from None
    return found


_TYPES: dict[str, Parser] = {
    **{"int": int, "float": float, "str": str},
    "bool": {"true": True, "false": False}.__getitem__,
}


def scaled_files(text: str) -> list[tuple[str, float]]:
    what = f"FILE:SCALE,... with scales from -{ADAPTER_SCALE_MAX:g} to {ADAPTER_SCALE_MAX:g}"
    try:
        found = [(file, float(scale)) for file, scale in map(pair(":", what), items(text))]
    except ValueError:
        found = [("", math.nan)]
    _require(all(abs(scale) <= ADAPTER_SCALE_MAX for _, scale in found), what, text)
    return found


def items(text: str) -> list[str]:
    """The items between commas; a name that has a comma is put in quotes."""
    try:
        found = next(csv.reader([text]), [])
    except csv.Error:  # a line break outside of quotes
        found = []
    _require(found and all(found), "items between commas; quote one that has a comma or a line break", text)
    return found


def each(occurrences: Iterable[Iterable[Any]]) -> list[Any]:
    """All values of a list flag that may be given several times, without duplicates."""
    return list(dict.fromkeys(value for values in occurrences for value in values))


@dataclass(frozen=True)
class Several:
    """Parses values between commas, and integers as `1-8`, `0-8+2` (steps of 2) and `128-1024*2` (doubling), too."""

    one: Parser

    def __call__(self, text: str) -> tuple[Any, ...]:
        values: list[Any] = []
        for item in text.split(","):
            found = _ITEM.fullmatch(item)
            values += [self.one(str(value)) for value in _range(found, text)] if found else [self.one(item)]
        return tuple(values)


def _range(found: re.Match[str], text: str) -> list[int]:
    first, last, step = int(found["first"]), int(found["last"]), int(found["step"] or 1)
    grows = step > 1 and first > 0 if found["how"] == "*" else step > 0
    values: list[int] = []
    while grows and first <= last and len(values) <= _MAX_ITEMS:
        values.append(first)
        first = first * step if found["how"] == "*" else first + step
    what = f"a list such as 1,2 or 1-8 or 0-8+2 or 128-1024*2, of at most {_MAX_ITEMS} values"
    _require(0 < len(values) <= _MAX_ITEMS, what, text)
    return values


def numbers(least: float, most: float, range_text: str) -> Parser:
    """A parser of `0,0.8`."""

    def one(text: str) -> float:
        if not least <= float(text) <= most:
            raise ValueError
        return float(text)

    return listed(one, f"numbers {range_text}, separated by commas")


def paths(text: str) -> tuple[str, ...]:
    """Files: one whose name contains a comma, or several."""
    return (text,) if os.path.exists(text) else tuple(filter(None, text.split(",")))


def prompt_and_generation(text: str) -> tuple[tuple[Any, ...], ...]:
    lengths = tuple(map(integer(1), text.split(",")))
    _require(len(lengths) == 2, "two numbers such as 512,128", text)
    return (lengths,)
