"""Writes docs/cli.md from the commands themselves.

    python docs/write_cli.py

A test holds the file against what this makes of the commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymtp_cli.app import app
from pymtp_cli.help import groups, rows
from typer.main import get_command

FILE = Path(__file__).with_name("cli.md")

HEAD = """# The command line

<!-- written by docs/write_cli.py from the commands: change them, then `make docs` -->

Flags have the names that llama.cpp uses where it has one. stdout carries the answer, stderr everything else; exit
codes are 0 (done), 1 (an error, in one line), 2 (wrong usage), 130 (Ctrl-C) and 141 (the reader has left).
`pymtp --install-completion` teaches your shell the commands and flags.
"""


def text() -> str:
    """The whole of docs/cli.md."""
    root: Any = get_command(app)
    context = root.make_context("pymtp", [], resilient_parsing=True)
    sections = [HEAD, _options(root, context)]
    return "\n".join([*sections, *_commands(root, context, "##")])


def _commands(group: Any, context: Any, marks: str) -> Iterator[str]:
    for name, command in group.commands.items():
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield f"{marks} {below.command_path}\n"
        if hasattr(command, "commands"):
            yield _description(command)
            yield from _commands(command, below, f"{marks}#")
        else:
            yield from (_usage(command, below), _description(command), _options(command, below))
            yield f"```sh\n{inspect.cleandoc(command.epilog)}\n```\n"


def _usage(command: Any, context: Any) -> str:
    return f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"


def _description(command: Any) -> str:
    return inspect.cleandoc(command.help) + "\n"


def _options(command: Any, context: Any) -> str:
    tables = [_table(title, rows(options, context)) for title, options in groups(command, context)]
    return "\n".join(tables)


def _table(title: str, options: list[tuple[str, str]]) -> str:
    lines = [f"| {title} | |", "|---|---|"]
    for flags, meaning in options:
        lines.append(f"| `{_cell(flags)}` | {_cell(re.sub(r'  +', ' ', meaning))} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
