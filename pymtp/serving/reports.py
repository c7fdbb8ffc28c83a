"""Who hears of a pass: the jobs that took part, the statistics, and what tunes drafting by its cost.

Owns the counts of all sequences, and what has not been reported yet. Must not know which sequences run next.
"""

from pymtp.drafting.policy import DraftPolicy
from pymtp.engine.session import Session
from pymtp.serving.passes import PassResult
from pymtp.serving.request import Request
from pymtp.serving.sequence import ShareResult
from pymtp.serving.statistics import Stats

REPORT_INTERVAL_S, REPORT_INTERVAL_MAX_S = 0.01, 0.03
"""Less than a screen takes to show something. To wake another thread, and to send a piece of text to a client, take
some 100 us of a CPU that computes passes: of a small model's passes that is a tenth. Rounds that take longer are
reported one by one. (nano-glm, 2 cores; bench/serve.py)"""
REPORT_SHARE_S = 0.002
"""The part of the interval that each sequence adds: 500 reports a second in all."""


class Reports:
    """Collects the results of a pass, and sends them on when the next one is under way."""

    def __init__(self) -> None:
        self.stats = Stats()
        """Counts and times of all sequences. A pass's time is shared out between them by their rows."""
        self._unsent: list[tuple[Request, ShareResult | None]] = []
        self._sent_at = 0.0  # the end of the last pass that all heard of

    def add(self, job: Request, result: ShareResult | None) -> None:
        """Report a result to a job with the next `send`."""
        self._unsent.append((job, result))

    def send(self, passed_at: float, n_running: int) -> None:
        """Report what was added to the jobs. `passed_at`: the end of the last pass, in seconds."""
        unsent, self._unsent = self._unsent, []
        interval_s = min(max(REPORT_INTERVAL_S, n_running * REPORT_SHARE_S), REPORT_INTERVAL_MAX_S)
        is_due = passed_at - self._sent_at >= interval_s
        if is_due:
            self._sent_at = passed_at
        for job, each in unsent:
            job.report(each, may_wait=not (is_due or each is None or each.share.of_prompt))

    def clear(self) -> None:
        """Report nothing of what was added."""
        self._unsent.clear()

    def count(self, result: PassResult) -> None:
        """Count a pass, for its sequences and for all of them."""
        n_rows = sum(each.n_rows for each in result.rounds)
        for each in result.rounds:
            _add(each.share.sequence.stats, each, result, 1.0)
            _add(self.stats, each, result, each.n_rows / n_rows)


def observe_costs(policy: DraftPolicy, session: Session, result: PassResult) -> None:
    """Have the policy learn what a pass costs, unless it took prompts, built a graph first, or let heads catch up."""
    rounds = result.rounds
    if not (session.n_draft_max and rounds) or any(each.share.of_prompt for each in rounds):
        return
    n, n_steps = len(rounds), max(each.proposal.n_steps for each in rounds)
    if not result.spent.n_builds and not any(each.proposal.catches_up for each in rounds):
        rows = [each.n_rows for each in rounds]
        n_rows = n * max(rows) if session.needs_equal_rows else sum(rows)
        policy.costs.observe(n_steps, n_rows, n, result.seconds * 1000)


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
