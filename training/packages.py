"""Text of source archives: Python as code, reStructuredText and Markdown as prose. packages.txt lists them and their
licences; `pip download --no-deps --no-binary :all:` fetches them.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tarfile
import warnings
from pathlib import Path, PurePosixPath

SIZES = range(400, 80_000)
SKIPPED = re.compile(
    r"(^|/)(tests?|testing|vendor|_vendor|locale|locales|migrations|changes|changelog\w*|releases)(/|\.|_)", re.I
)


def read(folder: Path) -> tuple[list[str], list[str]]:
    """Prose and code, each document once."""
    prose, code, seen = [], [], set()
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as files:
            for member in files:
                path = PurePosixPath(member.name)
                if not member.isfile() or member.size not in SIZES or SKIPPED.search(member.name):
                    continue
                if path.suffix not in (".py", ".rst", ".md", ".txt") or (
                    path.suffix == ".txt" and "docs" not in path.parts
                ):
                    continue
                content = files.extractfile(member)
                assert content
                text = content.read().decode("utf-8", "replace").strip()
                digest = hashlib.sha1(text.encode()).digest()
                if digest in seen or sum(character > "\x7f" for character in text) > len(text) / 100:
                    continue
                seen.add(digest)
                if path.suffix != ".py":
                    prose.append(text)
                elif _parses(text):
                    code.append(text)
    return prose, code


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
