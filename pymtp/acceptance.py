"""Which drafts the target keeps.

Knows token ids and logits; never text, and nothing of how the drafts were made.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from pymtp.sampling import Sampler
from pymtp.session import Logits

Acceptance = Callable[[Sampler, Logits, Sequence[int], Container[int]], list[int]]
"""What `match` is: it takes a sampler, the target's logits, the drafts and the tokens that end a text."""


def match(sampler: Sampler, logits: Logits, drafts: Sequence[int], stop: Container[int] = ()) -> list[int]:
    """Sample the target row by row and keep the drafts for as long as they are what was sampled.

    `logits`: (len(drafts) + 1, n_vocab) of the target. Returns the tokens to emit: the accepted
    drafts and one more, recovered (where a draft differed) or bonus (where all were accepted).
    Lossless: every token is sampled from the target, in order, as plain decoding samples it. Stops
    behind a token in `stop`, as plain decoding would.
    """
    tokens: list[int] = []
    for row, draft in zip(logits, [*drafts, None], strict=True):
        tokens.append(sampler.sample(row))
        if tokens[-1] != draft or tokens[-1] in stop:
            break
    return tokens
