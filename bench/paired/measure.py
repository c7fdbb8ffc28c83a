"""Times schemes in turn, so that whatever else the machine does affects all of them alike.

Owns the clock.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import pymtp.engine.session

from . import second_context
from .schemes import Played, Scheme, Work, play
from .scripted import ScriptedRound

N_WARMUP = 12
"""Rounds before the measured ones, which build every graph and touch every page."""
N_CLOCKED = 24
"""Rounds after the measured ones, in which each call of native code is timed, too."""


@dataclass
class Rounds:
    """The measurements of one scheme."""

    ms: list[float] = field(default_factory=list)
    """Of each round."""
    python_ms: list[float] = field(default_factory=list)
    """Of each clocked round: the time outside of native code, picking with NumPy included."""
    work: Work = field(default_factory=Work)
    """Mean per round, in the last repetition."""
    drafts: list[list[int]] = field(default_factory=list)
    """What was drafted in the rounds of the last repetition."""
    n_astray: int = 0
    """Rounds whose acceptance was not the scripted one, because passes of several rows round differently."""


def walk(schemes: Sequence[Scheme], scripts: Sequence[list[ScriptedRound]], prompt: list[int]) -> list[Rounds]:
    """Run each scheme's script (N_WARMUP rounds, those to measure, and N_CLOCKED) once, round by round in turn."""
    n_rounds = len(scripts[0]) - N_WARMUP - N_CLOCKED
    for scheme in schemes:
        scheme.begin(prompt)
    for _ in _in_turn(schemes, scripts, 0, N_WARMUP):
        pass
    before = [scheme.work() for scheme in schemes]
    results = [Rounds() for _ in schemes]
    gc.collect()
    gc.disable()
    try:
        for i, played, script, ms in _in_turn(schemes, scripts, N_WARMUP, n_rounds):
            results[i].ms.append(ms)
            results[i].drafts.append(played.drafts)
            results[i].n_astray += not played.follows(script)
        for result, scheme, start in zip(results, schemes, before, strict=True):
            result.work = scheme.work().per_round(start, n_rounds)
        with native_clock() as clock:
            for i, _, _, ms in _in_turn(schemes, scripts, N_WARMUP + n_rounds, N_CLOCKED):
                results[i].python_ms.append(ms - clock.take_ms())
    finally:
        gc.enable()
    return results


def _in_turn(
    schemes: Sequence[Scheme], scripts: Sequence[list[ScriptedRound]], first: int, n: int
) -> Iterator[tuple[int, Played, ScriptedRound, float]]:
    """Run `n` rounds of all schemes in rotating order. Yields the scheme's index, the results, the script and ms."""
    for i in range(first, first + n):
        for j in range(len(schemes)):
            k = (i + j) % len(schemes)
            script = scripts[k][i]
            begin = perf_counter()
            played = play(schemes[k], script)
            yield k, played, script, (perf_counter() - begin) * 1000


class NativeClock:
    """Sums the time in native code."""

    def __init__(self) -> None:
        self._ms = 0.0

    def take_ms(self) -> float:
        """The time since the last call."""
        taken, self._ms = self._ms, 0.0
        return taken

    def wrap(self, library: object) -> object:
        """A substitute for `library` whose functions are timed."""
        return _Timed(library, self)

    def add_since(self, begin: float) -> None:
        """Count the time since `begin`."""
        self._ms += (perf_counter() - begin) * 1000


class _Timed:
    def __init__(self, library: object, clock: NativeClock) -> None:
        self._library = library
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)

        def timed(*args: object) -> Any:
            begin = perf_counter()
            result = found(*args)
            self._clock.add_since(begin)
            return result

        # types and constants are returned as they are
        is_function = callable(found) and not isinstance(found, type)
        setattr(self, name, timed if is_function else found)
        return getattr(self, name)


@contextmanager
def native_clock() -> Iterator[NativeClock]:
    """Times each call of the schemes into native code while the context is active."""
    clock = NativeClock()
    places = [(pymtp.engine.session, "lib"), (second_context, "llama_cpp"), (second_context, "ext")]
    originals = [getattr(module, name) for module, name in places]
    for (module, name), library in zip(places, originals, strict=True):
        setattr(module, name, clock.wrap(library))
    try:
        yield clock
    finally:
        for (module, name), library in zip(places, originals, strict=True):
            setattr(module, name, library)
