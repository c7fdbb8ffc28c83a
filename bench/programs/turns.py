"""Asks programs in turn, so that whatever else the machine does hits all of them alike.

Owns the order, and which programs take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import NamedTuple

from pymtp.benchmark.prompts import Prompt

from .case import Case, Memory, Program, ProgramFailed, Sample
from .catalogue import CATALOGUE

SETTLE_S = 0.02
"""Before each answer: threads of the program before may still spin."""


class Turn(NamedTuple):
    """Every program answers once."""

    prompt: int
    """Its index."""
    repetition: int


Samples = dict[Turn, Sample]
"""Those of two programs in one turn are a pair."""


@dataclass
class Found:
    """What was measured of a program."""

    name: str
    samples: Samples = field(default_factory=dict)
    memory: Memory = Memory(None, None)
    failure: str | None = None
    """Why it was left out; it has no samples then."""


def ask_in_turn(
    names: Sequence[str], case: Case, prompts: Sequence[Prompt], n_repeat: int, deadline: float
) -> list[Found]:
    """Ask every program for every prompt, `n_repeat` times; each time another one begins.

    Behind the first turn no answer is begun after `deadline` (of time.monotonic()). A program that fails is left out,
    with the reason.
    """
    found = [Found(name) for name in names]
    running: dict[int, Program] = {}
    try:
        for i, entry in enumerate(found):
            try:
                running[i] = CATALOGUE[entry.name].start(case)
                running[i].answer(prompts[0])  # builds graphs, touches pages
            except ProgramFailed as error:
                _leave_out(i, running, entry, error)
        turns = [Turn(j, repetition) for repetition in range(n_repeat) for j in range(len(prompts))]
        for n, turn in enumerate(turns):
            for i in sorted(running, key=lambda i: (i - n) % len(found)):
                if n > 0 and monotonic() > deadline:
                    break
                sleep(SETTLE_S)
                try:
                    found[i].samples[turn] = running[i].answer(prompts[turn.prompt])
                except ProgramFailed as error:
                    _leave_out(i, running, found[i], error)
        for i, program in running.items():
            found[i].memory = program.memory()
    finally:
        for program in running.values():
            program.close()
    return found


def _leave_out(i: int, running: dict[int, Program], entry: Found, error: ProgramFailed) -> None:
    if i in running:
        running.pop(i).close()
    entry.failure = str(error)
    entry.samples.clear()
