"""Accepts drafts up to the first that differs from what the target samples."""

from __future__ import annotations

from dataclasses import dataclass

from pymtp.acceptance.interface import Trial, Verdict
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution


@dataclass(frozen=True)
class Match:
    """Sample the target row by row, and accept drafts up to the first that differs from the sampled token.

    Lossless whatever the drafts are: every token is sampled from the target, in order and with the same generator, as
    in plain decoding. So the same seed gives the same text as plain decoding.
    """

    name: str = "match"
    is_lossless: bool = True

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """See Acceptance."""
        tokens: list[int] = []
        targets: list[Distribution] = []
        for row, draft in zip(trial.rows, [*trial.drafts, None], strict=True):
            tokens.append(sampler.sample(row))
            if trial.keep:
                targets.append(sampler.last_distribution)
            if tokens[-1] != draft:
                return Verdict(tokens, len(tokens) - 1, targets)
            if draft in trial.stop:
                break
        return Verdict(tokens, len(tokens), targets)


MATCH = Match()
