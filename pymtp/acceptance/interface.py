"""What is judged, the verdict, and the interface of acceptance methods.

A method takes the target's rows after the newest token and after each draft, and returns the tokens to emit.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

from pymtp.engine.logits import Row
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution


class Trial(NamedTuple):
    """Drafts of one sequence, for the target to judge."""

    rows: Sequence[Row]
    """Of the target: after the newest token, and after each draft; (len(drafts) + 1,)."""
    drafts: Sequence[int]
    distributions: Sequence[Distribution] = ()
    """What the drafts were drawn from, (len(drafts),); empty: they were not drawn."""
    stop: Container[int] = ()
    """Tokens that end the sequence. Only the last draft may be one."""
    keep: bool = False
    """Whether the verdict should hold the targets."""


class Verdict(NamedTuple):
    """Which drafts were accepted, and what to emit."""

    tokens: list[int]
    """To emit: the accepted drafts and one more, recovered (in the place of a draft) or bonus (all were accepted); none
    after a token that ends the sequence. Token i was judged by row i."""
    n_accepted: int
    """Drafts among them."""
    targets: list[Distribution]
    """What the tokens were drawn from; perhaps not all, unless the trial asked to keep them."""


class Acceptance(Protocol):
    """A method."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def is_lossless(self) -> bool:
        """Whether what is emitted is distributed as in plain decoding."""

    def __call__(self, sampler: Sampler, trial: Trial) -> Verdict:
        """Judge the drafts; the sampler accepts the tokens that are emitted."""
