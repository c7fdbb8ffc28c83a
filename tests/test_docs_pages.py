"""The pages of the documentation: their links lead somewhere, files that they name exist, and they stay readable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "native/patches/README.md", "bench/README.md"]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in OTHERS)]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.md"))
FORMS = ["CODE_OF_CONDUCT.md", "release/RELEASING.md", ".github/PULL_REQUEST_TEMPLATE.md"]
FORMS += [path.relative_to(ROOT).as_posix() for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
GENERATED = {"api.md", "cli.md", "families.md", "llama-server.md", "results.md"}
MOST_WORDS = 24_000
"""Of pages that somebody wrote."""
MOST_COLUMNS = 120

CODE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`((?:bench|cli|docs|native|pymtp|requirements|tests|training)/[\w./*-]+)`")
NOT_IN_A_CHECKOUT = {"pymtp/lib"}  # where a wheel has its backends


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text("utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("name", FORMS)
def test_forms_name_what_is_there(name: str) -> None:
    """A form has no place of its own: its links lead to the repository's pages on GitHub."""
    text = (ROOT / name).read_text("utf-8")
    assert all((ROOT / path).is_file() for path in re.findall(r"/blob/main/([\w./-]+)", text))
    assert all((ROOT / path).exists() for path in re.findall(r"`((?:docs|release|\.github)/[\w./-]+)`", text))
    flags = set(re.findall(r"--[a-z][\w-]+", (ROOT / "docs" / "cli.md").read_text("utf-8")))
    for command in re.findall(r"`(pymtp [^`]*)`", text):
        assert {word for word in command.split() if word.startswith("--")} <= flags | {"--version"}, command
    if name.endswith(".yml") and not name.endswith("config.yml"):
        form = yaml.safe_load(text)
        assert form["name"] and form["description"] and all(field["attributes"] for field in form["body"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(NAMED.findall(page.read_text("utf-8"))) - NOT_IN_A_CHECKOUT
    assert not [path for path in sorted(named) if not list(ROOT.glob(path.rstrip("/.")))]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=name_of)
def test_lines_fit_an_editor(page: Path) -> None:
    lines = CODE.sub("", page.read_text("utf-8")).splitlines()
    assert not [line for line in lines if len(line) > MOST_COLUMNS and not line.startswith(("|", "!["))]


def test_the_pages_are_short_enough_to_be_read() -> None:
    words = {name_of(page): len(page.read_text("utf-8").split()) for page in PAGES if page.name not in GENERATED}
    assert sum(words.values()) <= MOST_WORDS, words
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
    assert len((ROOT / "docs" / "decisions.md").read_text("utf-8").splitlines()) <= 300
