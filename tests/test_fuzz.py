"""The fuzzers work: each runs a few cases, finds nothing, and would say so if it did."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import ClassVar

import pytest

import fuzz
from fuzz import runner
from fuzz.__main__ import main
from fuzz.fuzzer import Fuzzer
from machine import needs_no_gpu

_ON_CPUS = {"bodies", "loads"}  # CUDA takes addresses without end, of which the limit of memory is one
_NAMES = [pytest.param(name, marks=needs_no_gpu if name in _ON_CPUS else ()) for name in fuzz.FUZZERS]


@pytest.mark.parametrize("name", _NAMES)
def test_a_fuzzer_finds_nothing_in_a_few_cases(name: str) -> None:
    report = runner.fuzz(name, seed=1, n_cases=3)
    assert report.n_cases == 3 == report.outcomes.total()
    assert not report.faults, str(report.faults)


class Faulty(Fuzzer):
    """Whose cases end in all the ways that are faults."""

    name = "faulty"
    limit_s = 1
    memory_bytes = 64 << 20
    faults: ClassVar = ("traceback", "signal", "hang", "memory")

    def __init__(self, folder: Path) -> None:
        pass

    def case(self, chance: random.Random) -> str:
        return chance.choice([*self.faults, "good"])

    def run(self, case: str) -> str:
        if case == "traceback":
            raise KeyError(case)
        if case == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        while case == "hang":
            time.sleep(0.01)
        if case == "memory":
            bytearray(256 << 20)
        return case


def test_every_kind_of_fault_is_found_with_the_number_of_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    # children import the package again: this module puts the fuzzer there too
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(runner, "MODULE", "test_fuzz")
    cases = [Faulty(Path()).case(runner.random_of("faulty", 61, number)) for number in range(5)]
    assert set(cases) == {*Faulty.faults, "good"}
    report = runner.fuzz("faulty", seed=61, n_cases=5)
    assert report.n_cases == 5 and report.outcomes == {"good": cases.count("good")}
    words = {"traceback": "KeyError", "signal": "SIGSEGV", "hang": "Hang", "memory": "MemoryError"}
    assert [(number, words[cases[number]] in fault) for number, fault in report.faults] == [
        (number, True) for number, case in enumerate(cases) if case != "good"
    ]


if __name__ == "__main__":
    fuzz.FUZZERS["faulty"] = Faulty
    main()
