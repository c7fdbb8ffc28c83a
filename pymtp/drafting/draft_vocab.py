"""Which part of the vocabulary is drafted from: its first tokens, or a list.

Tokens outside of it are never drafted; what is emitted is not limited. Knows token ids.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pymtp.errors import InvalidParameter, require


def parse_draft_vocab(vocab: int | Sequence[int] | None, n_vocab: int) -> range | list[int] | None:
    """The tokens of `draft_vocab`, of a vocabulary of `n_vocab` tokens; a range stands for the first ones; None: all.

    Raises InvalidParameter.
    """
    if vocab is None:
        return None
    allowed = f"1 to {n_vocab} tokens of the vocabulary"
    if isinstance(vocab, int) and not isinstance(vocab, bool):
        require(1 <= vocab <= n_vocab, "draft_vocab", allowed, vocab)
        return range(vocab)
    tokens: list[Any] = list(vocab) if isinstance(vocab, Iterable) else [None]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise InvalidParameter("draft_vocab", "a number, or token ids", value=vocab)
    require(tokens and min(tokens) >= 0 and max(tokens) < n_vocab, "draft_vocab", allowed)
    token, n_times = Counter(tokens).most_common(1)[0]
    require(n_times == 1, "draft_vocab", f"distinct token ids: {token} is given twice")
    return tokens
