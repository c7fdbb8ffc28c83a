"""Which part of the vocabulary is drafted from: a list in a file, or as many tokens as is fastest.

Tokens outside of it are never drafted; what is emitted is not limited. Knows token ids and milliseconds; reads no
clock.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pymtp.errors import InvalidParameter
from pymtp.text.files import read_text


def read_draft_vocab(path: str | os.PathLike[str]) -> list[int]:
    """The token ids in a file: a JSON list, or numbers with white space between them.

    Raises InvalidParameter if it cannot be read, or holds anything else.
    """
    try:
        text = read_text(path)
        tokens = json.loads(text) if text.lstrip().startswith("[") else [int(word) for word in text.split()]
    except OSError as error:
        raise InvalidParameter(
            "draft_vocab", f"auto, a number or a file of token ids ({error.strerror}: {path})"
        ) from None
    except (ValueError, RecursionError):
        tokens = None
    if not tokens or not all(isinstance(token, int) for token in tokens):
        raise InvalidParameter("draft_vocab", f"a file of token ids (numbers, or a JSON list), which {path} is not")
    return tokens


def parse_draft_vocab(
    vocab: int | Sequence[int] | str | os.PathLike[str] | None, n_vocab: int
) -> tuple[AutoDraftVocab | None, range | list[int] | None]:
    """Interpret `draft_vocab` for a vocabulary of `n_vocab` tokens: a limit that adapts, or the tokens, or neither.

    A range stands for the first tokens. Raises InvalidParameter.
    """
    if vocab is None:
        return None, None
    if vocab == "auto":
        return AutoDraftVocab(n_vocab), None
    if isinstance(vocab, int) and not isinstance(vocab, bool):
        if not 1 <= vocab <= n_vocab:
            raise InvalidParameter("draft_vocab", f"1 to {n_vocab} tokens of the vocabulary", value=vocab)
        return None, range(vocab)
    tokens = read_draft_vocab(vocab) if isinstance(vocab, (str, os.PathLike)) else _token_list(vocab)
    if not tokens or min(tokens) < 0 or max(tokens) >= n_vocab:
        raise InvalidParameter("draft_vocab", f"1 to {n_vocab} tokens of the vocabulary")
    if len(set(tokens)) < len(tokens):
        twice = next(token for token, n in Counter(tokens).items() if n > 1)
        raise InvalidParameter("draft_vocab", f"distinct token ids: {twice} is given twice")
    return None, tokens


def _token_list(vocab: object) -> list[int]:
    tokens: list[Any] = list(vocab) if isinstance(vocab, Iterable) else [None]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise InvalidParameter("draft_vocab", "auto, a number, token ids or a file of them", value=vocab)
    return tokens


class AutoDraftVocab:
    """Limits drafts to the first N tokens of the vocabulary, with the N that is fastest.

    Most vocabularies begin with frequent tokens. Every emitted token shows for each limit whether it could have been
    drafted, and passes show what drafts cost with the current limit. A review from time to time estimates the speed
    with each limit, and switches to a faster one.
    """

    def __init__(self, n_vocab: int) -> None:
        self.limits = [n_vocab, *(n for n in (n_vocab // 2, n_vocab // 4, n_vocab // 8) if n >= 1024)]
        self.limit = n_vocab
        """Tokens that can be drafted now."""
        self._inside = dict.fromkeys(self.limits, 1.0)  # share of the emitted tokens below each limit, running mean
        self._step_ms: dict[int, float] = {}  # of a draft step, by limit, running mean
        self._accepted = self._steps = self._other_ms = 0.0  # per round that drafts, running means
        self._n_tokens = self._n_rounds = 0

    def note_tokens(self, tokens: Iterable[int]) -> None:
        """Record tokens that were emitted, or are in a prompt."""
        for token in tokens:
            self._n_tokens += 1
            weight = max(1 / self._n_tokens, TOKEN_WEIGHT)
            for limit, share in self._inside.items():
                self._inside[limit] = share + ((token < limit) - share) * weight

    def note_round(self, n_steps: int, n_accepted: float, *, draft_ms: float, other_ms: float) -> None:
        """Record a round: `n_steps` draft steps in `draft_ms`, `n_accepted` drafts, `other_ms` for all else."""
        self._n_rounds += 1
        weight = max(1 / self._n_rounds, ROUND_WEIGHT)
        self._steps += (n_steps - self._steps) * weight
        self._accepted += (n_accepted - self._accepted) * weight
        self._other_ms += (other_ms - self._other_ms) * weight
        if self._n_rounds > N_WARM_UP:
            known = self._step_ms.setdefault(self.limit, draft_ms / n_steps)
            self._step_ms[self.limit] = known + (draft_ms / n_steps - known) * ROUND_WEIGHT

    def review(self) -> int:
        """Return the limit for the next rounds. It changes only after `REVIEW` rounds with the same one."""
        if self._n_rounds >= REVIEW:
            best = max(self.limits, key=self.speed)
            if self.speed(best) > MARGIN * self.speed(self.limit):
                self.limit = best
                self._n_rounds = 0
        return self.limit

    def speed(self, limit: int) -> float:
        """Estimated tokens per millisecond of rounds like the recent ones, with `limit`."""
        covered = self._inside[limit] / max(self._inside[self.limit], 0.01)
        # the first draft that is lost takes those after it with it
        accepted = self._accepted * float(covered ** (1 + self._accepted))
        return (1 + accepted) / (self._other_ms + self._steps * self._cost(limit))

    def _cost(self, limit: int) -> float:
        """Milliseconds of a draft step."""
        if limit in self._step_ms:
            return self._step_ms[limit]
        nearest = min(self._step_ms, key=lambda known: abs(known - limit))
        # until it is measured, half of a step is assumed to be the multiplication with the output matrix
        return self._step_ms[nearest] * (1 + limit / nearest) / 2


N_WARM_UP = 3
"""Rounds with a new limit whose drafts do not count: devices are slow at what they do first."""
REVIEW = 48
"""Rounds with one limit before it can change."""
MARGIN = 1.02
"""How much faster another limit must be, by the estimate."""
ROUND_WEIGHT, TOKEN_WEIGHT = 0.05, 0.005
"""Weights of the latest round, and of the latest token, in a running mean."""
