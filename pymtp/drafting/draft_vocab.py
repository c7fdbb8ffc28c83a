"""Which part of the vocabulary is drafted from: its first tokens, or a list, in a file too.

Tokens outside of it are never drafted; what is emitted is not limited. Knows token ids.
"""

import json
import os
from collections import Counter
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
        raise InvalidParameter("draft_vocab", f"a number or a file of token ids ({error.strerror}: {path})") from None
    except (ValueError, RecursionError):
        tokens = None
    if not tokens or not all(isinstance(token, int) for token in tokens):
        raise InvalidParameter("draft_vocab", f"a file of token ids (numbers, or a JSON list), which {path} is not")
    return tokens


def parse_draft_vocab(
    vocab: int | Sequence[int] | str | os.PathLike[str] | None, n_vocab: int
) -> range | list[int] | None:
    """The tokens of `draft_vocab`, of a vocabulary of `n_vocab` tokens; a range stands for the first ones; None: all.

    Raises InvalidParameter.
    """
    if vocab is None:
        return None
    if isinstance(vocab, int) and not isinstance(vocab, bool):
        require(1 <= vocab <= n_vocab, "draft_vocab", f"1 to {n_vocab} tokens of the vocabulary", vocab)
        return range(vocab)
    tokens = read_draft_vocab(vocab) if isinstance(vocab, (str, os.PathLike)) else _token_list(vocab)
    if not tokens or min(tokens) < 0 or max(tokens) >= n_vocab:
        raise InvalidParameter("draft_vocab", f"1 to {n_vocab} tokens of the vocabulary")
    if len(set(tokens)) < len(tokens):
        twice = next(token for token, n in Counter(tokens).items() if n > 1)
        raise InvalidParameter("draft_vocab", f"distinct token ids: {twice} is given twice")
    return tokens


def _token_list(vocab: object) -> list[int]:
    tokens: list[Any] = list(vocab) if isinstance(vocab, Iterable) else [None]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise InvalidParameter("draft_vocab", "a number, token ids or a file of them", value=vocab)
    return tokens
