"""Plain decoding: no drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pymtp.drafting.interface import DrafterTraits, DraftOutcome, DraftRequest, Proposal

if TYPE_CHECKING:
    from pymtp.engine.session import Session


class NoDrafter:
    """Plain decoding."""

    traits: ClassVar = DrafterTraits("none", needs_rollback=False)

    def __init__(self, session: Session) -> None:
        """Needs nothing of it."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return no drafts. See Drafter."""
        return [Proposal()] * len(requests)

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Nothing to note."""
