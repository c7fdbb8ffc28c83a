"""Makes and checks a release: one version in all files, a date in the changelog, and notes from it.

    python release/cut_release.py prepare 0.2.0             writes version and date, then checks all
    python release/cut_release.py check v0.2.0 [PRINTED]    fails unless all agree; PRINTED: `pymtp --version`
    python release/cut_release.py notes                     the newest section of the changelog
    python release/cut_release.py readme                    gives README.md links that work on PyPI

Knows where versions are written. Needs nothing but Python, commits nothing and sends nothing.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = "docs/changelog.md"
VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "CMakeLists.txt": r"^project\(pymtp VERSION (\S+) ",
    "CITATION.cff": r"^version: (\S+)$",
    "docs/sbom.cdx.json": r'"name": "pymtp-gguf",\n +"version": "(.+)"',
    CHANGELOG: r"^## (.+?) \(",
}
"""Where each file has the version: the pattern's group, at its first match."""
DATE = r"^## .+? \((.+)\)$"
"""Of the changelog's newest section."""
SOURCE = r'^Source = "(.+?)/?"$'
NO_OWNER = "OWNER"
"""In the address of the source until a maintainer has set it."""
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|mailto:|#)([^)\s]+)\)")


class BadRelease(Exception):
    """What a release lacks, with the fix, a line for each thing."""


def read(root: Path, name: str, pattern: str) -> str:
    """What the first match of `pattern` has in its group. Raises BadRelease: nothing matches, or there is no file."""
    return _found(root, name, pattern)[1]


def write(root: Path, name: str, pattern: str, value: str) -> None:
    """Put `value` where `read` finds one."""
    found = _found(root, name, pattern)
    text = found.string[: found.start(1)] + value + found.string[found.end(1) :]
    (root / name).write_text(text, "utf-8")


def _found(root: Path, name: str, pattern: str) -> re.Match[str]:
    path = root / name
    found = re.search(pattern, path.read_text("utf-8"), re.MULTILINE) if path.is_file() else None
    if not found:
        raise BadRelease(f"{name}: nothing matches {pattern}")
    return found


def source_url(root: Path) -> str:
    """Where the repository is: [project.urls] of pyproject.toml, the only place that says so."""
    return read(root, "pyproject.toml", SOURCE)


def prepare(root: Path, version: str, today: date) -> None:
    """Write version and date everywhere.

    Raises:
        BadRelease: the version is not three numbers, or the changelog's newest section is released already.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise BadRelease(f"{version}: a version is three numbers, like 0.2.0")
    if read(root, CHANGELOG, DATE) != "unreleased":
        raise BadRelease(f'{CHANGELOG}: begin it with "## {version} (unreleased)" and what is new')
    for name, pattern in VERSIONS.items():
        write(root, name, pattern, version)
    write(root, CHANGELOG, DATE, today.isoformat())


def check(root: Path, tag: str, printed: str | None = None) -> None:
    """Compare the tag with all versions, and with `printed`.

    Args:
        printed: what `pymtp --version` of the built package prints; None where nothing is built yet.

    Raises:
        BadRelease: something differs, the changelog has no date, or the source's owner is not set.
    """
    wrong = []
    for name, pattern in VERSIONS.items():
        if (version := read(root, name, pattern)) != tag.removeprefix("v"):
            wrong += [f"{name} has version {version}, the tag is {tag}"]
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day := read(root, CHANGELOG, DATE)):
        wrong += [f"{CHANGELOG} has {day} in the place of a date"]
    if not tag.startswith("v"):
        wrong += [f"{tag}: a tag begins with v"]
    if NO_OWNER in source_url(root):
        wrong += [f"pyproject.toml: set {NO_OWNER} in Source of [project.urls]"]
    if printed is not None and printed.split()[:2] != ["pymtp", tag.removeprefix("v")]:
        wrong += [f'`pymtp --version` prints "{printed.strip()}", the tag is {tag}']
    if wrong:
        raise BadRelease("\n".join(wrong))


def notes(root: Path) -> str:
    """The newest section of the changelog, without its heading, with links to the files of its tag."""
    text = (root / CHANGELOG).read_text("utf-8")
    version = read(root, CHANGELOG, VERSIONS[CHANGELOG])
    section = re.split(r"^## .*\n", text, flags=re.MULTILINE)[1].strip()
    return absolute_links(section, "docs", f"{source_url(root)}/blob/v{version}") + "\n"


def absolute_links(text: str, folder: str, base: str, kept: str | tuple[str, ...] = "\n") -> str:
    """Markdown of a page in `folder`, whose links to files of the repository lead to `base`.

    Args:
        kept: links to paths that begin like this stay as they are.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if path.startswith(kept):
            return found[0]
        url = f"{base}/{path}" + ("?raw=true" if picture else "") + (f"#{anchor}" if anchor else "")
        return f"{picture}{words}({url})"

    return LINK.sub(absolute, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("prepare").add_argument("version")
    checked = steps.add_parser("check")
    checked.add_argument("tag")
    checked.add_argument("printed", nargs="?")
    steps.add_parser("notes")
    steps.add_parser("readme")
    asked = parser.parse_args()
    try:
        if asked.step == "prepare":
            prepare(ROOT, asked.version, date.today())
            check(ROOT, f"v{asked.version}")
        elif asked.step == "check":
            check(ROOT, asked.tag, asked.printed)
        elif asked.step == "notes":
            print(notes(ROOT), end="")
        else:
            page = ROOT / "README.md"
            base = f"{source_url(ROOT)}/blob/v{read(ROOT, 'pyproject.toml', VERSIONS['pyproject.toml'])}"
            page.write_text(absolute_links(page.read_text("utf-8"), "", base), "utf-8")
    except BadRelease as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
