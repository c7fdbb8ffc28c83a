"""Grammars are refused by counts of work, not by a clock: the same everywhere, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pymtp.errors import PymtpError
from pymtp.sampling.grammar import check_grammar

CPU_S_MAX = 5
"""About twenty times of what the slowest of these takes on an idle core."""


def check_refused(run: Callable[[], object], why: str) -> None:
    """It has to fail for this reason, soon, and again in the same words."""
    said = []
    for _ in range(2):
        began = time.thread_time()
        with pytest.raises(PymtpError, match=why) as caught:
            run()
        assert time.thread_time() - began < CPU_S_MAX
        said.append(str(caught.value))
    assert said[0] == said[1]


GRAMMARS = {
    "options": ("root ::= " + '"a"{0,2000} ' * 3000, "its repetitions make too many rules"),
    "a long text": ("root ::= " + f'"{"a" * 300_000}"{{2000}}', "its repetitions make too many rules"),
    "empty rules": (
        "root ::= " + "b " * 100_000 + f'\nb ::= "{"x" * 100_000}" | ""',
        "its rules begin with each other in too many ways",
    ),
    "ways to begin": (
        "root ::= a0\n"
        + "".join(f'a{i} ::= "{"y" * 5000}" | a{i + 1} | a{i + 1}\n' for i in range(18))
        + 'a18 ::= "x"',
        "its rules begin with each other in too many ways",
    ),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_is_checked_by_counts(name: str) -> None:
    grammar, why = GRAMMARS[name]
    check_refused(lambda: check_grammar(grammar), why)
