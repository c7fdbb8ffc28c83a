"""What a generation did: counts, times, and how many drafts the target accepted.

Owns the arithmetic of the report. Reads no clock and knows neither tokens nor text: the caller
sets the counts and times, and adds one entry for each round.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

_REPORTED = (
    *("prompt_tokens", "prompt_tok_s", "generated_tokens", "generation_tok_s", "rounds", "drafted", "accepted"),
    *("acceptance_rate", "mean_acceptance_length", "acceptance_per_position"),
)


@dataclass(repr=False)
class Stats:
    """Counts and times (seconds) of one generation, or of several together.

    Times are those of the passes, not of what the caller does between them.
    A round is one verify pass of the target, even if it verified no drafts.
    """

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    generation_s: float = 0.0
    draft_s: float = 0.0
    """The part of generation_s that the heads' passes took."""
    verify_s: float = 0.0
    """The part of generation_s that the trunk's passes took."""
    sample_s: float = 0.0
    """The part of generation_s that samplers took, for drafts and for the target."""
    # (n_drafted, n_accepted) -> rounds. Few distinct pairs exist, so a generation of any length
    # keeps a constant size, and every report below can be derived from the pairs.
    _rounds: Counter[tuple[int, int]] = field(default_factory=Counter, repr=False)

    def __add__(self, other: Stats) -> Stats:
        return self._combined(other, operator.add)

    def __sub__(self, earlier: Stats) -> Stats:
        """What has come since these were `earlier`."""
        return self._combined(earlier, operator.sub)

    def _combined(self, other: Stats, how: Callable[[Any, Any], Any]) -> Stats:
        sums = {each.name: how(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)[:-1]}
        return Stats(**sums, _rounds=how(Counter(dict(self._counts())), Counter(dict(other._counts()))))

    def __repr__(self) -> str:
        rate = "-" if self.acceptance_rate is None else f"{self.acceptance_rate:.2f}"
        return (
            f"<pymtp.Stats {self.prompt_tokens} prompt tokens, {self.generated_tokens} generated in "
            f"{self.generation_s:.3f} s, {self.accepted} of {self.drafted} drafts accepted ({rate}), "
            f"{self.rounds} rounds>"
        )

    def add_round(self, n_drafted: int, n_accepted: int) -> None:
        """Count one round that drafted `n_drafted` tokens, of which the first `n_accepted` were kept."""
        if not 0 <= n_accepted <= n_drafted:
            raise ValueError(f"a round cannot accept {n_accepted} of {n_drafted} drafts")
        self._rounds[n_drafted, n_accepted] += 1

    @property
    def prompt_tok_s(self) -> float | None:
        """Prompt tokens per second; None before any time was measured."""
        return _per_second(self.prompt_tokens, self.prompt_s)

    @property
    def generation_tok_s(self) -> float | None:
        """Generated tokens per second; None before any time was measured."""
        return _per_second(self.generated_tokens, self.generation_s)

    @property
    def rounds(self) -> int:
        """Verify passes of the target."""
        return self._rounds.total()

    @property
    def round_tokens(self) -> int:
        """Tokens that rounds have yielded: all but the first of a text, which comes with the prompt."""
        return self.rounds + self.accepted

    @property
    def python_s(self) -> float:
        """The part of generation_s that is neither a pass nor sampling: Python's own."""
        return max(self.generation_s - self.draft_s - self.verify_s - self.sample_s, 0.0)

    @property
    def drafted(self) -> int:
        """Draft tokens that the target verified."""
        return sum(drafted * n for (drafted, _), n in self._counts())

    @property
    def accepted(self) -> int:
        """Draft tokens that were kept."""
        return sum(accepted * n for (_, accepted), n in self._counts())

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        drafted = self.drafted
        return self.accepted / drafted if drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds: the recovered or bonus token of each round counts. None without rounds."""
        rounds = self.rounds
        return 1 + self.accepted / rounds if rounds else None

    @property
    def acceptance_per_position(self) -> list[float]:
        """Entry i: of the rounds that drafted position i, the share whose draft i was accepted."""
        counts = self._counts()
        most = max((drafted for (drafted, _), _ in counts), default=0)
        accepted = [*self.accepted_per_position, *[0] * most]
        return [accepted[i] / sum(n for (drafted, _), n in counts if drafted > i) for i in range(most)]

    @property
    def accepted_per_position(self) -> list[int]:
        """Entry i: the rounds whose draft i was accepted."""
        counts = self._counts()
        most = max((accepted for (_, accepted), _ in counts), default=0)
        return [sum(n for (_, accepted), n in counts if accepted > i) for i in range(most)]

    def _counts(self) -> list[tuple[tuple[int, int], int]]:
        """A copy: another thread may be adding rounds."""
        return list(self._rounds.items())

    @property
    def rounds_per_length(self) -> dict[int, int]:
        """Rounds by number of drafts verified."""
        found = Counter[int]()
        for (drafted, _), n in self._counts():
            found[drafted] += n
        return dict(sorted(found.items()))

    def as_dict(self) -> dict[str, Any]:
        """The report under the names that the command line's `--json` uses; None: a value that does not exist yet."""
        return {name: getattr(self, name) for name in _REPORTED}


def _per_second(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
