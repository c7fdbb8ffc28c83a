"""What a drafter is asked, what it answers, and what it learns of the outcome.

Owns the value types of drafting, the interface of drafters, and how drafts are picked from the chain's distributions.
Knows token ids and probabilities; never acceptance, the scheduler or the clock.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from pymtp.engine.session import Row, Session
from pymtp.errors import PymtpError
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution


@dataclass(frozen=True)
class DrafterTraits:
    """What a drafter needs and what it allows, so that nobody has to know which one it is."""

    name: str
    """What reports call it."""
    needs_rollback: bool = True
    """Whether its drafts can turn out wrong: the session must be able to roll them back."""
    uses_mtp_heads: bool = False
    """Whether it drafts with the model's heads, which are loaded for it then."""
    only_looks_up: bool = False
    """Whether all of its drafts come from earlier text."""
    allows_grammar: bool = True
    """Whether it drafts where a grammar constrains the text."""
    allows_drawn: bool = False
    """Whether it can draw its drafts (`DraftRequest.draws`) and report the distributions (`Proposal.distributions`)."""
    allows_many: bool = True
    """Whether it drafts for several sequences at a time."""
    auto_draft_max: int | None = 4
    """The fixed draft length that `draft_max` "auto" stands for; None: it adapts, like pymtp's."""


class ChainPicker:
    """Picks the draft tokens of one sequence with its sampler chain, and says how many are worth verifying.

    They are the most likely tokens (greedy), or drawn.
    """

    def __init__(self, sampler: Sampler, *, draws: bool, n_min: int = 0, p_min: float = 0.0) -> None:
        """`n_min`, `p_min`: see GenerationParams.draft_min and draft_p_min."""
        self._sampler, self._draws, self._n_min, self._p_min = sampler, draws, n_min, p_min

    @property
    def banned(self) -> tuple[int, ...] | None:
        """Tokens to leave out, if each draft is the top token of what remains; None: ask `pick` for each draft."""
        return None if self._draws else self._sampler.draft_ban

    def pick(self, row: Row) -> tuple[int, Distribution, float] | None:
        """The next draft, from a row of the heads; later picks have it in their history until `forget`.

        With what it was picked from, and the probability of the most likely token there. None: no token of the row can
        follow.
        """
        distribution = self._sampler.draft_distribution(row)
        best = distribution.best
        if best is None:
            return None
        token, confidence = best
        if self._draws:
            token = distribution.draw(self._sampler.random())
        self._sampler.assume(token)
        return token, distribution, confidence

    def forget(self) -> None:
        """Drop the picks so far from the sampler's history."""
        self._sampler.forget()

    def n_worth(self, drafts: Sequence[int], confidences: Sequence[float]) -> int:
        """How many of the drafts are worth verifying, from the first on.

        A draft's confidence is the probability of the most likely token at its position. It is known before the draft
        is drawn, so that the distribution of the output does not change.
        """
        if not confidences:
            return len(drafts)
        n = next((i for i, confidence in enumerate(confidences) if not self.is_confident(confidence)), len(confidences))
        return n if self._draws or n >= self._n_min else 0

    def is_confident(self, confidence: float) -> bool:
        """Whether drafting continues after a draft of this confidence, however few there are so far."""
        return confidence >= self._p_min


class DraftRequest(NamedTuple):
    """Asks for drafts for one sequence."""

    history: Sequence[int]
    """Prompt and output so far. The last token is not decoded yet."""
    n_draft: int
    """The most tokens to propose."""
    slot: int
    """The number of the sequence in the session."""
    position: int
    """The position of the first row of the sequence in the coming pass."""
    n_rows: int
    """Tokens of the history in the coming pass: 1 after the prompt."""
    picker: ChainPicker
    """Picks drafts with the sequence's sampler chain, and says how many are worth verifying."""
    stop: Container[int] = ()
    """Tokens that end the sequence."""
    draws: bool = False
    """Whether the drafts are to be drawn; else they are the most likely tokens."""
    n_fed: int = 0
    """How many heads should see the rows, which are a part of the prompt; more than there are: all of them."""
    uses_confidence: bool = False
    """Whether `Proposal.confidences` will be looked at."""
    n_sequences: int = 1
    """Sequences that run, those without drafts included: a prompt that has no rows in the coming pass soon has some."""
    adapts: bool = False
    """Whether the draft length adapts."""
    uses_lookup: bool = True
    """Whether drafts may come from earlier text, where the drafter looks there."""
    owner: str | None = None
    """Whose sequences that have ended may be looked at, too; None: nobody's."""
    catch_up_from: int = 0
    """The first position that heads can catch up: after the last image."""

    @property
    def end(self) -> int:
        """The position after the rows, where drafts begin."""
        return self.position + self.n_rows


