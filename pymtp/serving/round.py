"""The round: draft, verify, accept, roll back. For any number of sequences in one pass of the target.

Knows token ids and logits; no text, no clock, and nothing of which turns come next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from pymtp.drafting.interface import NO_DRAFTS, Drafter, checked
from pymtp.engine.session import Session
from pymtp.errors import PymtpError
from pymtp.serving.sequence import Turn, TurnResult, outcome_of


def run_round(
    session: Session, drafter: Drafter, turns: Sequence[Turn], meanwhile: Callable[[], object] = lambda: None
) -> list[TurnResult]:
    """Draft, verify in one pass of the target, accept, and roll back what was not accepted.

    Each turn decodes the next tokens of its sequence's history and, where these are its last, drafts after them.
    Afterwards they and the accepted drafts are decoded, and the last token that the turn emitted is not. Raises
    ContextFull if the cache has no room; nothing was sampled then, and the positions after those that the sequences had
    decoded are to be truncated. `meanwhile` is called with the pass: see Session.decode.

    An image is a turn that comes alone.

    A sequence whose own samplers fail gets its `error`, and has no result; the others continue.
    """
    if turns[0].image:
        meanwhile()
        return [_decode_image(session, turns[0])]
    requests = [turn.sequence.draft_request(turn, len(turns)) for turn in turns if turn.asks]
    made = drafter.propose(requests) if requests else ()
    proposed = iter(checked(drafter, requests, made, session.n_vocab))
    proposals = [next(proposed) if turn.asks else NO_DRAFTS for turn in turns]
    session.decode([turn.sequence.chunk(turn, made) for turn, made in zip(turns, proposals, strict=True)], meanwhile)
    rows = iter(session.rows())
    results = []
    for turn, proposal in zip(turns, proposals, strict=True):
        its_rows = list(islice(rows, turn.n_logits(proposal)))
        try:
            results.append(turn.sequence.judge(turn, its_rows, proposal))
        except PymtpError as error:
            turn.sequence.error = error
    for result in results:
        if result.proposal.drafts:
            session.truncate(result.n_decoded, sequence=result.turn.slot)
    if requests:
        request_of = {request.slot: request for request in requests}
        drafter.observe([outcome_of(request_of[each.turn.slot], each) for each in results if each.turn.asks])
    return results


def _decode_image(session: Session, turn: Turn) -> TurnResult:
    assert turn.image
    n_heads = session.n_heads if turn.sequence.draft_max > 0 else 0
    media, chunk = turn.image.media, turn.image.chunk
    session.decode_image(media, chunk, turn.position, sequence=turn.slot, n_heads=n_heads)
    return TurnResult(turn, NO_DRAFTS, [], 0)
