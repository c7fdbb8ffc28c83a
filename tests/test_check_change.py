"""Which checks a change needs."""

from __future__ import annotations

import re

import pytest

from check_change import CHECKS, ROOT, checks_of, git


def commands_of(*paths: str) -> list[str]:
    return [check.command for check in checks_of(paths)]


def test_every_change_needs_the_tests_and_the_linters() -> None:
    assert commands_of("docs/server.md") == ["make lint", "make test"]
    assert commands_of() == []


def test_a_change_of_the_engine_needs_what_is_native() -> None:
    found = commands_of("docs/server.md", "native/src/engine/mtp-graph.cpp")
    assert {"make check-native", "make families", "make soak-address"} < set(found)
    assert "make check-emulated" in commands_of("native/src/cpu/cpu-few-rows.h")


def test_every_check_is_about_files_that_exist() -> None:
    paths = git("ls-files")
    if not paths:
        pytest.skip("git does not read this checkout: it is another user's, or no clone")
    assert [check for check in CHECKS if not any(re.search(check.files, path) for path in paths)] == []


def test_every_check_is_a_target_or_a_program() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {check.command.split()[1] for check in CHECKS if check.command.startswith("make ")} <= targets
    named = [word for check in CHECKS for word in check.command.split() if word.startswith("tests/")]
    assert named and all((ROOT / name).exists() for name in named)
