"""Passes of a session: what each sequence does in the next one, the round, and what is done where the cache is full.

Owns the clock of passes, and what is counted of them. Knows sequences and their shares, token ids and logits; must not
know text or jobs, or which of them run.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import sub
from typing import NamedTuple

from pymtp.drafting.interface import NO_DRAFTS, Drafter, DraftOutcome, checked
from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.session import Counters, Session
from pymtp.errors import BackendError, ContextFull, PymtpError
from pymtp.serving.sequence import Share, ShareResult, TokenSequence
from pymtp.serving.slots import Slots
from pymtp.serving.statistics import Stats


class PassResult(NamedTuple):
    shares: Sequence[Share]
    rounds: Sequence[ShareResult]
    errors: Sequence[ContextFull]
    """One per share that did not fit in the cache."""
    seconds: float
    spent: Counters


class Passes:
    """Plans passes of at most `session.n_ubatch` rows, and runs them."""

    def __init__(
        self, session: Session, drafter: Drafter, slots: Slots, policy: DraftPolicy | None, clock: Callable[[], float]
    ) -> None:
        self.stats = Stats()
        """Counts and times of all sequences. A pass's time is shared out between them by their rows."""
        self.ended_at = 0.0
        """When the last pass ended, by `clock`, in seconds."""
        self._session, self._drafter, self._slots, self._policy = session, drafter, slots, policy
        self._clock = clock

    def plan(self, sequences: Mapping[int, TokenSequence]) -> list[Share]:
        """What the next pass does with the sequences, which come by slot, the oldest first. Changes nothing.

        It is a round of every sequence that generates, and with the rows that are left the next tokens of prompts:
        those that have the fewest left first, with half of the rows for the oldest.
        """
        n_left = self._session.n_ubatch
        shares = []
        for slot, one in sequences.items():
            if n_left > 0 and not one.n_to_decode:
                shares.append(one.share(slot, n_left))
                n_left -= shares[-1].n_rows + shares[-1].n_draft
        prompts = {slot: one for slot, one in sequences.items() if one.n_to_decode}
        n_rows = _rows_of_prompts([one.n_to_decode for one in prompts.values()], max(n_left, 0))
        for slot, one in prompts.items():
            if n_left > 0 and (share := one.share(slot, n_left)).image:
                return [share]  # whatever fails then, nothing else has to be taken back
        shares += [one.share(slot, n) for (slot, one), n in zip(prompts.items(), n_rows, strict=True) if n > 0]
        # a cache with a part for each sequence computes those together whose numbers follow on each other
        return sorted(shares, key=lambda share: share.slot)

    def run(self, shares: Sequence[Share], n_running: int, meanwhile: Callable[[], object]) -> PassResult:
        """Run a pass, while that many sequences run. `meanwhile` is called with it: see Session.decode."""
        errors: list[ContextFull] = []
        before, start = self._session.counters, self._clock()
        rounds = self._run(shares, n_running, meanwhile, errors)
        self.ended_at = self._clock()
        spent = Counters(*map(sub, self._session.counters, before))
        return PassResult(shares, rounds, errors, self.ended_at - start, spent)

    def _run(
        self, shares: Sequence[Share], n_running: int, meanwhile: Callable[[], object], errors: list[ContextFull]
    ) -> list[ShareResult]:
        try:
            return run_round(self._session, self._drafter, shares, n_running, meanwhile)
        except ContextFull as error:
            for share in shares:
                self._session.truncate(share.position, sequence=share.slot)
            if self._slots.drop_oldest():
                return self._run(shares, n_running, meanwhile, errors)
            if len(shares) > 1:  # each on its own: the room may be enough for some
                return [each for share in shares for each in self._run([share], n_running, meanwhile, errors)]
            errors.append(error)
            return []

    def shift(self, slot: int, sequence: TokenSequence) -> None:
        """Let the oldest tokens of a sequence go, if it wants to continue with a full context, and if it can."""
        if sequence.params.n_keep is None or sequence.images:
            return
        position, n = sequence.what_goes()
        try:
            self._session.discard(position, n, sequence=slot)
        except BackendError:
            raise
        except PymtpError:  # there are memories that cannot move positions
            return
        sequence.shift(position, n)

    def count(self, result: PassResult) -> None:
        """Count a pass, for its sequences and for all of them, and have the policy learn what it cost."""
        rounds = result.rounds
        n_rows = sum(each.n_rows for each in rounds)
        for each in rounds:
            _add(each.share.sequence.stats, each, result, 1.0)
            _add(self.stats, each, result, each.n_rows / n_rows)
        if not (self._policy and rounds and self._session.n_draft_max) or result.spent.n_builds:
            return
        if any(each.share.of_prompt for each in rounds):
            return  # not what rounds cost
        n, n_steps = len(rounds), max(each.proposal.n_steps for each in rounds)
        n_computed = n * max(each.n_rows for each in rounds) if self._session.needs_equal_rows else n_rows
        self._policy.costs.observe(n_steps, n_computed, n, result.seconds * 1000)


def run_round(
    session: Session, drafter: Drafter, shares: Sequence[Share], n_running: int, meanwhile: Callable[[], object]
) -> list[ShareResult]:
    """Draft, verify in one pass of the target, accept, and roll back what was not accepted.

    Each share decodes the next tokens of its sequence's history and, where these are its last, drafts after them.
    Afterwards they and the accepted drafts are decoded, and the last token that was emitted is not. Raises
    ContextFull if the cache has no room; nothing was sampled then, and the positions after those that the sequences had
    decoded are to be truncated. Of the sequences that run, `n_running`, some may have no share in the pass. `meanwhile`
    is called with it: see Session.decode.

    An image is a share that comes alone.

    A sequence whose own samplers fail gets its `error`, and has no result; the others continue.
    """
    if image := shares[0].image:
        [share] = shares
        meanwhile()
        n_heads = min(share.sequence.draft_max, session.n_heads)
        session.decode_image(image.media, image.chunk, share.position, sequence=share.slot, n_heads=n_heads)
        return [ShareResult(share, NO_DRAFTS, [], 0)]
    requests = {share.slot: share.sequence.draft_request(share, n_running) for share in shares if share.asks}
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


def _rows_of_prompts(lengths: Sequence[int], n_rows: int) -> list[int]:
    """How many of the rows each prompt gets. `lengths`: tokens that are left of them, the oldest prompt first."""
    shared = [0] * len(lengths)
    reserved = min(lengths[0], (n_rows + 1) // 2) if lengths else 0  # for the oldest
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        reserved = reserved if i else 0
        shared[i] = min(lengths[i], n_rows - reserved)
        n_rows -= shared[i]
    return shared


def _add(stats: Stats, each: ShareResult, result: PassResult, share: float) -> None:
    """Count one sequence's part in a pass, and `share` of the time that the pass took."""
    stats.generated_tokens += len(each.tokens)
    if each.share.of_prompt:
        stats.prompt_tokens += each.share.n_rows
        stats.prompt_s += result.seconds * share
        return
    spent, share_us = result.spent, share / 1e6
    stats.generation_s += result.seconds * share
    stats.draft_s += spent.t_head_us * share_us
    stats.verify_s += spent.t_trunk_us * share_us
    stats.sample_s += spent.t_sample_us * share_us
    stats.add_round(len(each.proposal.drafts), each.n_accepted)
