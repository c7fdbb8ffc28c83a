"""One sequence that runs: its tokens, how far they are decoded, and what it does in a round.

Owns the state of a sequence: history, sampler, draft length, and why it ended. Knows token ids; never text, and nothing
of the other sequences in the session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pymtp.acceptance.interface import MATCH, Acceptance, Verified
from pymtp.drafting.interface import ChainPicker, DraftRequest, Proposal
from pymtp.engine.session import Chunk, Row
from pymtp.errors import PymtpError
from pymtp.loading.images import PlacedImage
from pymtp.sampling.chain import Sampler
from pymtp.sampling.logprobs import TokenLogprobs, token_logprobs
from pymtp.serving.params import GenerationParams
from pymtp.serving.statistics import Stats

FinishReason = Literal["eog", "length", "context", "stop", "blocked"]


class Share(NamedTuple):
    """What a sequence does in a pass: decode tokens of its prompt, or its newest token and drafts after it."""

    sequence: "TokenSequence"
    slot: int
    """The number of the sequence in the session."""
    position: int
    """The position of the first row."""
    n_rows: int
    """Tokens of the history that are decoded; 1 after the prompt."""
    n_draft: int = 0
    """The most drafts that are verified with them."""
    of_prompt: bool = False
    """Whether the tokens are the prompt's."""
    samples: bool = True
    """Whether the target samples: not in a part of the prompt that is not its last."""
    image: PlacedImage | None = None
    """The image that is decoded instead of tokens, in a pass of its own."""

    @property
    def asks(self) -> bool:
        """Whether the drafter has a part in it: it drafts, or its heads see the prompt."""
        return self.n_draft > 0 or (self.of_prompt and self.sequence.draft_max > 0)

    @property
    def end(self) -> int:
        """The position after the rows, where drafts begin."""
        return self.position + self.n_rows

    def n_logits(self, proposal: Proposal) -> int:
        """Rows whose logits it needs: that of the newest token and those of the drafts."""
        return 1 + len(proposal.drafts) if self.samples else 0


class ShareResult(NamedTuple):
    """The result of a share: its drafts, and the tokens that it emitted."""

    share: Share
    proposal: Proposal
    tokens: list[int]
    """The accepted drafts, then the recovered or bonus token, if any is allowed; none inside a prompt."""
    n_accepted: int
    """Drafts that the target accepted."""
    ends: Literal["stop", "blocked"] | None = None
    """Why the sequence ends here: at a stop string, or because nothing is allowed after the tokens, of which there may
    be none. None: neither of these ends it."""
    logprobs: Sequence[TokenLogprobs] = ()
    """Log probabilities of the tokens, if the sequence asks for them."""

    @property
    def n_rows(self) -> int:
        """Rows of the target's pass that were the sequence's."""
        return self.share.n_rows + len(self.proposal.drafts)

    @property
    def n_decoded(self) -> int:
        """Positions of the sequence that stay decoded: all of its tokens but the last that was emitted."""
        return self.share.end + max(len(self.tokens) - 1, 0)


