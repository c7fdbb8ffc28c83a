"""How facts about files are written for people: sizes, and text that a file holds.

Knows neither files nor where the text goes.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Text from a file, without characters that could control the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def size_text(n_bytes: int) -> str:
    """A size in the largest unit that leaves a number of at least 1."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} bytes"
