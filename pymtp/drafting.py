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
    """

    def __init__(self, session: Session, sampler: Sampler, n_heads: int) -> None:
        self._session = session
        self._sampler = sampler
        # a head's rows [0, n) were made from the target's hidden states; later ones, if any, from drafts
        self._seen = [0] * n_heads

    def begin(self, n_tokens: int) -> None:
        """Note a prompt, which went through the heads as well. See Drafter."""
        self._seen = [n_tokens] * len(self._seen)

    def propose(self, history: Sequence[int], n_max: int) -> list[int]:
        """Draft `n_max` tokens. See Drafter."""
        start = min(self._seen)
        tail = list(history[start:])
        reached = list(self._seen)
        for step in range(n_max):
            head = step % len(reached)
            self._session.draft(head, tail[reached[head] - start :], reached[head])
            reached[head] = start + len(tail)
            tail.append(self._sampler.pick_draft(self._session.draft_logits[0]))
        self._seen = [min(rows, len(history)) for rows in reached]
        return tail[len(history) - start :]
