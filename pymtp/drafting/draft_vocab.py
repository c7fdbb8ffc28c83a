"""Which part of the vocabulary is drafted from: a list in a file, or as many tokens as texts need.

Tokens outside of it are never drafted; what is emitted is not limited. Knows token ids.
"""

import json
import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from pymtp.errors import InvalidParameter, require
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
) -> "tuple[AutoDraftVocab | None, range | list[int] | None]":
    """Interpret `draft_vocab` for a vocabulary of `n_vocab` tokens: a limit that adapts, or the tokens, or neither.

    A range stands for the first tokens. Raises InvalidParameter.
    """
    if vocab is None:
        return None, None
    if vocab == "auto":
        return AutoDraftVocab(n_vocab), None
    if isinstance(vocab, int) and not isinstance(vocab, bool):
        require(1 <= vocab <= n_vocab, "draft_vocab", f"1 to {n_vocab} tokens of the vocabulary", vocab)
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
    """Limits drafts to the first half, quarter or eighth of the vocabulary, if nearly all recent tokens are in it.

    Most vocabularies begin with frequent tokens.
    """

    def __init__(self, n_vocab: int) -> None:
        self.limits = [*(n for n in (n_vocab // 8, n_vocab // 4, n_vocab // 2) if n >= 1024), n_vocab]
        self._recent: deque[int] = deque(maxlen=N_RECENT)

    def note_tokens(self, tokens: Iterable[int]) -> None:
        """Record tokens that were emitted, or are in a prompt."""
        self._recent.extend(tokens)

    @property
    def limit(self) -> int:
        """Tokens that drafts are best taken from now."""
        if not self._recent:
            return self.limits[-1]
        highest = sorted(self._recent)[int(len(self._recent) * COVERED)]
        return next(limit for limit in self.limits if highest < limit)


N_RECENT = 1024
"""Tokens, of all sequences, that show which ones are frequent."""
COVERED = 0.99
"""The share of them that drafts can be: a draft that cannot be made takes those after it with it."""
