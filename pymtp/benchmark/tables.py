"""Formats rows as Markdown tables whose source is readable too.

Knows columns and formats; nothing about where the rows come from.
"""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

Table = Sequence[Mapping[str, Any]]
Columns = list[tuple[str, str, str]]
"""Title, key, format; the format of text is ""."""


def columns(*texts: str) -> Columns:
    """Columns, each as `title=key:format`."""
    parts = [text.partition("=") for text in texts]
    return [(title, *key_and_format.partition(":")[::2]) for title, _, key_and_format in parts]


COLUMNS = 100
"""Width at which tables stay readable in a terminal or an issue."""

fill = partial(textwrap.fill, width=COLUMNS, break_on_hyphens=False)


def markdown(columns: Columns, rows: Table) -> str:
    """A table whose columns are aligned in the source as well."""
    cells = [[title for title, _, _ in columns]]
    cells += (["-" if row[key] is None else format(row[key], form) for _, key, form in columns] for row in rows)
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    is_text = [form == "" for _, _, form in columns]

    def line(texts: list[str]) -> str:
        padded = [text.ljust(w) if t else text.rjust(w) for text, w, t in zip(texts, widths, is_text, strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = "|".join("-" * (w + 2) if t else "-" * (w + 1) + ":" for w, t in zip(widths, is_text, strict=True))
    return "\n".join([line(cells[0]), f"|{rule}|", *(line(texts) for texts in cells[1:])])


def narrow(keys: Columns, groups: Sequence[Columns], rows: Table) -> list[str]:
    """The columns of all groups, split into tables of at most COLUMNS; each begins with the columns `keys`.

    A group stays in one table if it fits. Columns without values are left out, and so are a table's empty rows.
    """
    parts: list[Columns] = [[]]
    for group in groups:
        columns = [column for column in group if any(row[column[1]] is not None for row in rows)]
        if _width([*keys, *parts[-1], *columns], rows) > COLUMNS:
            parts.append([])
        for column in columns:
            if _width([*keys, *parts[-1], column], rows) > COLUMNS:
                parts.append([])
            parts[-1].append(column)
    filled = [[row for row in rows if any(row[key] is not None for _, key, _ in part)] for part in parts]
    return [markdown([*keys, *part], some) for part, some in zip(parts, filled, strict=True) if part]


def _width(columns: Columns, rows: Table) -> int:
    return len(markdown(columns, rows).partition("\n")[0])
