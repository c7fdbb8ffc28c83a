"""Drafts from the model's own MTP heads.

Knows token ids and the session's passes; never text, acceptance or the target's sampling.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from pymtp.binding.library import lib
from pymtp.drafting.interface import DrafterTraits, DraftOutcome, DraftRequest, Proposal
from pymtp.engine.session import Chunk, Session
from pymtp.sampling.distribution import Distribution

CATCH_UP = lib.PYMTP_KEPT_POSITIONS - 8
"""Positions that heads see before they draft, if they have missed some: the last of these.

The session must have their hidden states; rejected drafts take the place of some that it keeps.
"""
_Pick: TypeAlias = tuple[int, Distribution, float]
"""A draft, what it was picked from, and the probability of the most likely token there."""


class MtpDrafter:
    """Drafts with the model's own MTP heads, on the target's cache.

    Prompts and verified rows go through the heads in the target's own pass, so that a draft takes one row of a
    sequence, its newest token. Of several heads only those see them that draft. Rounds that do not draft leave the
    heads alone, which is cheaper; the next draft begins with the last few positions that they have missed, and what
    comes before these stays a gap in what the heads know. An assistant needs none of this.

    Where a draft is the head's top token, all steps run in one graph (a fused draft); else the samplers pick, step by
    step. Requests of both kinds can share a round: each kind gets a pass of its own.
    """

    traits: ClassVar = DrafterTraits("mtp", uses_mtp_heads=True, allows_drawn=True, auto_draft_max=None)

    def __init__(self, session: Session) -> None:
        self._session = session
        self._banned: tuple[int, ...] | None = None  # in the session's fused drafts
        # a pass has room for the rows of all sequences, even if all catch up; in a small cache for fewer
        self._catch_up_max = max(min(CATCH_UP, session.n_ubatch // session.n_seq_max - 1), 0)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        groups: dict[tuple[int, ...] | None, list[DraftRequest]] = {}
        for request in requests:
            if request.n_draft > 0:
                groups.setdefault(request.picker.banned, []).append(request)
        proposals: dict[int, Proposal] = {}
        for banned, group in groups.items():
            proposals |= self._propose(group, banned)
        n_heads = self._session.n_heads
        return [proposals.get(each.slot) or Proposal(n_heads=min(each.n_fed, n_heads)) for each in requests]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Nothing to note: the session knows what the heads have seen."""

    def _propose(self, requests: list[DraftRequest], banned: tuple[int, ...] | None) -> dict[int, Proposal]:
        n_steps = max(request.n_draft for request in requests)
        ends = self._session.seen_ends([request.slot for request in requests], n_steps)
        chunks = []
        for request, seen_end in zip(requests, ends, strict=True):
            begin = max(seen_end, request.position - self._catch_up_max, request.catch_up_from)
            chunks.append(Chunk(request.history[begin:], begin, request.slot))
        if banned is None:
            drafted = self._draft_by_steps(requests, chunks, n_steps)
        else:
            drafted = self._draft_fused(requests, chunks, n_steps, banned)
        n_heads = min(n_steps, self._session.n_heads)
        proposals = {}
        for request, (tokens, distributions, confidences, *_) in zip(requests, drafted, strict=True):
            n = request.picker.n_worth(tokens, confidences)
            proposals[request.slot] = Proposal(
                tokens[:n], distributions[:n], confidences, tokens[n:], n_heads=n_heads, n_steps=n_steps
            )
        return proposals

    def _draft_fused(
        self, requests: list[DraftRequest], chunks: list[Chunk], n_steps: int, banned: tuple[int, ...]
    ) -> list[Proposal]:
        if banned != self._banned:
            self._session.ban_tokens(banned)
            self._banned = banned
        with_probs = any(request.uses_confidence for request in requests)
        drafts, confidences = self._session.draft_tokens(chunks, n_steps, probs=with_probs)
        return [
            Proposal(row[: request.n_draft], confidences=probs[: request.n_draft])
            for request, row, probs in zip(requests, drafts, confidences, strict=True)
        ]

    def _draft_by_steps(self, requests: list[DraftRequest], chunks: list[Chunk], n_steps: int) -> list[Proposal]:
        picks: dict[int, list[_Pick]] = {request.slot: [] for request in requests}
        drafting = requests
        try:
            for step in range(n_steps):
                self._session.draft(step, n_steps, chunks)
                for request, row in zip(drafting, self._session.draft_rows(), strict=True):
                    if request.n_draft > step and (picked := request.picker.pick(row)):
                        picks[request.slot].append(picked)
                drafting = [request for request in drafting if _continues(request, picks[request.slot], step)]
                if not drafting:
                    break
                chunks = [Chunk([picks[each.slot][-1][0]], each.end + step, each.slot) for each in drafting]
        finally:
            for request in requests:
                request.picker.forget()
        made = (picks[request.slot] for request in requests)
        return [Proposal([p[0] for p in each], [p[1] for p in each], [p[2] for p in each]) for each in made]


def _continues(request: DraftRequest, picks: list[_Pick], step: int) -> bool:
    """Whether a request that took part in `step` drafts another token."""
    if request.n_draft <= step + 1 or len(picks) <= step:
        return False
    token, _, confidence = picks[-1]
    return token not in request.stop and request.picker.is_confident(confidence)  # else it is not worth a row
