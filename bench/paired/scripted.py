"""Rounds whose acceptance is scripted, so that every scheme decodes the same tokens and does the same work.

Knows token ids; nothing about models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ScriptedRound:
    """One round: the newest token, and the drafts to verify, whatever the heads draft."""

    position: int
    """Of the newest token, which is not decoded yet."""
    newest: int
    drafts: list[int]
    n_right: int
    """Drafts that the target will accept: they continue the text, the others are wrong."""

    @property
    def end(self) -> int:
        """The position after the tokens that stay."""
        return self.position + 1 + self.n_right


def acceptances(lengths: Sequence[int], n_rounds: int) -> list[tuple[int, int]]:
    """Drafts and accepted drafts of each round: `lengths` in turn, and for each of them 0 to all accepted in turn."""
    cycle, n = tuple(lengths), len(lengths)
    return [(cycle[i % n], i // n % (cycle[i % n] + 1)) for i in range(n_rounds)]


def n_text(lengths: Sequence[int], n_rounds: int) -> int:
    """Tokens of the continuation that `n_rounds` rounds need, including the drafts of the last."""
    return sum(1 + n_right for _, n_right in acceptances(lengths, n_rounds)) + max(lengths) + 1


def write_script(
    text: Sequence[int], n_prompt: int, lengths: Sequence[int], n_rounds: int, n_vocab: int
) -> list[ScriptedRound]:
    """Rounds over `text`: `n_prompt` tokens that are decoded, then the model's own continuation."""
    rng = random.Random(1)
    rounds = []
    position = n_prompt
    for n_draft, n_right in acceptances(lengths, n_rounds):
        right = text[position + 1 : position + 1 + n_draft]
        wrong = [(token + rng.randrange(1, n_vocab)) % n_vocab for token in right[n_right:]]
        rounds.append(ScriptedRound(position, text[position], [*right[:n_right], *wrong], n_right))
        position = rounds[-1].end
    return rounds
