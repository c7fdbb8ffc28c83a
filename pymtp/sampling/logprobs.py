"""The target's log probabilities of tokens, before and after the chain of samplers.

Knows token ids, logits and probabilities; never text.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymtp.engine.session import LogitsRow, Row
from pymtp.sampling.distribution import Distribution

if TYPE_CHECKING:
    from pymtp.binding.arrays import Probs, Tokens


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities (natural) of an emitted token and of the top tokens at its position.

    -inf stands for a probability of 0.
    """

    token: int
    logprob: float
    """Before the chain: from the softmax of the target's logits."""
    top: list[tuple[int, float]]
    """The top tokens before the chain, most likely first."""
    chain_logprob: float
    """After the chain: from the distribution that the token was drawn from."""
    chain_top: list[tuple[int, float]]


def token_logprobs(row: Row, target: Distribution, token: int, n: int) -> TokenLogprobs:
    """Log probabilities of `token` and of the top `n` tokens, from the target's row and its distribution."""
    import numpy as np

    logits = (row.logits if isinstance(row, LogitsRow) else row).astype(np.float64)
    logits -= logits.max()
    logprobs = logits - math.log(np.exp(logits).sum())
    best = _highest(logprobs, n)
    tokens, probs = target.tokens, target.probs
    chain_best = _highest(probs, n)
    return TokenLogprobs(
        token,
        float(logprobs[token]),
        [(int(i), float(logprobs[i])) for i in best],
        _log(target.prob(token)),
        [(int(tokens[i]), _log(float(probs[i]))) for i in chain_best],
    )


def _highest(values: "Probs", n: int) -> "Tokens":
    import numpy as np

    n = min(n, len(values))
    best = np.argpartition(-values, n - 1)[:n] if n else np.empty(0, np.intp)
    return best[np.argsort(-values[best], kind="stable")].astype(np.int32)


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -math.inf
