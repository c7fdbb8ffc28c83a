"""What a process learns of how much to draft, kept for the next one with the same model, parameters and machine.

Owns the files, a small one for each of these. They are hints: the next process goes on as this one would have, so what
was measured in an unusual moment is measured again, and what cannot be read, or is not sound, is left out.
"""

import hashlib
import json
from contextlib import suppress
from typing import Any

from pymtp.binding.library import PIN, SERIES
from pymtp.drafting.policy import AUTO_DRAFT_MAX, FORGET, MEMORY, REVIEW, DraftPolicy
from pymtp.engine.snapshot import write
from pymtp.errors import StateError
from pymtp.text.files import read_record

BUILD = f"{PIN}, series {SERIES}"
N_BYTES_MAX = 1 << 20
N_LEAST = 2
"""Measurements of a kind of pass that are needed to keep their median, and that it counts as, so that new ones soon
move it: a burst of load that was met once is forgotten."""
AGE = FORGET // 8
"""Passes by which what is not in use ages with a process, so that a few processes measure it again."""


class DraftHints:
    """The file of a model, its parameters and machine, all of which the repr of `owner` names."""

    def __init__(self, owner: object) -> None:
        from platformdirs import user_cache_path

        name = hashlib.sha256(repr(owner).encode()).hexdigest()[:32]
        self._path = user_cache_path("pymtp", appauthor=False) / "drafts" / f"{name}.json"
        self.is_wanted = True
        """Whether what is learned is to be kept: not where drafts are accepted by chance."""

    def give_to(self, policy: DraftPolicy) -> None:
        """Let a new policy begin with what an earlier process has learned, if it has."""
        with suppress(OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
            kept = json.loads(read_record(self._path, N_BYTES_MAX))
            if kept["build"] == BUILD:
                go_on(policy, kept)

    def keep(self, policy: DraftPolicy) -> None:
        """Keep what a policy has learned, if it has and there is a place for it."""
        if self.is_wanted and policy.costs.n_passes:
            with suppress(OSError, StateError):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write(self._path, json.dumps({"build": BUILD, **learned(policy)}).encode())


def learned(policy: DraftPolicy) -> dict[str, Any]:
    """What a policy has learned, for `go_on`: all ages are in rounds or passes until now."""
    costs = policy.costs
    kinds = [kind for kind in costs.known if kind == costs.frequent or len(costs.recent[kind]) >= N_LEAST]
    return {
        "rates": policy.rates.learned(),
        "is_plain_checked": policy.is_plain_checked,
        "frequent": costs.frequent,
        "costs": [[*kind, costs.known[kind], costs.n_passes - costs.last[kind]] for kind in kinds],
        "choices": [
            [n, one.steps, one.n_wait, one.n_until, [[k, policy.n_rounds - last] for k, last in one.used.items()]]
            for n, one in policy.choices.items()
        ],
    }


def go_on(policy: DraftPolicy, kept: dict[str, Any]) -> None:
    """Have a new policy go on with what another had learned. Raises ValueError and the like if that is not sound."""
    rates = [(float(rate), int(n)) for rate, n in kept["rates"]]
    costs = {(int(steps), int(rows), int(n)): (float(ms), int(age)) for steps, rows, n, ms, age in kept["costs"]}
    choices = {
        int(n): (int(steps), int(wait), int(until), {int(each): -int(age) for each, age in used})
        for n, steps, wait, until, used in kept["choices"]
    }
    frequent = tuple(kept["frequent"])
    is_sound = (
        len(rates) == len(policy.rates.learned())
        and all(0 <= rate <= 1 and 0 < n <= 4 * MEMORY for rate, n in rates)
        and frequent in costs
        and all(0 <= steps <= AUTO_DRAFT_MAX and 0 < n <= rows < 1 << 16 for steps, rows, n in costs)
        and all(0 < ms < 1e9 and age >= 0 for ms, age in costs.values())
        and all({steps, *used} <= {*policy.lengths} for steps, _, _, used in choices.values())
        and all(0 < wait <= 8 * REVIEW and until <= wait for _, wait, until, _ in choices.values())
        and all(age <= 0 for *_, used in choices.values() for age in used.values())
    )
    if not is_sound:
        raise ValueError("not what a policy has learned")
    policy.rates.go_on(rates)
    measured = {kind: ([ms] * N_LEAST, 0 if kind == frequent else -age - AGE) for kind, (ms, age) in costs.items()}
    policy.costs.go_on(measured, frequent)
    for n, (steps, wait, until, used) in choices.items():
        choice = policy.choices[n]
        choice.steps, choice.n_wait, choice.n_until, choice.used = steps, wait, until, used
    policy.is_plain_checked = bool(kept["is_plain_checked"])
