"""Writes docs/llama-server.md: what becomes of each flag of the pinned llama-server.

    python docs/write_llama_server.py

Reads llama.cpp's own list, common/arg.cpp, in the tree that `make` has built. A test compares the file with what this
makes of both.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pymtp_cli.llama_cpp import MEANS, REFUSED, found, ignored
from pymtp_cli.table import TABLE

FILE = Path(__file__).with_name("llama-server.md")
SOURCE = FILE.parent.parent / "build" / "editable" / "llama.cpp" / "common" / "arg.cpp"

HEAD = """# Flags of llama-server

<!-- written by docs/write_llama_server.py from cli/llama_cpp.py and llama.cpp's list: change these, `make docs` -->

`pymtp serve` takes a command line of llama-server. A flag that changes nothing here is named in one line on stderr and
left out; one that would change an answer but is missing here ends the program. The variables (`LLAMA_ARG_CTX_SIZE`,
...) are read as well; flags win.

| flag | here | |
|---|---|---|
"""


class Theirs(NamedTuple):
    """A flag of llama-server."""

    names: list[str]
    n_values: int
    variable: str | None


def main() -> None:
    FILE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page."""
    return HEAD + "".join(f"| {' '.join(f'`{name}`' for name in each.names)} | {row(each)} |\n" for each in theirs())


def theirs() -> Iterator[Theirs]:
    """All flags of llama-server, in its order."""
    text = SOURCE.read_text("utf-8")
    entry = re.compile(r"add_opt\(common_arg\(\s*\{([^}]*)\}(?:,\s*\{([^}]*)\})?(.*?)\n +\)(?=[.)])(.*?);\n", re.DOTALL)
    said: set[str] = set()
    for names, negated, body, more in entry.findall(text):
        examples = set(re.findall(r"LLAMA_EXAMPLE_(\w+)", more))
        if examples and not examples & {"SERVER", "COMMON"}:
            continue
        handler = re.search(r"\[\]\s*\(([^)]*)\)", body)
        n_values = len(re.findall(r"std::string|\bint\b", handler[1])) if handler else 0
        variable = re.search(r'set_env\("([^"]*)"\)', more)
        if names not in said:  # the server has some of its own
            said.add(names)
            yield Theirs(re.findall(r'"(-[^"]*)"', names + negated), n_values, variable[1] if variable else None)


@functools.cache
def ours() -> dict[str, list[str]]:
    """The variables of each flag of pymtp serve, by its names."""
    flags = [flag for group in TABLE.values() for flag in group if "serve" in flag.commands]
    return {name: flag.variables for flag in flags for name in "/".join(flag.flags).split("/")}


def row(each: Theirs) -> str:
    """What becomes of a flag, and why."""
    known = ours()
    if any(name in known for name in each.names) or each.names[0] == "-h":
        return "same | "
    for name in each.names:
        if name in MEANS:
            return f"alias | `{MEANS[name]}`"
    reasons = {name: nothing[0] for name in each.names if (nothing := ignored(name))}
    if reasons:
        but_for = "" if len(reasons) == len(each.names) else f", but for {' '.join(f'`{name}`' for name in reasons)}"
        return f"{'refused' if but_for else 'ignored'}{but_for} | {next(iter(reasons.values()))}"
    hint: str | None = next(filter(None, (found(REFUSED, name) for name in each.names)), None)
    if hint is None:
        flags = [flag for group in TABLE.values() for flag in group if {*each.names} & {*flag.flags}]
        hint = f"pymtp {max(command for flag in flags for command in flag.commands)} has it"
    return "refused | " + hint.replace("|", "\\|")


if __name__ == "__main__":
    main()
