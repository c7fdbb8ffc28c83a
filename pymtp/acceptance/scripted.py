"""Accepts drafts that equal a given answer, whatever the target's logits: for benchmarks. The text is that answer."""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.acceptance.interface import Verdict, Verified
from pymtp.sampling.chain import Sampler


class Scripted:
    """Emit a given answer, and accept the drafts that equal it. For benchmarks, one for each generation.

    Passes run and rows are sampled as always, but what is emitted are the tokens of the answer; after its end, what was
    sampled. So a model of any kind repeats and surprises as the author of the answer did.
    """

    name = "scripted (not the model's own text)"
    is_lossless = False

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer, self._n = answer, 0

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        """See Acceptance."""
        tokens: list[int] = []
        for row, draft in zip(verified.rows, [*verified.drafts, None], strict=True):
            sampled = sampler.sample(row)
            tokens.append(self._answer[self._n] if self._n < len(self._answer) else sampled)
            self._n += 1
            if tokens[-1] != draft:
                return Verdict(tokens, len(tokens) - 1, [])
            if draft in verified.stop:
                break
        return Verdict(tokens, len(tokens), [])
