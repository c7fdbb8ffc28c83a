"""How much a text repeats itself: a sign that costs next to nothing of how right its drafts may be.

Knows token ids; never drafts or costs.
"""

from __future__ import annotations

from collections.abc import Sequence

N_LOOKED_BACK = 4096
"""Tokens of the prompt that a text can repeat: more would take more than a millisecond."""
RATE = 0.1
"""By how much a token moves the share."""


class Repetition:
    """How many of the latest tokens followed the two before them as when these were last seen together."""

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        self._followers: dict[tuple[int, int], int] = {}
        self._latest = -1, -1
        self.share = 0.0
        """Of the latest tokens of the text; the prompt's do not count."""
        self.observe(prompt[-N_LOOKED_BACK:])
        self.share = 0.0

    def observe(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        followers, latest, share = self._followers, self._latest, self.share
        for token in tokens:
            share += RATE * ((followers.get(latest) == token) - share)
            followers[latest] = token
            latest = latest[1], token
        self._latest, self.share = latest, share
