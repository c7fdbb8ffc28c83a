"""What is asked of a generation: its parameters, checked, and how keywords override them.

Knows values and their ranges; no session, no model.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, get_args

from pymtp.acceptance.forced import Forced, Scripted
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.schema import grammar_of_schema
from pymtp.errors import INT_MAX, InvalidParameter, require
from pymtp.loading.params import ADAPTER_SCALE_MAX
from pymtp.sampling.params import SamplingParams, as_texts, is_text
from pymtp.sampling.rules import check_grammar

Accept = Literal["auto", "match", "rejection", "rejection-tokenwise"]


@dataclass(frozen=True)
class GenerationParams:
    """What is asked of a generation.

    Raises InvalidParameter for a value out of range, or for two that do not go together.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = -1
    """-1: until the model ends its text or the context is full."""
    ignore_eos: bool = False
    """Bans the tokens that end a text, for drafts and target alike."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    grammar: str | None = None
    """GBNF that the text has to follow; if the prompt leaves the model thinking, the text after that."""
    json_schema: str | Mapping[str, Any] | None = None
    """A JSON schema that the text has to follow, where a grammar would apply."""
    chat: ChatPrompt | None = None
    """What a template says of the answer: its grammar, where it ends, what of its special tokens is text."""
    reasoning_budget: int = -1
    """Most tokens of thinking; after them it is closed, as by llama.cpp. -1: any number."""
    logprobs: int | None = None
    """Report the probability of each token, and of this many others. See Generation.logprobs."""
    cache_prompt: bool = False
    """Reuse what the cache holds of the prompt, and leave this text in the cache for a later one. Sums may round
    differently where less is computed, so the text can differ where two tokens are nearly tied."""

    cache_scope: str = ""
    """Texts of the same scope, such as a user's or a key's, reuse what one another left in the cache."""
    slot: int | None = None
    """The slot of the model to run in; None: any that is free."""
    n_keep: int | None = None
    """When the context is full, keep this many of the first tokens, drop half of the others, and continue; -1: the
    whole prompt; None: the text ends then. Only with models whose memory can move positions."""

    lora: Mapping[int, float] | None = None
    """LoRA adapters that the text applies, by their numbers, each with its scale, and no others; None: those of
    Model.adapters, with their scales. Texts that apply different ones take turns, they are not computed together."""

    draft_max: int | Literal["auto"] | None = None
    """Drafts of a round, at most as many as the model was set up for; auto: adapts; None: the model's own."""
    draft_min: int = 0
    """Fewer drafts than this are not verified; not for drawn drafts."""
    draft_p_min: float = 0.0
    """A round stops drafting at the first position where no token is as likely as this."""
    draft_lookup: Literal["off", "self", "shared"] | None = None
    """Whether drafts may also come from the sequence's own earlier text (self), and from texts that have ended
    (shared), where the model was set up for that and the length is auto; None: all that it was set up for."""
    draft_owner: str = ""
    """Whose text this is: texts are shared (`draft_lookup`) only with those of the same owner."""
    draft_pick: Literal["greedy", "sample", "auto"] = "auto"
    """A draft is the most likely token, or drawn; auto: drawn, which is accepted more often, and with a seed the most
    likely one, so that the text is that of plain decoding."""
    accept: Accept = "auto"
    """How drafts are verified; auto: the most likely ones by match, drawn ones by rejection.

    All of them leave the distribution of the text as it is.
    """
    thinking_tags: tuple[str, str] | None = None
    """The texts around the thinking; None: those that the model is known to have."""
    forced: Forced | Scripted | None = None
    """Forces acceptance, for benchmarks only: the text is not valid output."""

    def __post_init__(self) -> None:
        require(isinstance(self.sampling, SamplingParams), "sampling", "a SamplingParams", self.sampling)
        require(isinstance(self.ignore_eos, bool), "ignore_eos", "True or False", self.ignore_eos)
        require(isinstance(self.cache_prompt, bool), "cache_prompt", "True or False", self.cache_prompt)
        require(isinstance(self.cache_scope, str), "cache_scope", "a string", self.cache_scope)
        if self.lora is not None:
            object.__setattr__(self, "lora", _checked_scales(self.lora))
        require(isinstance(self.grammar, (str, type(None))), "grammar", "a string of GBNF", self.grammar)
        _check_int("max_tokens", self.max_tokens, -1, "-1 (no limit) or more")
        require(self.logprobs is None or not self.forced, "logprobs", "left out where acceptance is forced")
        if self.draft_max not in (None, "auto"):
            _check_int("draft_max", self.draft_max, 0, "auto, 0 (no drafts) or more")
        for name, least in (("logprobs", 0), ("slot", 0), ("n_keep", -1)):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), least, f"{least} or more")
        lookups = (None, "off", "self", "shared")
        require(self.draft_lookup in lookups, "draft_lookup", "off, self or shared", self.draft_lookup)
        require(isinstance(self.draft_owner, str), "draft_owner", "a string", self.draft_owner)
        _check_int("draft_min", self.draft_min, 0, "0 or more")
        n_max = self.draft_max if isinstance(self.draft_max, int) else 0
        allowed = f"at most draft_max, which is {n_max} (lower the one or raise the other)"
        require(n_max == 0 or self.draft_min <= n_max, "draft_min", allowed, self.draft_min)
        is_share = isinstance(self.draft_p_min, (int, float)) and 0 <= self.draft_p_min <= 1
        require(is_share, "draft_p_min", "between 0 and 1", self.draft_p_min)
        tags = self.thinking_tags
        are_two = tags is None or (isinstance(tags, (tuple, list)) and len(tags) == 2 and all(map(is_text, tags)))
        require(are_two, "thinking_tags", "two strings that are not empty, in valid Unicode", tags)
        object.__setattr__(self, "stop", as_texts("stop", self.stop))
        require(self.accept in get_args(Accept), "accept", f"one of {', '.join(get_args(Accept))}", self.accept)
        picks = ("greedy", "sample", "auto")
        require(self.draft_pick in picks, "draft_pick", "greedy, sample or auto", self.draft_pick)
        does_not_draw = self.draft_pick != "sample" or self.accept != "match"
        require(does_not_draw, "draft_pick", f"greedy or auto with accept {self.accept}", self.draft_pick)
        _check_int("reasoning_budget", self.reasoning_budget, -1, f"-1 (any number) to {INT_MAX}", INT_MAX)
        require(isinstance(self.chat, (ChatPrompt, type(None))), "chat", "what Model.render returns", self.chat)
        self._check_grammar()

    @property
    def stops(self) -> tuple[str, ...]:
        """Where the text ends: the strings of `stop`, and the template's."""
        return self.stop + (self.chat.stop if self.chat else ())

    @property
    def preserved_tokens(self) -> tuple[str, ...]:
        """Special tokens that are part of the text."""
        return self.chat.preserved_tokens if self.chat else ()

    @property
    def has_grammar(self) -> bool:
        """Whether the text follows a grammar, somewhere in it at least."""
        return self.grammar is not None or bool(self.chat and self.chat.grammar)

    def _check_grammar(self) -> None:
        require(self.grammar is None or self.json_schema is None, "grammar", "given without a JSON schema")
        gbnf = self.grammar if self.json_schema is None else grammar_of_schema(self.json_schema)
        if gbnf is not None:
            try:
                check_grammar(gbnf)
            except InvalidParameter as error:
                if self.json_schema is None:
                    raise
                raise InvalidParameter("json_schema", f"a schema whose grammar is {error.allowed}") from None
            object.__setattr__(self, "grammar", gbnf)
            object.__setattr__(self, "json_schema", None)
            has_two = self.chat and self.chat.grammar
            require(not has_two, "grammar", "left out where the chat has one, of its tools or its schema")
        if self.has_grammar:
            require(not self.ignore_eos, "ignore_eos", "off with a grammar, which ends the text itself")
            stateful = self.sampling.stateful_sampler
            require(not stateful, "grammar", f"left out with {stateful}")

    @property
    def draft_note(self) -> str | None:
        """Why there are no drafts, if it is for these parameters."""
        reason = self.sampling.stateful_sampler
        return f"{reason} keeps a state that drafts cannot share: plain decoding" if reason else None

    @property
    def picks_greedily(self) -> bool:
        """Whether all drafts are most likely tokens.

        A seed stands for one text, whatever is drafted, unless drawn drafts or an acceptance method are asked for.
        """
        keeps_text = self.draft_pick == "auto" and self.accept == "auto" and self.sampling.seed is not None
        picks = self.draft_pick == "greedy" or keeps_text
        return self.sampling.is_greedy or picks or self.accept == "match"

    @property
    def keeps_plain_text(self) -> bool:
        """Whether the text is that of plain decoding with the same seed."""
        return self.sampling.is_greedy or (self.picks_greedily and self.accept in ("auto", "match"))

    @property
    def is_reproducible(self) -> bool:
        """Whether a seed promises the same text although drafts change it: no clock may decide their number then."""
        return self.sampling.seed is not None and not self.keeps_plain_text


