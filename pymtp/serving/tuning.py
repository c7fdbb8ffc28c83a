"""What passes cost, and who learns it: the policy of drafting, and the draft vocabulary.

Knows times and counts of rounds; never which sequences run next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymtp.drafting.draft_vocab import AutoDraftVocab
from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.counters import Timing
from pymtp.engine.session import Session
from pymtp.serving.sequence import TokenSequence, TurnResult

N_PROMPT_TOKENS = 256
"""Tokens of a prompt that show which ones are frequent."""


class DraftTuning:
    """Observes the passes of a session."""

    def __init__(self, session: Session, policy: DraftPolicy | None, vocab: AutoDraftVocab | None) -> None:
        self._session, self._policy, self._vocab = session, policy, vocab

    def observe_prompt(self, tokens: Sequence[int]) -> None:
        """A sequence with this prompt begins."""
        if self._vocab:
            self._vocab.note_tokens(tokens[-N_PROMPT_TOKENS:])

    def limit_drafts(self, running: Iterable[TokenSequence]) -> None:
        """Before a pass: draft from the part of the vocabulary that pays."""
        vocab = self._vocab
        if vocab is None:
            return
        # what is measured must not change a text that has to be the same each time
        limit = vocab.limits[0] if any(each.is_reproducible for each in running) else vocab.review()
        if limit != self._session.n_draft_vocab:
            self._session.limit_drafts(limit)
        vocab.limit = limit

    def observe(self, rounds: Sequence[TurnResult], seconds: float, spent: Timing) -> None:
        """After a pass. One that took prompts, built a graph first, or let heads catch up is not typical of rounds."""
        if not (self._session.n_draft_max and rounds) or any(each.turn.of_prompt for each in rounds):
            return
        n, n_steps = len(rounds), max(each.proposal.n_steps for each in rounds)
        is_typical = not spent.n_builds and not any(each.proposal.catches_up for each in rounds)
        if self._policy:
            rows = [each.n_rows for each in rounds]
            n_rows = n * max(rows) if self._session.needs_equal_rows else sum(rows)
            self._policy.observe_pass(n_steps, n_rows, n, seconds * 1000, is_typical=is_typical)
        if not is_typical:
            return
        draft_ms = spent.head_us / 1000
        if self._vocab and n_steps:
            self._vocab.note_tokens(token for each in rounds for token in each.tokens)
            n_accepted = sum(each.n_accepted for each in rounds) / n
            other_ms = (seconds * 1000 - draft_ms) / n
            self._vocab.note_round(n_steps, n_accepted, draft_ms=draft_ms / n, other_ms=other_ms)
