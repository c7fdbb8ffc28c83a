"""docs/families.md is what the tests found, as far as that can be said without running them."""

from __future__ import annotations

import pytest

from families import FAMILIES, REFUSED
from families_page import PAGE, read_results, render


def test_the_page_is_made_of_the_table_and_the_results_it_holds() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(read_results(page)) == page, "docs/families.md is out of date: make families"


def test_the_results_are_those_of_the_families_there_are() -> None:
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
