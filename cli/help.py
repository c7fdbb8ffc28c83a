"""Lays out help texts: options in groups that fit a screen each, examples at the end.

docs/cli.md is generated from them. The groups are those of table.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from .table import BASIC, TABLE

_LAST = "Output"
SHORT = "pymtp.short_help"
"""Key in the context's `meta`: whether the short help is asked for."""


def groups(command: Any, ctx: Any) -> Iterator[tuple[str, list[Any]]]:
    """The options of a command by group, without empty groups; those of typer come last."""
    options = {param.name: param for param in command.get_params(ctx) if param.param_type_name == "option"}
    for title, flags in TABLE.items():
        found = [options.pop(flag.name) for flag in flags if flag.name in options]
        if title == _LAST:
            found += options.values()
        if found:
            yield title, found


def rows(options: Sequence[Any], ctx: Any) -> list[tuple[str, str]]:
    """Flags and help text of each option that is not hidden."""
    records = [option.get_help_record(ctx) for option in options]
    return [(str(flags), str(text)) for flags, text in filter(None, records)]


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the groups into a help text; for -h only what most people need."""
    for title, options in groups(command, ctx):
        shown = [option for option in options if option.name in BASIC] if ctx.meta.get(SHORT) else options
        if shown:
            with formatter.section(title):
                formatter.write_dl(rows(shown, ctx))


def write_examples(examples: str | None, formatter: Any) -> None:
    """Write the examples unchanged, one per line."""
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line.strip()}\n")
