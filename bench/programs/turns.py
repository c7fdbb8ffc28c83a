"""Runs programs in turn, so that whatever else the machine does affects all of them alike.

Owns the order, and which programs take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep

from pymtp.benchmark.experiment import Trial
from pymtp.benchmark.prompts import Prompt

from .case import Case, Memory, Program, ProgramFailed, Sample
from .catalogue import CATALOGUE

SETTLE_S = 0.02
"""Pause before each answer: threads of the previous program may still spin."""


Samples = dict[Trial, Sample]
"""Samples of two programs in the same trial are a pair."""


@dataclass
class ProgramResult:
    """The measurements of one program."""

    name: str
    samples: Samples = field(default_factory=dict)
    memory: Memory = Memory(None, None)
    failure: str | None = None
    """Why it was left out; it has no samples then."""


def ask_in_turn(
    names: Sequence[str], case: Case, prompts: Sequence[Prompt], n_repeat: int, deadline: float
) -> list[ProgramResult]:
    """Let every program answer every prompt `n_repeat` times, in rotating order.

    After the first trial, no answer starts after `deadline` (of time.monotonic()). A program that fails is left out,
    with the reason.
    """
    found = [ProgramResult(name) for name in names]
    running: dict[int, Program] = {}
    try:
        for i, entry in enumerate(found):
            try:
                running[i] = CATALOGUE[entry.name].start(case)
                running[i].answer(prompts[0])  # builds graphs, touches pages
            except ProgramFailed as error:
                _leave_out(i, running, entry, error)
        trials = [Trial(j, repetition) for repetition in range(n_repeat) for j in range(len(prompts))]
        for n, trial in enumerate(trials):
            for i in sorted(running, key=lambda i: (i - n) % len(found)):
                if n > 0 and monotonic() > deadline:
                    break
                sleep(SETTLE_S)
                try:
                    found[i].samples[trial] = running[i].answer(prompts[trial.prompt])
                except ProgramFailed as error:
                    _leave_out(i, running, found[i], error)
        for i, program in running.items():
            found[i].memory = program.memory()
    finally:
        for program in running.values():
            program.close()
    return found


def _leave_out(i: int, running: dict[int, Program], entry: ProgramResult, error: ProgramFailed) -> None:
    if i in running:
        running.pop(i).close()
    entry.failure = str(error)
    entry.samples.clear()
