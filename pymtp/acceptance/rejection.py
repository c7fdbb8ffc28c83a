"""Speculative sampling: accepts drawn drafts at random, so that the output keeps the target's distribution."""

from collections.abc import Sequence

from pymtp.acceptance.interface import MATCH, Verdict, Verified
from pymtp.errors import NothingAllowed
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution


class TokenwiseRejection:
    """Accept a draft with probability min(1, target / draft), else sample the residual distribution.

    Speculative sampling: arXiv 2211.17192, 2302.01318. The drafts must have been drawn from `distributions`; without
    these a draft counts as certain (one-hot), which is lossless as well.
    """

    name = "rejection (token-wise)"

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        tokens: list[int] = []
        targets: list[Distribution] = []
        drawn_from = verified.distributions or _one_hot(verified.drafts)
        for row, draft, source in zip(verified.rows, verified.drafts, drawn_from, strict=False):
            try:
                target = sampler.distribution(row)
            except NothingAllowed:
                return Verdict(tokens, len(tokens), targets, is_blocked=True)
            targets.append(target)
            draft_prob = source.prob(draft)
            is_accepted = draft_prob > 0 and sampler.random() * draft_prob < target.prob(draft)
            tokens.append(draft if is_accepted else target.sample_residual(source, 1.0, sampler.random()))
            sampler.accept(tokens[-1])
            if not is_accepted:
                return Verdict(tokens, len(tokens) - 1, targets)
            if draft in verified.stop:
                return Verdict(tokens, len(tokens), targets)
        return _with_bonus(sampler, verified, tokens, targets)


class BlockRejection:
    """Decide about all drafts together: on average, never accepts fewer of them than token-wise rejection.

    Block verification: arXiv 2403.10444, algorithm 2.
    """

    name = "rejection"

    def __call__(self, sampler: Sampler, verified: Verified) -> Verdict:
        drafts = verified.drafts
        if not drafts:
            return MATCH(sampler, verified)
        drawn_from = verified.distributions or _one_hot(drafts)
        targets = self._targets(sampler, verified)

        # weight: probability of the drafts so far under the target, relative to the draft distributions, at most 1
        n_accepted, accepted_weight, weight = 0, 1.0, 1.0
        for i, draft in enumerate(drafts):
            draft_prob = drawn_from[i].prob(draft)
            target_prob = targets[i].prob(draft) if i < len(targets) else 0.0
            weight = min(weight * target_prob / draft_prob, 1.0) if draft_prob > 0 else 0.0
            accept_prob = weight
            if i + 1 < len(drafts) and weight > 0:
                # where nothing is allowed, what comes is no draft, but the end
                is_end = i + 1 == len(targets)
                residual = weight if is_end else targets[i + 1].residual_mass(drawn_from[i + 1], weight)
                accept_prob = residual / (residual + 1 - weight) if residual + 1 - weight > 0 else 1.0
            if sampler.random() < accept_prob:
                n_accepted, accepted_weight = i + 1, weight

        tokens = list(drafts[:n_accepted])
        sampler.accept(*tokens)
        if tokens and tokens[-1] in verified.stop:
            return Verdict(tokens, n_accepted, targets)
        if n_accepted == len(drafts):
            return _with_bonus(sampler, verified, tokens, targets)
        if n_accepted == len(targets):
            return Verdict(tokens, n_accepted, targets, is_blocked=True)
        tokens.append(targets[n_accepted].sample_residual(drawn_from[n_accepted], accepted_weight, sampler.random()))
        sampler.accept(tokens[-1])
        return Verdict(tokens, n_accepted, targets[: n_accepted + 1])

    @staticmethod
    def _targets(sampler: Sampler, verified: Verified) -> list[Distribution]:
        """The target's distributions at the drafts' positions, up to the first draft that it cannot sample.

        Without one where it can sample nothing.
        """
        targets = []
        for row, draft in zip(verified.rows, verified.drafts, strict=False):
            try:
                targets.append(sampler.distribution(row))
            except NothingAllowed:
                break
            if targets[-1].prob(draft) == 0:
                break  # it is rejected, and a grammar would not let the sampler assume it
            sampler.assume(draft)
        sampler.forget()
        return targets


TOKENWISE_REJECTION = TokenwiseRejection()
BLOCK_REJECTION = BlockRejection()


def _with_bonus(
    sampler: Sampler, verified: Verified, tokens: Sequence[int], targets: Sequence[Distribution]
) -> Verdict:
    """The verdict if all drafts were accepted."""
    last = MATCH(sampler, verified._replace(rows=verified.rows[-1:], drafts=()))
    return Verdict([*tokens, *last.tokens], len(tokens), [*targets, *last.targets], last.is_blocked)


def _one_hot(drafts: Sequence[int]) -> list[Distribution]:
    return [Distribution([draft], [1.0]) for draft in drafts]
