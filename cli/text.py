"""Text that people type as arguments is valid Unicode, whatever the locale; text for a terminal cannot control it.

Knows nothing about what the text is for.
"""

from collections.abc import Mapping, Sequence


def decoded(text: str) -> str:
    """Return an argument as the UTF-8 that it was typed in. Raises UnicodeError if it is not UTF-8.

    The interpreter passes bytes that the locale cannot decode on as lone surrogates: all but ASCII in the C locale.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8")


def harmless(text: str) -> str:
    """`text` for a terminal, which control characters in it must not reach."""
    return "".join(char if char.isprintable() or char in "\n\t" or ord(char) > 0x9F else "\ufffd" for char in text)


def printable(text: str) -> str:
    """Text from a file, without characters that could control the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def block(rows: Sequence[tuple[str, str]], width: int = 0) -> str:
    """A line for each name and value, if it has one; values begin at `width`, or as far left as all can."""
    rows = [(name, value) for name, value in rows if value]
    width = width or max(len(name) for name, _ in rows) + 3
    return "\n".join(f"{name + ':':<{width}}{value}" for name, value in rows)


def size_text(n_bytes: int) -> str:
    """A size in the largest unit that leaves a number of at least 1."""
    return in_units(n_bytes, {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}) or f"{n_bytes} bytes"


def in_units(n: int, units: Mapping[str, int]) -> str:
    """A number in the first unit that is not larger; "" if all are."""
    return next((f"{n / factor:.1f} {unit}" for unit, factor in units.items() if n >= factor), "")
