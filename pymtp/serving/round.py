"""The round: draft, verify, accept, roll back. For any number of sequences in one pass of the target.

Knows token ids and logits; no text, no clock, and nothing of the next pass.
"""

from collections.abc import Callable, Sequence

from pymtp.drafting.interface import NO_DRAFTS, Drafter, DraftOutcome, checked
from pymtp.engine.session import Session
from pymtp.errors import PymtpError
from pymtp.serving.sequence import Share, ShareResult


def run_round(
    session: Session, drafter: Drafter, shares: Sequence[Share], meanwhile: Callable[[], object] = lambda: None
) -> list[ShareResult]:
    """Draft, verify in one pass of the target, accept, and roll back what was not accepted.

    Each share decodes the next tokens of its sequence's history and, where these are its last, drafts after them.
    Afterwards they and the accepted drafts are decoded, and the last token that was emitted is not. Raises
    ContextFull if the cache has no room; nothing was sampled then, and the positions after those that the sequences had
    decoded are to be truncated. `meanwhile` is called with the pass: see Session.decode.

    An image is a share that comes alone.

    A sequence whose own samplers fail gets its `error`, and has no result; the others continue.
    """
    if shares[0].image:
        meanwhile()
        return [_decode_image(session, shares[0])]
    requests = {share.slot: share.sequence.draft_request(share, len(shares)) for share in shares if share.asks}
    asked = list(requests.values())
    proposed = checked(drafter, asked, drafter.propose(asked) if asked else (), session.n_vocab)
    proposals = dict(zip(requests, proposed, strict=True))
    planned = [(share, proposals.get(share.slot, NO_DRAFTS)) for share in shares]
    session.decode([share.sequence.chunk(share, proposal) for share, proposal in planned], meanwhile)
    rows, begin = session.rows(), 0
    results = []
    for share, proposal in planned:
        end = begin + share.n_logits(proposal)
        try:
            results.append(share.sequence.judge(share, rows[begin:end], proposal))
        except PymtpError as error:
            share.sequence.error = error
        begin = end
    if requests:
        if ends := {each.share.slot: each.n_decoded for each in results if each.proposal.drafts}:
            session.truncate_all(ends)
        drafter.observe(
            [
                DraftOutcome(requests[each.share.slot], each.proposal, each.tokens, each.n_accepted)
                for each in results
                if each.share.slot in requests
            ]
        )
    return results


def _decode_image(session: Session, share: Share) -> ShareResult:
    assert share.image
    n_heads = session.n_heads if share.sequence.draft_max > 0 else 0
    media, chunk = share.image.media, share.image.chunk
    session.decode_image(media, chunk, share.position, sequence=share.slot, n_heads=n_heads)
    return ShareResult(share, NO_DRAFTS, [], 0)
