"""What is asked of a generation, and the sequence that answers it.

Owns the choice of sampler, acceptance method and pick. Knows parameters and token ids; no session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pymtp.acceptance import BLOCK_REJECTION, MATCH, TOKENWISE_REJECTION, Acceptance, Forced, Relaxed
from pymtp.cost_record import CostRecord
from pymtp.draft_length import AdaptiveLength, DraftLength, FixedLength
from pymtp.draft_pick import AutoPick, DraftPick, FixedPick
from pymtp.drafting import DrafterTraits, MtpDrafter
from pymtp.errors import InvalidParameter
from pymtp.experience import Experience
from pymtp.grammar import check_grammar, grammar_of_schema
from pymtp.round_costs import RoundCosts
from pymtp.sampler import Sampler
from pymtp.sampling import SamplingParams
from pymtp.sequence import TokenSequence
from pymtp.thinking import Thinking
from pymtp.vocabulary import Vocabulary

_ACCEPT = ("auto", "match", "rejection", "rejection-tokenwise", "relaxed")


@dataclass(frozen=True)
class GenerationParams:
    """What is asked of a generation.

    Raises InvalidParameter for a value out of range, or for two that do not go together.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = -1
    """-1: until the model ends its text or the context is full."""
    ignore_eos: bool = False
    """Bars the tokens that end a text, for drafts and target alike."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    grammar: str | None = None
    """GBNF: what the text can be; where the prompt leaves the model thinking, what it can be behind that."""
    json_schema: str | Mapping[str, Any] | None = None
    """Likewise, as a JSON schema."""
    logprobs: int | None = None
    """Report the probability of each token, and of this many others. See Generation.logprobs."""

    draft_max: int | Literal["auto"] | None = None
    """Drafts of a round, at most as many as the model is set up for; auto: as many as pay; None: the model's own."""
    draft_min: int = 0
    """Fewer drafts than these are not verified; for drafts that are not drawn."""
    draft_p_min: float = 0.0
    """A round drafts nothing behind the first place where no token is as likely as this."""
    draft_pick: Literal["greedy", "sample", "auto"] = "auto"
    """A draft is the most likely token, or drawn; auto: what would have been kept more often of late."""
    accept: Literal["auto", "match", "rejection", "rejection-tokenwise", "relaxed"] = "auto"
    """How drafts are verified; auto: the most likely ones by match, drawn ones by rejection.

    All but "relaxed" leave the distribution of the text as it is.
    """
    relaxed_top_n: int = 10
    relaxed_delta: float = 0.6
    """See acceptance.Relaxed."""
    thinking_tags: tuple[str, str] | None = None
    """Around the thinking; None: those that the model is known to have."""
    forced: Forced | None = None
    """For benchmarks only: the text is not valid output."""

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, -1, "-1 (no limit) or more")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, "0 or more")
        if self.draft_max not in (None, "auto"):
            _check_int("draft_max", self.draft_max, 0, "auto, 0 (no drafts) or more")
        _check_int("draft_min", self.draft_min, 0, "an integer, 0 or more")
        if not isinstance(self.draft_p_min, (int, float)) or not 0 <= self.draft_p_min <= 1:
            raise InvalidParameter("draft_p_min", "between 0 and 1", value=self.draft_p_min)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not _are_texts(stop):
            raise InvalidParameter("stop", "strings that are not empty", value=stop)
        if self.thinking_tags is not None and not (len(self.thinking_tags) == 2 and _are_texts(self.thinking_tags)):
            raise InvalidParameter("thinking_tags", "two strings that are not empty", value=self.thinking_tags)
        object.__setattr__(self, "stop", stop)
        if self.accept not in _ACCEPT:
            raise InvalidParameter("accept", f"one of {', '.join(_ACCEPT)}", value=self.accept)
        if self.draft_pick not in ("greedy", "sample", "auto"):
            raise InvalidParameter("draft_pick", "greedy, sample or auto", value=self.draft_pick)
        if self.draft_pick == "sample" and self.accept in ("match", "relaxed"):
            raise InvalidParameter("draft_pick", f"greedy or auto with accept {self.accept}", value=self.draft_pick)
        Relaxed(lambda: False, lambda token: None, self.relaxed_top_n, self.relaxed_delta)  # checks both
        self._check_grammar()

    def _check_grammar(self) -> None:
        if self.grammar is not None and self.json_schema is not None:
            raise InvalidParameter("grammar", "given without a JSON schema")
        gbnf = self.grammar if self.json_schema is None else grammar_of_schema(self.json_schema)
        if gbnf is None:
            return
        check_grammar(gbnf)
        object.__setattr__(self, "grammar", gbnf)
        object.__setattr__(self, "json_schema", None)
        if self.ignore_eos:
            raise InvalidParameter("ignore_eos", "off where a grammar says how the text ends")
        if self.sampling.picks_itself:
            raise InvalidParameter("grammar", f"left out with {self.sampling.picks_itself}")

    @property
    def draft_note(self) -> str | None:
        """Why there are no drafts, if it is for these parameters."""
        reason = self.sampling.picks_itself
        return f"{reason} keeps a state that drafts cannot share: plain decoding" if reason else None

    @property
    def picks_greedily(self) -> bool:
        """Whether all drafts are most likely tokens.

        With a seed the text must be the same however fast the machine is. That of plain decoding is, and leaves the
        length of drafts to the clock; where it is fixed, drafts may be drawn as well.
        """
        is_timed = self.draft_max == "auto" and self.sampling.seed is not None
        picks = self.draft_pick == "greedy" or (self.draft_pick == "auto" and self.accept == "auto" and is_timed)
        return self.sampling.is_greedy or picks or self.accept in ("match", "relaxed")

    @property
    def keeps_plain_text(self) -> bool:
        """Whether drafts change nothing in what a seed stands for: the text is that of plain decoding."""
        return self.sampling.is_greedy or (self.picks_greedily and self.accept in ("auto", "match"))

    @property
    def is_reproducible(self) -> bool:
        """Whether a seed promises the same text although drafts are part of how it comes about: without a clock."""
        return self.sampling.seed is not None and not self.keeps_plain_text


