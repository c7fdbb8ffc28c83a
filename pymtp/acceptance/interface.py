"""The interface of acceptance methods: what they judge, and their verdict. And the method that needs nothing more.

A method takes the target's rows after the newest token and after each draft, and returns the tokens to emit.
"""

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, Protocol

from pymtp.engine.session import Row
from pymtp.errors import NothingAllowed
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution


class Verified(NamedTuple):
    """Drafts of one sequence, for the target to judge."""

    rows: Sequence[Row]
    """The target's rows after the newest token and after each draft: (len(drafts) + 1,)."""
    drafts: Sequence[int]
    distributions: Sequence[Distribution] = ()
    """The distributions that the drafts were drawn from, (len(drafts),); empty: they were not drawn."""
    stop: Container[int] = ()
    """Tokens that end the sequence. Only the last draft may be one of them."""
    keep: bool = False
    """Whether the verdict must include all of the target's distributions."""


class Verdict(NamedTuple):
    """Which drafts were accepted, and what to emit."""

    tokens: list[int]
    """To emit: the accepted drafts, then the recovered token (after a rejected draft) or the bonus token (all were
    accepted), unless the last draft ends the sequence. Token i belongs to row i."""
    n_accepted: int
    """How many of the tokens are drafts."""
    targets: list[Distribution]
    """The target's distributions for the tokens; maybe not all of them, unless `Verified.keep`."""
    is_blocked: bool = False
    """Whether nothing is allowed after the tokens: no recovered or bonus token comes after the accepted drafts."""


class Acceptance(Protocol):
    """An acceptance method."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        """Accept or reject the drafts; the sampler's history gets the emitted tokens."""


class Match:
    """Sample the target row by row, and accept drafts up to the first that differs from the sampled token.

    Lossless whatever the drafts are: every token is sampled from the target, in order and with the same generator, as
    in plain decoding. So the same seed gives the same text as plain decoding.
    """

    name = "match"

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        rows, drafts, _, stop, keep = verified
        if keep or sampler.awaits_grammar:
            return emit_until_other(sampler, verified, sampler.sample)
        assert len(rows) == len(drafts) + 1
        tokens, is_blocked = sampler.sample_until_other(rows[:-1] if drafts and drafts[-1] in stop else rows, drafts)
        n_tokens = len(tokens)
        is_other = n_tokens > len(drafts) or (not is_blocked and tokens[-1] != drafts[n_tokens - 1])
        return Verdict(tokens, n_tokens - is_other, [], is_blocked)


MATCH = Match()


def emit_until_other(sampler: Sampler, verified: Verified, token_of: Callable[[Row], int]) -> Verdict:
    """Emit what `token_of` makes of each row, up to the first token that is not the draft.

    `token_of` has the sampler accept the token; where `verified.keep`, the chain was applied to the row then.
    """
    tokens: list[int] = []
    targets: list[Distribution] = []
    for row, draft in zip(verified.rows, [*verified.drafts, None], strict=True):
        try:
            tokens.append(token_of(row))
        except NothingAllowed:
            return Verdict(tokens, len(tokens), targets, is_blocked=True)
        if verified.keep:
            targets.append(sampler.last_distribution)
        if tokens[-1] != draft:
            return Verdict(tokens, len(tokens) - 1, targets)
        if draft in verified.stop:
            break
    return Verdict(tokens, len(tokens), targets)