class Proposal(NamedTuple):
    """What a drafter proposes for one sequence."""

    drafts: Sequence[int] = ()
    distributions: Sequence[Distribution] = ()
    """One distribution for each draft; or empty."""
    confidences: Sequence[float] = ()
    """The probability of the most likely token at each draft's position, spare ones included; or empty."""
    spare: Sequence[int] = ()
    """Drafts after the others, which are not verified."""
    n_heads: int = 0
    """Heads that should see the rows of the pass."""
    n_steps: int = 0
    """Steps of the heads that it took, together with those of other sequences."""

    def are_right(self, tokens: Sequence[int]) -> list[bool]:
        """Whether drafts were right: those whose correctness the emitted `tokens` show, from the first on."""
        same = [token == draft for token, draft in zip(tokens, [*self.drafts, *self.spare], strict=False)]
        return same[: same.index(False) + 1] if False in same else same


NO_DRAFTS = Proposal()


class DraftOutcome(NamedTuple):
    """What became of a proposal."""

    request: DraftRequest
    proposal: Proposal
    tokens: Sequence[int]
    """What the round emitted: the accepted drafts, then the recovered or bonus token."""
    n_accepted: int


class Drafter(Protocol):
    """Proposes tokens that the target then verifies, for several sequences at once.

    Sequences that neither draft in a round nor have a prompt for the heads to see are not among its requests.
    """

    traits: ClassVar[DrafterTraits]

    def __init__(self, session: Session) -> None:
        """Drafts for the sequences of `session`."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Return for each request at most `n_draft` tokens that may follow its history.

        What follows a token that ends the sequence is left out of them. A round that raises may be run again.
        """

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Take note of what the target made of the proposals."""


def checked(
    drafter: Drafter, requests: Sequence[DraftRequest], proposals: Sequence[Proposal], n_vocab: int
) -> Sequence[Proposal]:
    """`proposals`, if there is one for each request, and none has more drafts than were asked for, or other tokens.

    What follows a token that ends the sequence is left out. Raises PymtpError: a drafter has broken its contract.
    """
    name = drafter.traits.name
    if not isinstance(proposals, Sequence):
        raise PymtpError(f"the drafter {name} returned {type(proposals).__name__}, not a list of proposals")
    if len(proposals) != len(requests):
        raise PymtpError(f"the drafter {name} made {len(proposals)} proposals for {len(requests)} requests")
    return [_checked(name, request, made, n_vocab) for request, made in zip(requests, proposals, strict=True)]


def _checked(name: str, request: DraftRequest, made: Proposal, n_vocab: int) -> Proposal:
    if not isinstance(made, Proposal):
        raise PymtpError(f"the drafter {name} proposed {type(made).__name__}, not a Proposal")
    drafts = made.drafts
    if not isinstance(drafts, Sequence):
        raise PymtpError(f"the drafter {name} proposed drafts in a {type(drafts).__name__}, not in a list")
    if not drafts:
        return made
    if len(drafts) > max(request.n_draft, 0):
        raise PymtpError(f"the drafter {name} proposed {len(drafts)} tokens, {request.n_draft} were asked for")
    for token in drafts:
        if not isinstance(token, int) or not 0 <= token < n_vocab:
            raise PymtpError(f"the drafter {name} proposed {token!r}, which is not an int from 0 to {n_vocab - 1}")
    if made.distributions and len(made.distributions) != len(drafts):
        raise PymtpError(f"the drafter {name} gave {len(made.distributions)} distributions for {len(drafts)} tokens")
    n = next((i + 1 for i, token in enumerate(drafts[:-1]) if token in request.stop), len(drafts))
    return made if n == len(drafts) else made._replace(drafts=drafts[:n], distributions=made.distributions[:n])


class NoDrafter:
    """Plain decoding."""

    traits: ClassVar = DrafterTraits("none", needs_rollback=False)

    def __init__(self, session: Session) -> None:
        """Needs nothing of it."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal()] * len(requests)

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Nothing to note."""