def _check_int(name: str, value: object, least: int, allowed: str) -> None:
    if not (isinstance(value, int) and value >= least):
        raise InvalidParameter(name, f"an integer, {allowed}", value=value)


def _are_texts(texts: Sequence[object]) -> bool:
    return all(isinstance(text, str) and text for text in texts)


def make_sequence(
    prompt: list[int],
    params: GenerationParams,
    vocabulary: Vocabulary,
    *,
    n_ctx: int,
    n_draft_max: int,
    drafter: DrafterTraits = MtpDrafter.traits,
    experience: Experience,
    cost_record: CostRecord | None = None,
) -> TokenSequence:
    """The sequence that continues `prompt`, in a session that verifies `n_draft_max` drafts.

    The length of its drafts follows `experience`, and where that must not depend on a clock, `cost_record`.
    """
    if not drafter.allows_drawn and params.draft_pick == "sample":
        raise InvalidParameter("draft_pick", f"greedy or auto where {drafter.name} drafts", value="sample")
    if params.grammar is not None and not drafter.allows_grammar:
        n_draft_max = 0
    if not drafter.allows_drawn:
        params = replace(params, draft_pick="greedy")
    eog = vocabulary.end_of_generation
    thinking = _thinking(prompt, params, vocabulary) if params.grammar is not None else None
    sampler = Sampler(
        params.sampling,
        vocabulary,
        history=prompt,
        barred=sorted(eog) if params.ignore_eos else [],
        grammar=params.grammar,
        grammar_starts=_behind(thinking, vocabulary) if thinking and thinking.is_inside else None,
    )
    n_draft = min(params.draft_max, n_draft_max) if isinstance(params.draft_max, int) else n_draft_max
    # a grammar that begins somewhere in a block is not known to all of its rows
    rejection = TOKENWISE_REJECTION if sampler.awaits_grammar else BLOCK_REJECTION
    accept, accept_drawn = _methods(prompt, params, vocabulary, rejection)
    needs_record = params.is_reproducible and params.draft_max == "auto"
    if needs_record:
        experience = Experience(cost_record.costs if cost_record else RoundCosts(is_measured=False))
    return TokenSequence(
        prompt,
        sampler,
        stop=eog,
        n_ctx=n_ctx,
        max_tokens=params.max_tokens,
        draft_max=0 if params.draft_note else n_draft,
        is_reproducible=params.is_reproducible,
        length=_length(prompt, params, n_draft, experience),
        cost_record=cost_record if needs_record else None,
        pick=_pick(params),
        accept=accept,
        accept_drawn=accept_drawn,
        n_logprobs=params.logprobs,
    )


def _length(prompt: Sequence[int], params: GenerationParams, n_draft: int, experience: Experience) -> DraftLength:
    if params.draft_max != "auto":
        return FixedLength(n_draft, n_min=params.draft_min, p_min=params.draft_p_min)
    n_min, p_min = params.draft_min, params.draft_p_min
    return AdaptiveLength(n_draft, experience, prompt=prompt, n_min=n_min, p_min=p_min)


def _pick(params: GenerationParams) -> DraftPick:
    if params.picks_greedily or params.forced:
        return FixedPick(draws=False)
    return AutoPick() if params.draft_pick == "auto" else FixedPick(draws=True)


def _methods(
    prompt: Sequence[int], params: GenerationParams, vocabulary: Vocabulary, rejection: Acceptance
) -> tuple[Acceptance, Acceptance]:
    """For drafts that are most likely tokens, and for drawn ones."""
    if params.forced:
        return params.forced, params.forced
    if params.accept == "relaxed":
        relaxed = _relaxed(prompt, params, vocabulary)
        return relaxed, relaxed
    return {
        "auto": (MATCH, rejection),
        "match": (MATCH, MATCH),
        "rejection": (rejection, rejection),
        "rejection-tokenwise": (TOKENWISE_REJECTION, TOKENWISE_REJECTION),
    }[params.accept]


def _relaxed(prompt: Sequence[int], params: GenerationParams, vocabulary: Vocabulary) -> Relaxed:
    thinking = _thinking(prompt, params, vocabulary)
    if thinking is None:
        raise InvalidParameter("thinking_tags", "given for accept relaxed: the model is not known to have any")
    piece = vocabulary.special_piece
    return Relaxed(
        lambda: thinking.is_inside,
        lambda token: thinking.observe(piece(token)),
        params.relaxed_top_n,
        params.relaxed_delta,
    )


def _thinking(prompt: Sequence[int], params: GenerationParams, vocabulary: Vocabulary) -> Thinking | None:
    """Behind the prompt. Whoever follows the text has its own, and tells it each token."""
    tags = params.thinking_tags or vocabulary.thinking_tags
    return Thinking(*tags, map(vocabulary.special_piece, prompt)) if tags else None


def _behind(thinking: Thinking, vocabulary: Vocabulary) -> Callable[[int], bool]:
    """Tells whether the thinking is over behind a token."""

    def is_over(token: int) -> bool:
        thinking.observe(vocabulary.special_piece(token))
        return not thinking.is_inside

    return is_over