def _checked_scales(lora: object) -> dict[int, float]:
    try:
        found = {int(number): float(scale) for number, scale in lora.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, OverflowError):
        found = {-1: 0.0}
    are_right = all(number >= 0 and abs(scale) <= ADAPTER_SCALE_MAX for number, scale in found.items())
    require(are_right, "lora", "a mapping of adapters' numbers, from 0, to their scales (-100 to 100)", lora)
    return found


def _check_int(name: str, value: object, least: int, allowed: str, most: float = math.inf) -> None:
    require(isinstance(value, int) and least <= value <= most, name, f"an integer, {allowed}", value)


class GenerationOptions(TypedDict, total=False):
    """The fields of GenerationParams and of its SamplingParams as keywords: what `generate` and `chat` take."""

    samplers: tuple[str, ...]
    seed: int | None
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...]

    sampling: SamplingParams
    max_tokens: int
    ignore_eos: bool
    stop: str | Sequence[str]
    grammar: str | None
    json_schema: str | Mapping[str, Any] | None
    chat: ChatPrompt | None
    reasoning_budget: int
    logprobs: int | None
    cache_prompt: bool
    cache_scope: str
    slot: int | None
    n_keep: int | None
    lora: Mapping[int, float] | None
    draft_max: int | Literal["auto"] | None
    draft_min: int
    draft_p_min: float
    draft_lookup: Literal["off", "self", "shared"] | None
    draft_owner: str
    draft_pick: Literal["greedy", "sample", "auto"]
    accept: Accept
    thinking_tags: tuple[str, str] | None
    forced: Forced | Scripted | None