@dataclass(eq=False)
class TokenSequence:
    """A prompt and what is generated after it.

    It ends with a token in `stop`, after `params.max_tokens`, where `n_ctx` positions are full, or where `cut` ends it.
    """

    history: list[int]
    """The prompt at first. Once tokens were generated, all but the last are decoded."""
    sampler: Sampler
    stop: frozenset[int]
    n_ctx: int
    params: GenerationParams = GenerationParams()
    """What was asked for; what follows has been made of it."""
    draft_max: int = 0
    """The most that its rounds draft; 0 also skips feeding prompts to the heads."""
    adapts: bool = False
    """Whether as many are drafted as pay, rather than that many."""
    draws: bool = False
    """Whether its drafts are drawn, rather than the most likely tokens."""
    accept: Acceptance = MATCH
    """Judges its drafts."""
    cut: Callable[[Sequence[int]], int | None] = lambda tokens: None
    """Called with the tokens of each round; returns after how many of them the sequence ends, None if it continues."""
    stats: Stats = field(default_factory=Stats)
    slot: int | None = None
    """Its slot, once it has one."""
    lora: tuple[float, ...] = ()
    """The scales of the LoRA adapters that its passes apply, once it has a slot."""
    images: Sequence[PlacedImage] = ()
    """Images of its prompt; the tokens of its history there stand for nothing."""
    is_shifted: bool = False
    """Whether tokens have gone because the context was full."""
    finish_reason: FinishReason | None = None
    error: PymtpError | None = None
    """What ended it early: the cache had no room for it, or its samplers failed."""

    def __post_init__(self) -> None:
        self.n_prompt = len(self.history)
        self._n_given = self.n_prompt  # to be decoded before it generates: more where it begins again
        self.n_decoded = self.n_cached = 0
        self.n_sound = self.n_ctx
        """How many tokens, from the first on, were decoded after exactly those that precede them now."""
        params = self.params
        # the context ends a text without a limit: its last token needs no position
        self.n_left = self.n_ctx + 1 if params.max_tokens < 0 else params.max_tokens
        shares = params.draft_lookup not in ("off", "self") and not params.is_reproducible
        self.owner = params.draft_owner if shares else None
        """Whose sequences share their texts with it for lookup, and it with them; None: nobody's."""

    @property
    def n_to_decode(self) -> int:
        """Tokens of the prompt that are still to be decoded; 0 once it generates."""
        return max(self._n_given - self.n_decoded, 0)

    @property
    def keys(self) -> list[int]:
        """The history as it is compared with others': images are numbers of their own, below 0."""
        if not self.images:
            return self.history
        keys = list(self.history)
        for image in self.images:
            keys[image.position : image.end] = image.keys
        return keys

    @property
    def n_draft(self) -> int:
        """The most drafts of the next round: each needs a position in the context, and one token comes besides them."""
        return max(0, min(self.draft_max, self.n_ctx - len(self.history), self.n_left - 1))

    def share(self, slot: int, n_rows_max: int) -> Share:
        """The next share of the sequence in `slot`: at most `n_rows_max` rows of the prompt, or of a round."""
        position = self.n_decoded
        if self.n_to_decode:
            image = next((each for each in self.images if each.position >= position), None)
            if image and image.position == position:
                return Share(self, slot, position, image.n_pos, of_prompt=True, samples=False, image=image)
            n_rows = min((image.position if image else self._n_given) - position, n_rows_max)
            samples = position + n_rows == len(self.history) and self.n_left > 0
            return Share(self, slot, position, n_rows, of_prompt=True, samples=samples)
        return Share(self, slot, position, 1, min(self.n_draft, n_rows_max - 1), samples=self.n_left > 0)

    def draft_request(self, share: Share, n_sequences: int = 1) -> DraftRequest:
        """What the drafter is asked for a share, while `n_sequences` run."""
        n_min, p_min = self.params.draft_min, self.params.draft_p_min
        return DraftRequest(
            self.history,
            share.n_draft,
            share.slot,
            share.position,
            share.n_rows,
            ChainPicker(self.sampler, draws=self.draws, n_min=n_min, p_min=p_min),
            self.stop,
            self.draws,
            n_fed=self.draft_max if share.of_prompt else 0,
            uses_confidence=p_min > 0,
            n_sequences=n_sequences,
            adapts=self.adapts,
            uses_lookup=self.params.draft_lookup != "off",
            owner=self.owner,
            catch_up_from=self.images[-1].end if self.images else 0,
        )

    def chunk(self, share: Share, proposal: Proposal) -> Chunk:
        """The rows of a share in the pass of the target."""
        tokens = [*self.history[share.position : share.end], *proposal.drafts]
        logits: Literal["all", "last", "none"] = "none" if not share.samples else "last" if share.of_prompt else "all"
        return Chunk(tokens, share.position, share.slot, logits, proposal.n_heads > 0, proposal.n_heads)

    def judge(self, share: Share, rows: Sequence[Row], proposal: Proposal) -> ShareResult:
        """Accept or reject the drafts. `rows`: (n_logits,) of the target."""
        if not share.samples:
            return ShareResult(share, proposal, [], 0)
        n_top = self.params.logprobs
        drawn_from = proposal.distributions if self.draws else ()
        verified = Verified(rows, proposal.drafts, drawn_from, self.stop, keep=n_top is not None)
        verdict = self.accept(self.sampler, verified)
        n_kept = self.cut(verdict.tokens)
        tokens = verdict.tokens[:n_kept]
        n_accepted = min(verdict.n_accepted, len(tokens))
        ends: Literal["stop", "blocked"] | None
        ends = "stop" if n_kept is not None else "blocked" if verdict.is_blocked else None
        logprobs: Sequence[TokenLogprobs] = ()
        if n_top is not None:
            judged = zip(rows, verdict.targets, tokens, strict=False)
            logprobs = [token_logprobs(row, target, token, n_top) for row, target, token in judged]
        return ShareResult(share, proposal, tokens, n_accepted, ends, logprobs)

    def advance(self, result: ShareResult) -> None:
        """Take over the result of a share."""
        self.n_decoded = result.n_decoded
        self.history += result.tokens
        self.n_left -= len(result.tokens)
        if self.n_to_decode:
            return
        if result.ends:
            self.finish_reason = result.ends
        elif result.tokens and result.tokens[-1] in self.stop:
            self.finish_reason = "eog"
        elif self.n_left <= 0:
            self.finish_reason = "length"
        elif len(self.history) > self.n_ctx:  # the last token needs no position of its own
            self.finish_reason = "context"

    def what_goes(self) -> tuple[int, int]:
        """What can be let go of when the context is full: the position of the first token, and how many."""
        n_keep = self.n_prompt if self.params.n_keep == -1 else self.params.n_keep or 0
        n_keep = max(min(n_keep, self.n_decoded - 2), 0)
        return n_keep, (self.n_decoded - n_keep) // 2

    def shift(self, position: int, n: int) -> None:
        """Let go of `n` tokens from `position` on, and continue."""
        # a new list: who follows the old one has to see that it is another history
        self.history = self.history[:position] + self.history[position + n :]
        self.n_decoded -= n
        self._n_given = min(self._n_given, self.n_decoded)
        self.n_sound = min(self.n_sound, position)
        self.is_shifted, self.finish_reason = True, None

    def begin(self, n: int) -> None:
        """It has a slot, whose cache has its first `n` tokens."""
        self.n_decoded = n
        if self._n_given == self.n_prompt:  # else it begins again, and may continue another text
            self.n_cached = n

    def begin_again(self) -> None:
        """Its slot was taken from it: all of its tokens are to be decoded again."""
        self.slot = None
        self.n_decoded, self._n_given = 0, len(self.history)
        self.n_sound = self.n_ctx
