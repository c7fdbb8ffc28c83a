"""Writes docs/cli.md from the commands themselves.

    python docs/write_cli.py

A flag that means the same for several commands stands once, among the shared flags. A test compares the file with
what this makes of the commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymtp_cli.app import app, groups, rows
from typer.main import get_command

FILE = Path(__file__).with_name("cli.md")

HEAD = """# The command line

<!-- written by docs/write_cli.py from the commands: change them, then `make docs` -->

Flags have llama.cpp's names where llama.cpp has one. stdout carries the answer, stderr everything else; exit codes are
0 (done), 1 (error, in one line), 2 (wrong usage), 130 (Ctrl-C; `serve`: 0), 141 (stdout was closed).
`pymtp --install-completion` teaches your shell the commands and flags. Each command has its own flags and, named below
its usage, [flags that it shares](#shared-flags) with others.
"""

SHARED = """## Shared flags

Above each list: the commands that have these flags.
"""

Row = tuple[str, str]
"""The names of a flag, and what it means."""

Lists = dict[str, list[Row]]
"""Rows by the title of their group."""


def text() -> str:
    """The whole of docs/cli.md."""
    root: Any = get_command(app)
    context = root.make_context("pymtp", [], resilient_parsing=True)
    lists = {below.command_path: _lists(command, below) for command, below in _leaves(root, context)}
    owners: dict[tuple[str, Row], list[str]] = {}
    for path, found in lists.items():
        for title, row in _flat(found):
            owners.setdefault((title, row), []).append(path.removeprefix("pymtp "))
    shared = {key: tuple(names) for key, names in owners.items() if len(names) > 1}
    sections = [HEAD, *_render(_lists(root, context)), *_commands(root, context, "##", lists, shared)]
    return "\n".join([*sections, SHARED, *_shared_lists(shared)])


def _leaves(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """The commands that have no commands below them, each with its context."""
    for name, command in group.commands.items():
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(command, "commands"):
            yield from _leaves(command, below)
        else:
            yield command, below


def _lists(command: Any, context: Any) -> Lists:
    return {title: [_row(*row) for row in rows(options, context)] for title, options in groups(command, context)}


def _flat(lists: Lists) -> Iterator[tuple[str, Row]]:
    return ((title, row) for title, found in lists.items() for row in found)


def _commands(
    group: Any, context: Any, marks: str, lists: dict[str, Lists], shared: dict[tuple[str, Row], tuple[str, ...]]
) -> Iterator[str]:
    for name, command in group.commands.items():
        below = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield f"{marks} {below.command_path}\n"
        if hasattr(command, "commands"):
            yield _description(command)
            yield from _commands(command, below, f"{marks}#", lists, shared)
        else:
            yield from (_usage(command, below), _description(command))
            found = lists[below.command_path]
            links = [title for title in found if any((title, row) in shared for row in found[title])]
            yield f"Shared flags: {', '.join(f'[{title}](#{_anchor(title)})' for title in links)}.\n"
            own = {title: [row for row in found[title] if (title, row) not in shared] for title in found}
            yield from _render(own)
            yield f"```sh\n{inspect.cleandoc(command.epilog)}\n```\n"


def _shared_lists(shared: dict[tuple[str, Row], tuple[str, ...]]) -> Iterator[str]:
    for title in dict.fromkeys(title for title, _ in shared):
        yield f"### {title}\n"
        by_commands: dict[tuple[str, ...], list[Row]] = {}
        for (of, row), names in shared.items():
            if of == title:
                by_commands.setdefault(names, []).append(row)
        for names, found in by_commands.items():
            yield f"{', '.join(f'`{name}`' for name in names)}:\n"
            yield _list(found)


def _usage(command: Any, context: Any) -> str:
    return f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"


def _description(command: Any) -> str:
    return inspect.cleandoc(command.help) + "\n"


def _render(lists: Lists) -> Iterator[str]:
    return (_list(found, title) for title, found in lists.items() if found)


def _list(found: list[Row], title: str = "") -> str:
    lines = [f"- `{flags}`: {meaning}" for flags, meaning in found]
    return "\n".join([f"{title}:\n", *lines] if title else lines) + "\n"


def _row(flags: str, meaning: str) -> Row:
    return flags, re.sub(r"  +", " ", meaning)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
