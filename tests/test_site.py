"""The documentation as a site: every page and link is there, the first page is README's, versions are the tags'."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs MkDocs (make site)")

import build_site  # noqa: E402
import site_hooks  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    for name in ("docs", "release"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(tree / "mkdocs.yml")]
    return subprocess.run(command, capture_output=True, text=True, cwd=tree)


def test_each_page_of_the_list_is_one_of_the_site(tree: Path) -> None:
    done = build(tree)
    assert done.returncode == 0, done.stderr
    listed = set(re.findall(r"\]\(([\w-]+)\.md\)", (ROOT / "docs" / "README.md").read_text("utf-8")))
    assert listed == {path.parent.name for path in (tree / "build" / "site").glob("*/index.html")}
    assert len(json.loads((tree / "build/site/search/search_index.json").read_text("utf-8"))["docs"]) > 200
    start = (tree / "build/site/index.html").read_text("utf-8")
    assert "<table>" in start and 'href="installing/"' in start and "OWNER/pymtp/blob/v" in start
    assert not re.findall(r'(?:src|rel="stylesheet" href)="https?:', start)  # nothing comes from other servers


def test_a_dead_link_ends_it(tree: Path) -> None:
    """Links to files that are not there: test_docs_pages.py."""
    page = tree / "docs" / "lora.md"
    page.write_text(f"{page.read_text('utf-8')}\n[words](cli.md#lost)\n", "utf-8")
    done = build(tree)
    assert done.returncode == 1 and "lora.md" in done.stderr


def test_the_first_page_has_the_figures_of_readme() -> None:
    page = site_hooks.first_page()
    readme = (ROOT / "README.md").read_text("utf-8")
    speeds = re.findall(r"\| [\d*]+ \|", page)
    assert len(speeds) > 15 and all(speed.strip("| ") in readme for speed in speeds)
    assert "make run" in page


@pytest.mark.slow
def test_each_tag_has_its_own_pages(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tree)]
    for command in (("init", "-q", "."), ("add", "-A", "."), ("commit", "-qm", "one"), ("tag", "v0.9.0")):
        subprocess.run([*git, *command], check=True)
    subprocess.run([*git, "tag", "v0.10.0"], check=True)
    monkeypatch.setattr(build_site, "ROOT", tree)
    monkeypatch.setattr(build_site, "PUBLIC", tree / "public")
    build_site.main()
    versions = json.loads((tree / "public" / "versions.json").read_text("utf-8"))
    assert [each["version"] for each in versions] == ["0.10.0", "0.9.0", "dev"]
    assert all((tree / "public" / each["version"] / "cli" / "index.html").is_file() for each in versions)
    page = (tree / "public" / "0.9.0" / "cli" / "index.html").read_text("utf-8")
    assert 'rel="canonical" href="https://owner.github.io/pymtp/0.9.0/cli/"' in page
    assert "/pymtp/0.10.0/cli/" in (tree / "public" / "404.html").read_text("utf-8")
    assert "url=0.10.0/" in (tree / "public" / "index.html").read_text("utf-8")
