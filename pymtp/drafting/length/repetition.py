"""How much a sequence repeats itself: a nearly free hint at how often its drafts will be right.

Knows token ids; never drafts or costs.
"""

from __future__ import annotations

from collections.abc import Sequence

N_LOOKBACK = 4096
"""Tokens at the end of the prompt that a sequence can repeat: more would take longer than a millisecond."""
RATE = 0.1
"""Weight of the newest token in the share."""


class Repetition:
    """Tracks how many recent tokens are the one that last followed the same two tokens."""

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        self._followers: dict[tuple[int, int], int] = {}
        self._latest = -1, -1
        self.share = 0.0
        """A running mean over the generated tokens; those of the prompt do not count."""
        self.observe(prompt[-N_LOOKBACK:])
        self.share = 0.0

    def observe(self, tokens: Sequence[int]) -> None:
        """Add the next tokens of the sequence."""
        followers, latest, share = self._followers, self._latest, self.share
        for token in tokens:
            share += RATE * ((followers.get(latest) == token) - share)
            followers[latest] = token
            latest = latest[1], token
        self._latest, self.share = latest, share
