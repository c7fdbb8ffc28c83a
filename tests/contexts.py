"""Contexts of llama.cpp that come and go, as its log says it: for tests of how many there are."""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Contexts(NamedTuple):
    """Those that were made and freed since the last look."""

    n_made: int
    is_one_freed: bool


NONE, ONE_MADE, ONE_FREED = Contexts(0, False), Contexts(1, False), Contexts(0, True)


def contexts(capfd: pytest.CaptureFixture[str]) -> Contexts:
    """What came and went since the last call. Only while everything is logged: logged("debug")."""
    log = capfd.readouterr().err
    return Contexts(log.count("constructing llama_context"), "~llama_context: " in log)
