"""What the parts of a round take: verifying so many rows, drafting so many steps, and all the rest.

Owns the arithmetic; reads no clock. Milliseconds, but only ratios matter to those who ask.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from statistics import median

N_RECENT = 9
"""Measurements of which the median counts: enough for a machine that does other things too."""


class RoundCosts:
    """Medians of the latest measurements, and estimates for what was not measured yet.

    Until there are measurements, a further row costs `row_share` of the first one, and a draft step `step_share`.
    """

    def __init__(self, *, row_share: float = 0.35, step_share: float = 0.12) -> None:
        self._row_share, self._step_share = row_share, step_share
        recent = partial(deque[float], maxlen=N_RECENT)
        self._verify: defaultdict[int, deque[float]] = defaultdict(recent)  # by rows
        self._draft: defaultdict[int, deque[float]] = defaultdict(recent)  # by steps
        self._rest: deque[float] = recent()
        self._trial: deque[float] = recent()
        self._medians: dict[tuple[str, int], float] = {}
        self._n_sequences = 1
        self.n_paying: int | None = None
        """The draft length that paid last, where texts tell; the next one begins with it."""

    def observe(
        self, n_rows: int, n_steps: int, *, verify_ms: float, draft_ms: float, rest_ms: float, n_sequences: int = 1
    ) -> None:
        """A pass of `n_rows` rows, of so many sequences, for which `n_steps` steps of a draft were run (0: none)."""
        self._n_sequences = n_sequences
        self._note("verify", n_rows, self._verify[n_rows], verify_ms)
        self._note("rest", 0, self._rest, rest_ms / n_sequences)
        if n_steps > 0:
            self._note("draft", n_steps, self._draft[n_steps], draft_ms / n_sequences)

    def observe_trial(self, trial_ms: float) -> None:
        """A round of one sequence that was to decode plainly took so long, because it also drafted a token."""
        self._note("trial", 0, self._trial, trial_ms)

    def forget_drafts(self) -> None:
        """Drafts cost something else from now on."""
        self._draft.clear()

    def n_measured(self, n_rows: int) -> int:
        """How many of the latest measurements are of so many rows."""
        return len(self._verify[n_rows]) if n_rows in self._verify else 0

    def verify_ms(self, n_rows: int) -> float:
        """What `n_rows` rows of one sequence cost, if all that ran together of late have as many."""
        return self._pass_ms(n_rows * self._n_sequences) / self._n_sequences

    def _pass_ms(self, n_rows: int) -> float:
        known = sorted(self._verify)
        if not known:
            return 1 + self._row_share * (n_rows - 1)
        below = max((n for n in known if n <= n_rows), default=known[0])
        above = min((n for n in known if n >= n_rows), default=known[-1])
        low, high = self._medians["verify", below], self._medians["verify", above]
        if below < above:
            return low + (high - low) * (n_rows - below) / (above - below)
        # beyond what was measured; of a pass of n rows, the first is 1 / (1 + share * (n - 1))
        row = self._row_share * low / (1 + self._row_share * (below - 1))
        if below != n_rows and len(known) > 1:
            other = known[1] if n_rows < below else known[-2]
            row = max((low - self._medians["verify", other]) / (below - other), 0.0)
        return max(low + row * (n_rows - below), low * 0.1)

    def draft_ms(self, n_steps: int) -> float:
        """A draft of `n_steps` steps."""
        if n_steps == 0:
            return 0.0
        if n_steps in self._draft:
            return self._medians["draft", n_steps]
        if not self._draft:
            return self._step_share * n_steps * self.verify_ms(1)
        nearest = min(self._draft, key=lambda n: abs(n - n_steps))
        return self._medians["draft", nearest] * n_steps / nearest

    @property
    def trial_ms(self) -> float:
        """What a draft adds to a round that decodes plainly, and looks at a few missed positions first."""
        plain = self.round_ms(1, 0)
        return max(self._medians.get(("trial", 0), plain + 1.5 * self.draft_ms(1)) - plain, 0.1 * plain)

    @property
    def rest_ms(self) -> float:
        """Sampling, and what Python does."""
        return self._medians.get(("rest", 0), 0.0)

    def round_ms(self, n_rows: int, n_steps: int) -> float:
        """A whole round."""
        return self.verify_ms(n_rows) + self.draft_ms(n_steps) + self.rest_ms

    def _note(self, kind: str, n: int, values: deque[float], value: float) -> None:
        values.append(value)
        self._medians[kind, n] = median(values)
