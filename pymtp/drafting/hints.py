"""What a process learns of how much to draft, kept for the next one with the same model, parameters and machine.

Owns the files, a small one for each of these. They are hints: the next process goes on as this one would have, so what
was measured in an unusual moment is measured again, and what cannot be read, or is not sound, is left out.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymtp.binding.library import PIN, SERIES
from pymtp.drafting.policy import AUTO_DRAFT_MAX, FORGET, MEMORY, REVIEW, DraftPolicy, Rates
from pymtp.engine.snapshot import write
from pymtp.errors import StateError
from pymtp.text.files import read_record

BUILD = f"{PIN}, series {SERIES}"
N_BYTES_MAX = 1 << 18
AGE = FORGET // 8
"""Passes by which what is not in use ages with a process, so that a few processes measure it again."""


class DraftHints:
    """The file of a model, its parameters and machine, all of which the repr of `owner` names."""

    def __init__(self, owner: object) -> None:
        self._name = hashlib.sha256(repr(owner).encode()).hexdigest()[:32] + ".json"
        self.is_wanted = True
        """Whether what is learned is to be kept: not where drafts are accepted by chance."""

    def give_to(self, policy: DraftPolicy) -> None:
        """Let a new policy begin with what an earlier process has learned, if it has."""
        with suppress(OSError, ValueError, TypeError, KeyError, ArithmeticError, RuntimeError):
            kept = json.loads(read_record(self._path(), N_BYTES_MAX))
            if kept["build"] == BUILD:
                go_on(policy, kept)

    def keep(self, policy: DraftPolicy) -> None:
        """Keep what a policy has learned, if it has and there is a place for it."""
        if self.is_wanted and policy.costs.n_passes:
            with suppress(OSError, RuntimeError, StateError):
                path = self._path()
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write(path, json.dumps({"build": BUILD, **learned(policy)}).encode())

    def _path(self) -> Path:
        """Raises OSError or RuntimeError where the user has no folder for it."""
        from platformdirs import user_cache_path

        folder = user_cache_path("pymtp", appauthor=False)
        if not folder.is_absolute():
            raise OSError("no home folder")
        return folder / "drafts" / self._name


def learned(policy: DraftPolicy) -> dict[str, Any]:
    """What a policy has learned, for `go_on`: all ages are in rounds or passes until now."""
    costs, n_rounds = policy.costs, policy.n_rounds
    return {
        "rates": policy.rates.learned,
        "is_plain_checked": policy.is_plain_checked,
        "frequent": costs.frequent,
        "costs": [[*kind, ms, costs.n_passes - costs.last[kind]] for kind, ms in costs.known.items()],
        "choices": [
            [n, one.steps, one.n_wait, one.n_until, [n_rounds - one.used.get(steps, 0) for steps in policy.lengths]]
            for n, one in policy.choices.items()
        ],
    }


def go_on(policy: DraftPolicy, kept: dict[str, Any]) -> None:
    """Have a new policy go on with what another had learned. Raises ValueError and the like if that is not sound."""
    rates = [float(rate) for rate in kept["rates"]]
    costs = {(int(steps), int(rows), int(n)): (float(ms), int(age) + AGE) for steps, rows, n, ms, age in kept["costs"]}
    choices = {
        int(n): (int(steps), int(wait), int(until), [int(age) for age in ages])
        for n, steps, wait, until, ages in kept["choices"]
    }
    frequent = tuple(kept["frequent"])
    is_sound = (
        len(rates) == len(policy.rates.learned)
        and all(0 <= rate <= 1 for rate in rates)
        and frequent in costs
        and all(0 <= steps <= AUTO_DRAFT_MAX and 0 < n <= rows < 1 << 16 for steps, rows, n in costs)
        and all(1e-6 < ms < 1e9 and age >= 0 for ms, age in costs.values())
        and all(steps in policy.lengths and len(ages) == len(policy.lengths) for steps, _, _, ages in choices.values())
        and all(0 < wait <= 8 * REVIEW and until <= wait for _, wait, until, _ in choices.values())
        and all(0 <= age < 1 << 40 for *_, ages in choices.values() for age in ages)
    )
    if not is_sound:
        raise ValueError("not what a policy has learned")
    policy.rates = Rates(rates, 4 * MEMORY)
    policy.costs.go_on(costs, frequent)
    for n, (steps, wait, until, ages) in choices.items():
        choice = policy.choices[n]
        choice.steps, choice.n_wait, choice.n_until = steps, wait, until
        choice.used = {length: -age for length, age in zip(policy.lengths, ages, strict=True)}
    policy.is_plain_checked = bool(kept["is_plain_checked"])
