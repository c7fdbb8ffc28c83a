"""The round: draft, verify, accept, roll back. For any number of sequences in one pass of the target.

Knows token ids and logits; no text, no clock, and nothing of who comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from pymtp.drafting import Drafter
from pymtp.sequence import Round, Turn
from pymtp.session import Session


def play_round(
    session: Session, drafter: Drafter, turns: Sequence[Turn], meanwhile: Callable[[], object] = lambda: None
) -> list[Round]:
    """Draft, verify in one pass of the target, accept, and roll back what was not accepted.

    Each turn decodes the next tokens of its sequence's history and, where these are its last, drafts behind them.
    Afterwards they and the accepted drafts are decoded, and the last token that the turn emitted is not. Raises
    ContextFull if the cache has no room; nothing was sampled then, and the positions behind those that the
    sequences had decoded are to be truncated. `meanwhile` is called once the pass is under way.
    """
    proposals = drafter.propose(turns)
    session.decode([turn.chunk(proposal) for turn, proposal in zip(turns, proposals, strict=True)])
    meanwhile()
    rows = iter(session.rows())
    rounds = [
        turn.judge(list(islice(rows, turn.n_logits(proposal))), proposal)
        for turn, proposal in zip(turns, proposals, strict=True)
    ]
    for played in rounds:
        if played.proposal.drafts:
            session.truncate(played.n_decoded, sequence=played.turn.slot)
    drafter.observe(rounds)
    return rounds
