"""Drafts from the model's heads, by lookup, or both one after the other: whichever the policy expects most of.

Knows token ids, and who drafts; the policy decides how much. Never text or acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pymtp.drafting.interface import NO_DRAFTS, DrafterTraits, DraftOutcome, DraftRequest, Proposal
from pymtp.drafting.lookup import NO_MATCH, LookupDrafter, LookupMatch
from pymtp.drafting.mtp import MtpDrafter
from pymtp.drafting.policy import MATCH_KINDS, Candidate, DraftPolicy, Rates
from pymtp.engine.session import Session


class _Slot:
    def __init__(self, history: Sequence[int], rates: Rates) -> None:
        self.history, self.rates = history, rates
        self.kinds: Sequence[int] = ()  # of the drafts of its latest round: see Rates.add


class AdaptiveDrafter:
    """Drafts as many tokens as pay, or as many as a request asks for: then all from the heads, where there are any.

    What lookup finds costs nothing to draft, so it is looked for in every round; the heads only run where the policy
    wants them, also for prompts, and catch up later on what they have missed.
    """

    traits: ClassVar = DrafterTraits("mtp or lookup", uses_mtp_heads=True, allows_drawn=True, auto_draft_max=None)

    def __init__(self, session: Session, heads: MtpDrafter | None, lookup: LookupDrafter | None) -> None:
        self.policy = DraftPolicy(
            session.n_draft_max, has_heads=heads is not None, in_step=session.needs_equal_rows, shape=session.pass_shape
        )
        drafter = heads or lookup
        assert drafter is not None
        self._drafter, self._lookup = drafter, lookup
        self._slots: dict[int, _Slot] = {}

    @property
    def lookup_bytes(self) -> int:
        return self._lookup.n_bytes if self._lookup else 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        adaptive = [request for request in requests if request.adapts and request.n_draft > 0]
        if any(request.n_fed for request in requests):
            most = self.policy.heads_in_use(requests[0].n_sequences)
            requests = [each._replace(n_fed=min(each.n_fed, most)) if each.adapts else each for each in requests]
        if not adaptive:
            return self._drafter.propose(requests)
        n = adaptive[0].n_sequences
        lookup = self._lookup
        matches = [lookup.find(each) if lookup and each.uses_lookup else NO_MATCH for each in adaptive]
        asked = [
            Candidate(self._slot(request).rates, request.n_draft, match.n_matched, len(match.tokens))
            for request, match in zip(adaptive, matches, strict=True)
        ]
        plan = self.policy.choose(asked, n)
        if plan.is_plain and len(adaptive) == len(requests):
            return [NO_DRAFTS] * len(requests)  # soon: where drafting does not pay, this is what most rounds lose
        planned = zip(plan.heads, plan.lookup, matches, strict=True)
        found = dict(zip((request.slot for request in adaptive), planned, strict=True))
        n_drafts = [found[each.slot][0] if each.slot in found else each.n_draft for each in requests]
        of_heads = [
            each if n == each.n_draft else each._replace(n_draft=n)  # a copy takes longer than all else here
            for each, n in zip(requests, n_drafts, strict=True)
        ]
        made = self._drafter.propose(of_heads)
        return [
            self._noted(request, each, *found[request.slot][1:]) if request.slot in found else each
            for request, each in zip(requests, made, strict=True)
        ]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        for outcome in outcomes:
            slot = self._slots.get(outcome.request.slot)
            if slot and slot.kinds:
                right = outcome.proposal.are_right(outcome.tokens)
                slot.rates.add(slot.kinds, right)
                self.policy.rates.add(slot.kinds, right)
                slot.kinds = ()

    def _slot(self, request: DraftRequest) -> _Slot:
        slot = self._slots.get(request.slot)
        if slot is None or slot.history is not request.history:
            slot = self._slots[request.slot] = _Slot(request.history, self.policy.rates.begin())
        return slot

    def _noted(self, request: DraftRequest, made: Proposal, n_lookup: int, match: LookupMatch) -> Proposal:
        """The proposal of an adaptive request: what lookup found, or what the heads drafted."""
        slot = self._slots[request.slot]
        if n_lookup:
            slot.kinds = MATCH_KINDS[match.n_matched :]
            return Proposal(match.tokens[:n_lookup])
        slot.kinds = range(len(made.drafts) + len(made.spare) if made.drafts else 0)
        return made
