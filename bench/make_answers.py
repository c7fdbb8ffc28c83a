"""Writes the pairs of prompts and answers for `pymtp bench --answers`: python bench/make_answers.py bench/answers.

repeating.jsonl: answers that say most of their prompt again, as where code is edited, renamed or reformatted, where
a document is quoted, and where a field of a JSON file changes. fresh.jsonl: how files continue, so that little of it
was said before. Both are made from this repository's files and the standard library's, in the same way each time; only
another version of Python or of the repository gives other ones.
"""

from __future__ import annotations

import argparse
import ast
import csv
import inspect
import json
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
N_PAIRS = 32
LENGTHS = 400, 1100
"""Characters of a piece that is worked on: some 150 to 400 tokens."""


def library() -> list[ModuleType]:
    """Modules of the standard library that are plain Python."""
    import argparse
    import bisect
    import calendar
    import configparser
    import csv
    import fractions
    import heapq
    import shlex
    import statistics
    import textwrap

    return [argparse, bisect, calendar, configparser, csv, fractions, heapq, shlex, statistics, textwrap]


def functions() -> list[str]:
    """Functions and methods of both, in a shuffled order that is always the same."""
    sources = [inspect.getsource(module) for module in library()]
    sources += [path.read_text("utf-8") for path in sorted(ROOT.glob("pymtp/*/*.py"))]
    found = []
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                text = textwrap.dedent("\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno]))
                if LENGTHS[0] <= len(text) <= LENGTHS[1]:
                    found.append(text)
    random.Random(1).shuffle(found)
    return found


def paragraphs() -> list[str]:
    """Of the repository's pages: prose, without tables, lists and headings."""
    found = []
    for path in sorted(ROOT.glob("docs/*.md")):
        if path.name not in ("api.md", "cli.md"):
            blocks = path.read_text("utf-8").split("\n\n")
            found += [block.strip() for block in blocks if block[:1].isalpha() and 150 <= len(block) <= LENGTHS[1]]
    random.Random(1).shuffle(found)
    return found


def tables() -> list[list[dict[str, str]]]:
    """Rows of the repository's measurements."""
    found = []
    for path in sorted(ROOT.glob("bench/results/*.csv")):
        rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
        found += [
            [{key: row[key] for key in list(row)[:6]} for row in rows[begin : begin + 5]] for begin in (0, 10, 20)
        ]
    random.Random(1).shuffle(found)
    return [table for table in found if len(table) == 5]


def rename(text: str) -> tuple[str, str] | None:
    """The argument, or else the variable, that occurs most often gets another name."""
    names = [name for name in re.findall(r"\b[a-z_]{4,}\b", text) if name not in ("self", "return", "None", "else")]
    assigned = {name for name in names if re.search(rf"\b{name}\b\s*(=|:|,|\))", text)}
    if not assigned:
        return None
    name = max(sorted(assigned), key=names.count)
    answer = re.sub(rf"\b{name}\b", f"new_{name}", text)
    return f"Rename `{name}` to `new_{name}` in this function:\n```python\n{text}\n```\n", f"```python\n{answer}\n```\n"


def edit(text: str) -> tuple[str, str] | None:
    """A line is added before the first `return`."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if line.strip().startswith("return")), None)
    if at is None:
        return None
    indent = re.match(r"\s*", lines[at])
    added = f'{indent[0] if indent else ""}logger.debug("about to return")'
    answer = "\n".join([*lines[:at], added, *lines[at:]])
    return f"Log a message before this function returns:\n```python\n{text}\n```\n", f"```python\n{answer}\n```\n"


def reformat(text: str) -> tuple[str, str] | None:
    """Two spaces instead of four."""
    answer = re.sub(r"^( +)", lambda found: " " * (len(found[1]) // 2), text, flags=re.MULTILINE)
    return f"Indent this function by two spaces:\n```python\n{text}\n```\n", f"```python\n{answer}\n```\n"


def quote(paragraph: str, others: list[str]) -> tuple[str, str]:
    """One paragraph of several is quoted, between two short sentences."""
    document = "\n\n".join([others[0], paragraph, *others[1:]])
    first = " ".join(paragraph.split()[:5])
    prompt = f'{document}\n\nQuote the paragraph that begins with "{first}", and nothing else of the text.\n\n'
    return prompt, f"The paragraph says:\n\n> {paragraph}\n\nThis is the whole of it.\n"


def change_json(table: list[dict[str, str]]) -> tuple[str, str]:
    """One field of the third record changes."""
    before, key = json.dumps(table, indent=2), list(table[2])[-1]
    changed = [{**row, key: "0"} if i == 2 else row for i, row in enumerate(table)]
    prompt = f'Set "{key}" of the third record to "0":\n```json\n{before}\n```\n'
    return prompt, f"```json\n{json.dumps(changed, indent=2)}\n```\n"


def repeating() -> Iterator[dict[str, str]]:
    """The pairs whose answers repeat their prompts."""
    code, prose, data = iter(functions()), paragraphs(), tables()
    edits: dict[str, Callable[[str], tuple[str, str] | None]] = {"rename": rename, "edit": edit, "reformat": reformat}
    for i in range(N_PAIRS):
        kind = ("rename", "edit", "reformat", "quote", "json")[i % 5]
        if kind == "quote":
            pair: tuple[str, str] | None = quote(prose[i], [prose[i + 1], prose[i + 2]])
        elif kind == "json":
            pair = change_json(data[i // 5])
        else:
            pair = next(filter(None, map(edits[kind], code)))
        assert pair is not None
        yield {"category": kind, "prompt": pair[0], "answer": pair[1]}


def fresh() -> Iterator[dict[str, str]]:
    """The pairs of a beginning and what follows it."""
    code, prose = functions()[::-1], paragraphs()[::-1]
    for i in range(N_PAIRS // 2):
        lines = code[i].splitlines(keepends=True)
        yield {"category": "code", "prompt": "".join(lines[:3]), "answer": "".join(lines[3:])}
        words = prose[i].split(" ")
        yield {"category": "prose", "prompt": " ".join(words[:8]), "answer": " " + " ".join(words[8:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("repeating", repeating()), ("fresh", fresh())):
        lines = [json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
