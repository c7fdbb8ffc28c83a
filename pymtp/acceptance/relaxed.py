"""Accepts any likely draft while the model thinks. Lossy."""

from collections.abc import Callable
from dataclasses import dataclass

from pymtp.acceptance.interface import Verdict, Verified, emit_until_other
from pymtp.engine.session import Row
from pymtp.errors import InvalidParameter
from pymtp.sampling.chain import Sampler
from pymtp.sampling.logprobs import top_probs


@dataclass(frozen=True)
class Relaxed:
    """While the model thinks, accept a draft that is among the target's likely tokens; otherwise `match`.

    Likely: one of the `top_n` most likely tokens before the chain, and at most `delta` less likely than the top one
    (TensorRT-LLM's relaxed acceptance). Lossy: the thinking is no longer distributed as in plain decoding.
    """

    is_thinking: Callable[[], bool]
    """Whether the next token belongs to the thinking."""
    observe: Callable[[int], object]
    """Called with each emitted token."""
    top_n: int = 10
    delta: float = 0.6
    name: str = "relaxed (lossy)"

    def __post_init__(self) -> None:
        if not isinstance(self.top_n, int) or self.top_n < 1:
            raise InvalidParameter("relaxed_top_n", "an integer, 1 or more", value=self.top_n)
        if not isinstance(self.delta, (int, float)) or not 0 <= self.delta <= 1:
            raise InvalidParameter("relaxed_delta", "between 0 and 1", value=self.delta)

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        def token_of(row: Row, draft: int | None) -> int:
            if draft is not None and self.is_thinking() and self._is_likely(row, draft) and sampler.allows(row, draft):
                if verified.keep:
                    sampler.distribution(row)
                sampler.accept(draft)
                token = draft
            else:
                token = sampler.sample(row)
            self.observe(token)
            return token

        return emit_until_other(sampler, verified, token_of)

    def _is_likely(self, row: Row, draft: int) -> bool:
        tokens, probs = top_probs(row, self.top_n)
        return bool(((tokens == draft) & (probs >= probs[0] - self.delta)).any())
