"""Where drafts come from.

Owns the drafters' state: how far each MTP head has seen a sequence. Knows token ids; never text,
acceptance or the target's sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymtp.sampling import Sampler
from pymtp.session import Session


class Drafter(Protocol):
    """Proposes tokens that the target then verifies."""

    def begin(self, n_tokens: int) -> None:
        """Note that a prompt of `n_tokens` has been decoded."""

    def propose(self, history: Sequence[int], n_max: int) -> list[int]:
        """Return at most `n_max` tokens that may follow `history`, whose last token is not decoded yet."""


class NoDrafter:
    """Plain decoding."""

    def begin(self, n_tokens: int) -> None:
        """Nothing to note."""

    def propose(self, history: Sequence[int], n_max: int) -> list[int]:
        """Return no drafts."""
        return []


class MtpDrafter:
    """Drafts with the model's own MTP heads, on the target's cache.

    Step s uses head s mod n_heads: one head is recycled, several are chained. The first pass of a
    head in a round takes all rows that it has not seen yet with the target's hidden states (the
    accepted drafts and the newly sampled token), so that catching up and drafting are one pass.

    `fused` runs all steps in one graph. It is for one head and for drafts that are the most likely
    tokens; what the sampler bars must be barred in the session as well.
    """

    def __init__(self, session: Session, sampler: Sampler, n_heads: int, *, fused: bool = False) -> None:
        self._session = session
        self._sampler = sampler
        self._fused = fused
        # a head's rows [0, n) were made from the target's hidden states; later ones, if any, from drafts
        self._seen = [0] * n_heads

    def begin(self, n_tokens: int) -> None:
        """Note a prompt, which went through the heads as well. See Drafter."""
        self._seen = [n_tokens] * len(self._seen)

    def propose(self, history: Sequence[int], n_max: int) -> list[int]:
        """Draft `n_max` tokens. See Drafter."""
        if n_max == 0:
            return []
        start = min(self._seen)
        tail = list(history[start:])
        if self._fused:
            self._seen = [len(history)]
            return self._session.draft_greedy(0, tail, start, n_max)
        return self._step_by_step(tail, start, len(history), n_max)

    def _step_by_step(self, tail: list[int], start: int, n_history: int, n_max: int) -> list[int]:
        reached = list(self._seen)
        for step in range(n_max):
            head = step % len(reached)
            self._session.draft(head, tail[reached[head] - start :], reached[head])
            reached[head] = start + len(tail)
            tail.append(self._sampler.pick_draft(self._session.draft_logits[0]))
        self._seen = [min(rows, n_history) for rows in reached]
        return tail[n_history - start :]