_SAMPLING_FIELDS = frozenset(each.name for each in fields(SamplingParams))
_FIELDS = frozenset(each.name for each in fields(GenerationParams))


def with_options(params: GenerationParams, options: Mapping[str, Any]) -> GenerationParams:
    """`params` with fields replaced: those of GenerationParams, and of its SamplingParams.

    Raises TypeError for an unknown name, InvalidParameter for a value out of range.
    """
    is_right = isinstance(params, GenerationParams)
    require(is_right, "params", "a GenerationParams; fields of it are also keywords", params)
    if not options:
        return params
    check_names(options, _FIELDS | _SAMPLING_FIELDS)
    own = {name: value for name, value in options.items() if name in _FIELDS}
    sampling = {name: value for name, value in options.items() if name in _SAMPLING_FIELDS}
    if sampling:
        chosen = own.get("sampling", params.sampling)
        require(isinstance(chosen, SamplingParams), "sampling", "a SamplingParams", chosen)
        own["sampling"] = replace(chosen, **sampling)
    return replace(params, **own)


def check_names(options: Mapping[str, Any], known: Set[str]) -> None:
    """Raise TypeError for a keyword that is not one of `known`, with the nearest one."""
    if unknown := options.keys() - known:
        name = min(unknown)
        near = get_close_matches(name, known, 1)
        raise TypeError(f"unknown parameter {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
