"""Drafts from the model's heads, by lookup, or both one after the other: whichever the policy expects most of.

Knows token ids, and who drafts; the policy decides how much. Never text or acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pymtp.drafting.interface import NO_DRAFTS, DrafterTraits, DraftOutcome, DraftRequest, Proposal
from pymtp.drafting.lookup import NO_MATCH, LookupDrafter
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
        planned = dict(zip((request.slot for request in adaptive), plan.heads, strict=True))
        n_drafts = [planned.get(request.slot, request.n_draft) for request in requests]
        of_heads = [
            each if n == each.n_draft else each._replace(n_draft=n)  # a copy takes longer than all else here
            for each, n in zip(requests, n_drafts, strict=True)
        ]
        made = dict(zip((request.slot for request in requests), self._drafter.propose(of_heads), strict=True))
        for request, n_lookup, match in zip(adaptive, plan.lookup, matches, strict=True):
            slot, of_slot = self._slots[request.slot], made[request.slot]
            slot.kinds = range(len(of_slot.drafts) + len(of_slot.spare) if of_slot.drafts else 0)
            if n_lookup:  # what lookup found, and nothing from the heads
                slot.kinds = MATCH_KINDS[match.n_matched :]
                made[request.slot] = Proposal(match.tokens[:n_lookup])
        return list(made.values())

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
