"""docs/families.md agrees with the tests, as far as that can be checked without running them."""

from __future__ import annotations

import pytest

from families import FAMILIES, REFUSED
from families_page import PAGE, read_results, render


def test_the_page_matches_the_table_and_its_own_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(read_results(page)) == page, "docs/families.md is out of date: make families"


def test_the_results_cover_exactly_the_known_families() -> None:
    results = read_results(PAGE.read_text(encoding="utf-8"))
    assert list(results["families"]) == list(FAMILIES)
    assert results["refused"] == [name for name, refused in REFUSED.items() if refused.write]


@pytest.mark.parametrize("name", FAMILIES)
def test_figures_are_small_with_the_right_hidden_states_and_large_with_others(name: str) -> None:
    found = read_results(PAGE.read_text(encoding="utf-8"))["families"][name]
    assert found["checks"] > 15
    if "difference" in found:
        assert found["difference"] < 1e-4
        assert found["other state"] > 0.1
    else:
        assert not FAMILIES[name].after
