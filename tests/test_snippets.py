"""The Python blocks of the documentation run as printed, each on its own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pymtp

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/python.md")
BLOCKS = [
    (page, number, block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S))
]


@pytest.mark.model
@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_a_block_runs_as_printed(
    page: str, number: int, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": "__main__"})


@pytest.mark.slow
def test_a_type_checker_finds_nothing_wrong_with_a_block(tmp_path: Path) -> None:
    for page, number, block in BLOCKS:
        (tmp_path / f"{Path(page).stem}_{number}.py").write_text(block, "utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--check-untyped-defs", "--scripts-are-modules"]
    done = subprocess.run([*command, *map(str, tmp_path.glob("*.py"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_page_has_blocks() -> None:
    assert {page for page, _, _ in BLOCKS} == set(PAGES)


def test_the_reference_is_that_of_the_package() -> None:
    import write_api

    assert write_api.FILE.read_text("utf-8") == write_api.text(), "run `make docs`"
    assert {name for names in write_api.SECTIONS.values() for name in names} == set(dir(pymtp)) - {
        "__version__",
        "IMAGE_MARKER",
    }


def test_completion_shows_what_the_package_exports() -> None:
    assert dir(pymtp) == sorted(vars(pymtp)["__all__"])
    assert all(hasattr(pymtp, name) for name in dir(pymtp))


def test_type_checkers_see_the_public_names_where_they_are_at_run_time() -> None:
    tree = ast.parse(Path(pymtp.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [each for each in tree.body if isinstance(each, ast.ImportFrom)]
    seen = {
        alias.name: getattr(import_module(str(each.module)), alias.name) for each in imports for alias in each.names
    }
    assert seen == {name: getattr(pymtp, name) for name in dir(pymtp)}
