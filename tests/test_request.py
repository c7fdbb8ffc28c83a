"""Parameters of a request, and the sequence that is made from them, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from pymtp.acceptance.forced import Forced
from pymtp.acceptance.interface import MATCH, Acceptance
from pymtp.acceptance.rejection import BLOCK_REJECTION, TOKENWISE_REJECTION
from pymtp.binding.library import ffi
from pymtp.drafting.mtp import MtpDrafter
from pymtp.errors import InvalidParameter
from pymtp.sampling.params import SamplingParams
from pymtp.serving.make_sequence import ModelTraits, make_sequence
from pymtp.serving.params import GenerationParams
from pymtp.serving.sequence import TokenSequence

PIECES = [b"a", b"b", b"<think>", b"</think>", b"</", b"think", b">", b""]
EOG = 7


class Words:
    """A vocabulary of a few tokens."""

    size = len(PIECES)
    native = ffi.NULL
    suppressed = ()
    thinking_tags: tuple[str, str] | None = ("<think>", "</think>")
    end_of_generation = frozenset({EOG})

    def special_piece(self, token: int) -> bytes:
        return PIECES[token]


def sequence(prompt: list[int], vocabulary: Any = None, **options: Any) -> TokenSequence:
    model = ModelTraits(vocabulary or Words(), MtpDrafter.traits, n_ctx=100, n_draft_max=3)
    return make_sequence(prompt, GenerationParams(**options), model)


GBNF = 'root ::= "a"'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -2}, r"max_tokens must be an integer, -1 \(no limit\) or more, not -2"),
        ({"max_tokens": 1.5}, "max_tokens must be an integer, .*, not 1.5"),
        ({"logprobs": -1}, "logprobs must be an integer, 0 or more, not -1"),
        ({"logprobs": "5"}, "logprobs must be an integer, 0 or more, not '5'"),
        ({"draft_max": -1}, r"draft_max must be an integer, auto, 0 \(no drafts\) or more, not -1"),
        ({"draft_min": 3, "draft_max": 2}, r"draft_min must be at most draft_max, which is 2 \(lower .*\), not 3"),
        ({"stop": ("a", "")}, r"stop must be strings that are not empty, in valid Unicode, not \('a', ''\)"),
        ({"stop": ""}, "stop must be strings that are not empty, in valid Unicode"),
        ({"stop": (1,)}, "stop must be strings that are not empty, in valid Unicode"),
        ({"stop": "a\udcff"}, "stop must be strings that are not empty, in valid Unicode"),
        ({"thinking_tags": ("a\udcff", "b")}, "thinking_tags must be two strings that are not empty, in valid Unicode"),
        ({"grammar": 'root ::= "\udcff"'}, "grammar must be GBNF in valid Unicode"),
        ({"json_schema": "[" * 100_000}, "json_schema must be valid JSON that is not nested so deeply"),
        ({"draft_pick": "some"}, "draft_pick must be greedy, sample or auto, not 'some'"),
        ({"accept": "all"}, "accept must be one of auto, match, rejection, rejection-tokenwise, not 'all'"),
        ({"draft_pick": "sample", "accept": "match"}, "draft_pick must be greedy or auto with accept match"),
        ({"thinking_tags": ("", "x")}, "thinking_tags must be two strings that are not empty"),
        ({"thinking_tags": ("x",)}, "thinking_tags must be two strings that are not empty"),
        ({"grammar": "root ::="[:4]}, r"grammar must be GBNF with a rule named root \("),
        ({"json_schema": "{"}, "json_schema must be valid JSON"),
        ({"grammar": GBNF, "json_schema": "{}"}, "grammar must be given without a JSON schema"),
        (
            {"grammar": GBNF, "ignore_eos": True},
            "ignore_eos must be off with a grammar, which ends the text itself",
        ),
        ({"grammar": GBNF, "sampling": SamplingParams(mirostat=2)}, "grammar must be left out with mirostat 2"),
        (
            {"json_schema": "{}", "sampling": SamplingParams(samplers=("adaptive_p",))},
            "grammar must be left out with adaptive_p",
        ),
    ],
)
def test_an_invalid_request_is_refused_with_the_field_and_what_is_allowed(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidParameter, match=f"^{message}"):
        GenerationParams(**options)


def test_a_json_schema_becomes_a_grammar() -> None:
    params = GenerationParams(json_schema={"type": "boolean"}, stop="x")
    assert params.json_schema is None
    assert '"true"' in str(params.grammar)
    assert params.stop == ("x",)


@pytest.mark.parametrize(
    ("sampling", "name"),
    [({"mirostat": 1}, "mirostat 1"), ({"mirostat": 2}, "mirostat 2"), ({"samplers": ("adaptive_p",)}, "adaptive_p")],
)
def test_samplers_with_a_state_that_drafts_cannot_share_turn_drafting_off_with_a_note(
    sampling: dict[str, Any], name: str
) -> None:
    params = GenerationParams(sampling=SamplingParams(**sampling))
    assert params.draft_note == f"{name} keeps a state that drafts cannot share: plain decoding"
    assert sequence([0], sampling=params.sampling).draft_max == 0
    assert GenerationParams().draft_note is None
    assert sequence([0]).draft_max == 3


@pytest.mark.parametrize(
    ("options", "draws", "accept"),
    [
        ({}, True, BLOCK_REJECTION),
        ({"sampling": SamplingParams(seed=1)}, False, MATCH),
        ({"sampling": SamplingParams(temperature=0)}, False, MATCH),
        ({"draft_pick": "greedy"}, False, MATCH),
        ({"draft_pick": "greedy", "accept": "rejection"}, False, BLOCK_REJECTION),
        ({"draft_pick": "sample"}, True, BLOCK_REJECTION),
        ({"draft_pick": "sample", "sampling": SamplingParams(temperature=0)}, False, MATCH),
        ({"accept": "match"}, False, MATCH),
        ({"accept": "rejection"}, True, BLOCK_REJECTION),
        ({"accept": "rejection-tokenwise"}, True, TOKENWISE_REJECTION),
    ],
)
def test_options_decide_pick_and_acceptance_method(options: dict[str, Any], draws: bool, accept: Acceptance) -> None:
    made = sequence([0], **options)
    assert made.draws == draws
    assert made.accept is accept


def test_forced_acceptance_picks_drafts_greedily() -> None:
    forced = Forced([0.5])
    made = sequence([0], forced=forced, draft_pick="sample")
    assert not made.draws
    assert made.accept is forced


def test_a_grammar_that_may_start_inside_a_block_turns_block_rejection_off() -> None:
    for accept in ("auto", "rejection"):
        made = sequence([2, 0], grammar=GBNF, accept=accept)
        assert made.sampler.awaits_grammar
        assert made.accept is TOKENWISE_REJECTION


@pytest.mark.parametrize(("prompt", "tokens"), [([2], [0, 3, 0]), ([0, 2, 0, 4], [5, 6, 0])])
def test_a_grammar_waits_for_the_end_of_the_thinking_that_the_prompt_leaves_open(
    prompt: list[int], tokens: list[int]
) -> None:
    starts = sequence(prompt, grammar=GBNF).sampler._grammar_starts
    assert starts
    assert [starts(token) for token in tokens] == [False, True, True]


def test_thinking_tags_can_be_given() -> None:
    class Thoughtless(Words):
        thinking_tags = None

    starts = sequence([0, 1], Thoughtless(), grammar=GBNF, thinking_tags=("b", "</")).sampler._grammar_starts
    assert starts
    assert [starts(token) for token in (0, 4)] == [False, True]


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"draft_max": "auto"}, False),
        ({"draft_max": "auto", "accept": "match"}, False),
        ({"draft_max": "auto", "accept": "rejection"}, True),
        ({"draft_max": "auto", "draft_pick": "sample"}, True),
        ({"draft_max": 2}, False),
        ({"draft_max": 2, "draft_pick": "sample"}, True),
    ],
)
def test_a_seed_stands_for_one_text_unless_drawn_drafts_are_asked_for(options: dict[str, Any], drawn: bool) -> None:
    sampling = SamplingParams(temperature=1, seed=1)
    assert GenerationParams(sampling=sampling, **options).keeps_plain_text is not drawn
    assert sequence([0], sampling=sampling, **options).params.is_reproducible is drawn
    assert GenerationParams(sampling=SamplingParams(temperature=1), draft_max="auto").keeps_plain_text is False
