"""From a request's parameters to a sequence that can run: its sampler, its picks, its acceptance method.

Knows parameters, traits and token ids; no session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pymtp.acceptance.interface import MATCH, Acceptance
from pymtp.acceptance.rejection import BLOCK_REJECTION, TOKENWISE_REJECTION
from pymtp.chat.prompt import ChatPrompt
from pymtp.drafting.interface import DrafterTraits
from pymtp.errors import InvalidParameter
from pymtp.loading.images import PlacedImage, n_more_cells
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.chain import Sampler, check_with_vocabulary
from pymtp.sampling.rules import AnswerRules
from pymtp.serving.params import GenerationParams
from pymtp.serving.sequence import TokenSequence
from pymtp.text.thinking import Thinking

REPRODUCIBLE_DRAFT_MAX = 2
"""What "auto" stands for where a seed promises the same text although drafts change it: no clock may decide then."""


@dataclass(frozen=True)
class ModelTraits:
    """What all requests of a model share."""

    vocabulary: Vocabulary
    drafter: DrafterTraits
    n_ctx: int
    """Positions of a sequence."""
    n_draft_max: int
    n_adapters: int = 0
    """LoRA adapters that are loaded."""
    name: str = "the model"
    """Name of the model with its adapters, for errors."""


def check_request(params: GenerationParams, traits: ModelTraits) -> None:
    """Raise InvalidParameter for what `make_sequence` or its sampler would refuse, before the request waits."""
    vocabulary, drafter = traits.vocabulary, traits.drafter
    if not drafter.allows_drawn and params.draft_pick == "sample":
        raise InvalidParameter("draft_pick", f"greedy or auto where {drafter.name} drafts", value="sample")
    rules = _rules(params, vocabulary, starts_inside=False)
    if params.reasoning_budget >= 0 and not (rules and rules.thinking_begin and rules.thinking_ends):
        raise InvalidParameter("reasoning_budget", "-1: the model is not known to think (or give thinking_tags)")
    check_with_vocabulary(params.sampling, params.grammar, vocabulary, rules)


def make_sequence(
    prompt: list[int], params: GenerationParams, traits: ModelTraits, images: Sequence[PlacedImage] = ()
) -> TokenSequence:
    """The sequence that continues `prompt`."""
    vocabulary, drafter, n_draft_max = traits.vocabulary, traits.drafter, traits.n_draft_max
    is_barred = params.has_grammar and not drafter.allows_grammar
    if is_barred or (params.draft_lookup == "off" and drafter.only_looks_up):
        n_draft_max = 0
    if not drafter.allows_drawn:
        params = replace(params, draft_pick="greedy")
    if params.draft_max == "auto" and drafter.auto_draft_max is not None:
        params = replace(params, draft_max=drafter.auto_draft_max)
    if params.draft_max == "auto" and params.is_reproducible:
        params = replace(params, draft_max=REPRODUCIBLE_DRAFT_MAX)
    inside = {position for image in images for position in range(image.position, image.end)}
    text = [token for position, token in enumerate(prompt) if position not in inside] if images else prompt
    eog = vocabulary.end_of_generation
    needs_thinking = params.grammar is not None or params.reasoning_budget >= 0
    tags = _tags(params, vocabulary) if needs_thinking else None
    # after the prompt; whoever follows the text has one of its own
    thinking = Thinking(*tags, map(vocabulary.special_piece, prompt)) if tags else None
    is_inside = thinking is not None and thinking.is_inside

    def is_over(token: int) -> bool:
        return thinking is not None and not thinking.observe(vocabulary.special_piece(token))

    sampler = Sampler(
        params.sampling,
        vocabulary,
        history=text,
        banned=sorted(eog) if params.ignore_eos else [],
        grammar=params.grammar,
        grammar_starts=is_over if is_inside and params.grammar else None,
        rules=_rules(params, vocabulary, starts_inside=is_inside),
    )
    n_draft = min(params.draft_max, n_draft_max) if isinstance(params.draft_max, int) else n_draft_max
    return TokenSequence(
        prompt,
        sampler,
        stop=eog,
        n_ctx=traits.n_ctx - n_more_cells(images),
        params=params,
        draft_max=0 if params.sampling.stateful_sampler else n_draft,
        adapts=params.draft_max == "auto",
        draws=_draws(params),
        accept=acceptance_of(params, awaits_grammar=sampler.awaits_grammar),
        images=images,
    )


def _draws(params: GenerationParams) -> bool:
    return not (params.picks_greedily or params.forced)


def acceptance_of(params: GenerationParams, *, awaits_grammar: bool = False) -> Acceptance:
    """How drafts are verified."""
    if params.forced:
        return params.forced
    if params.accept == "match" or (params.accept == "auto" and not _draws(params)):
        return MATCH
    # a grammar that begins somewhere in a block is not known to all of its rows
    return TOKENWISE_REJECTION if awaits_grammar or params.accept == "rejection-tokenwise" else BLOCK_REJECTION


def _tags(params: GenerationParams, vocabulary: Vocabulary) -> tuple[str, str] | None:
    return params.thinking_tags or _tags_of_chat(params.chat) or vocabulary.thinking_tags


def _tags_of_chat(chat: ChatPrompt | None) -> tuple[str, str] | None:
    return (chat.thinking_begin, chat.thinking_ends[0]) if chat and chat.thinking_begin and chat.thinking_ends else None


def _rules(params: GenerationParams, vocabulary: Vocabulary, *, starts_inside: bool) -> AnswerRules | None:
    """What the answer has to be. `starts_inside`: the prompt leaves the model thinking."""
    chat = params.chat
    if params.reasoning_budget < 0 and not (chat and chat.grammar):
        return None
    tags = _tags(params, vocabulary)
    begin, end = tags or ("", "")
    ends = chat.thinking_ends if chat and tags == _tags_of_chat(chat) else (end,) * bool(end)
    triggers = chat.triggers if chat else ()
    return AnswerRules(
        grammar=chat.grammar if chat else None,
        words=tuple(trigger.text for trigger in triggers if not trigger.is_pattern),
        patterns=tuple(trigger.text for trigger in triggers if trigger.is_pattern),
        prefill=chat.generation_prompt if chat else begin * starts_inside,
        thinking_begin=begin,
        thinking_ends=ends,
        thinking_budget=params.reasoning_budget,
    )
