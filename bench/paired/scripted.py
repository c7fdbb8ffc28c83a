"""Rounds whose acceptance is scripted, so that every scheme walks the same text and does the same work.

Knows token ids; nothing of models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ScriptedRound:
    """One round: the newest token, and the drafts that are verified, whatever the heads have drafted."""

    position: int
    """Of the newest token, which is not decoded yet."""
    newest: int
    drafts: list[int]
    n_right: int
    """Drafts that the target is going to accept: they are the text's own, the others are wrong."""

    @property
    def end(self) -> int:
        """The position behind the tokens that stay."""
        return self.position + 1 + self.n_right


def acceptances(lengths: Sequence[int], n_rounds: int) -> list[tuple[int, int]]:
    """Drafts and accepted drafts of each round: `lengths` in turn, and for each of them 0 to all accepted in turn."""
    cycle, n = tuple(lengths), len(lengths)
    return [(cycle[i % n], i // n % (cycle[i % n] + 1)) for i in range(n_rounds)]


def n_text(lengths: Sequence[int], n_rounds: int) -> int:
    """Tokens of the continuation that `n_rounds` rounds walk over, with the drafts of the last."""
    return sum(1 + n_right for _, n_right in acceptances(lengths, n_rounds)) + max(lengths) + 1


def write_script(
    text: Sequence[int], n_prompt: int, lengths: Sequence[int], n_rounds: int, n_vocab: int
) -> list[ScriptedRound]:
    """Rounds over `text`, of which `n_prompt` tokens are decoded; `text` is the model's own continuation of them."""
    rng = random.Random(1)
    rounds = []
    position = n_prompt
    for n_draft, n_right in acceptances(lengths, n_rounds):
        right = text[position + 1 : position + 1 + n_draft]
        wrong = [(token + rng.randrange(1, n_vocab)) % n_vocab for token in right[n_right:]]
        rounds.append(ScriptedRound(position, text[position], [*right[:n_right], *wrong], n_right))
        position = rounds[-1].end
    return rounds
