"""A custom drafter: any class with traits that proposes tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from machine import needs_exact_texts
from pymtp import GenerationParams, Model, SamplingParams, Session
from pymtp.drafting.interface import Drafter, DrafterTraits, DraftOutcome, DraftRequest, NoDrafter, Proposal
from pymtp.drafting.lookup import LookupDrafter
from pymtp.drafting.mtp import MtpDrafter
from pymtp.errors import InvalidParameter, PymtpError
from random_gguf import write_granite_hybrid

TEXT = "one two three four five six seven eight. " * 4
GREEDY = SamplingParams(temperature=0)


class PromptLookup:
    """Copies what followed the newest token's last occurrence."""

    traits: ClassVar = DrafterTraits("prompt lookup")

    def __init__(self, session: Session) -> None:
        self.n_observed = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [Proposal(self._look_up(request.history, request.n_draft)) for request in requests]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        self.n_observed += len(outcomes)

    @staticmethod
    def _look_up(text: Sequence[int], n: int) -> list[int]:
        at = next((i for i in range(len(text) - 2, -1, -1) if text[i] == text[-1]), None)
        return [] if at is None else text[at + 1 : at + 1 + n]


def tokens(model: Model, **options: object) -> list[int]:
    generation = model.generate(TEXT, sampling=GREEDY, max_tokens=40, ignore_eos=True, **options)
    list(generation)
    return generation.tokens


def test_it_drafts_and_the_text_equals_plain_decoding() -> None:
    with Model(draft="none", n_ctx=256, n_threads=1) as plain:
        expected = tokens(plain)
    with Model(draft=PromptLookup, draft_max=3, n_ctx=256, n_threads=1) as model:
        assert tokens(model) == expected
        assert model.stats.accepted > 10
        assert (model.session.n_heads, model.session.mtp_memory) == (0, "none")
        assert model.session.counters.n_head_passes == 0


@needs_exact_texts
def test_it_drafts_for_several_sequences_of_recurrent_states(tmp_path: Path) -> None:
    path = write_granite_hybrid(tmp_path / "tiny.gguf")
    texts = []
    for draft in ("none", PromptLookup):
        with Model(path, draft=draft, draft_max=3, n_seq_max=2, n_ctx=256, n_threads=1) as model:  # type: ignore[arg-type]
            prompts = ([1, 2, 3, 4] * 8, [5, 6, 7] * 9)
            made = [model.generate(prompt, sampling=GREEDY, max_tokens=30, ignore_eos=True) for prompt in prompts]
            for generation in made:
                list(generation)
            texts.append([generation.tokens for generation in made])
            drafted = model.stats.drafted
    assert texts[0] == texts[1]
    assert drafted > 0


def test_its_traits_refuse_options_or_turn_drafting_off() -> None:
    class Alone(PromptLookup):
        traits = DrafterTraits("alone", allows_many=False, allows_grammar=False)

    with pytest.raises(InvalidParameter, match="n_seq_max must be 1 where alone drafts, not 2"):
        Model(draft=Alone, n_seq_max=2)
    with pytest.raises(InvalidParameter, match="draft must be auto, mtp, lookup, none or a Drafter with traits"):
        Model(draft=list)  # type: ignore[arg-type]
    with Model(draft=Alone, draft_max=3, n_ctx=256, n_threads=1) as model:
        with pytest.raises(InvalidParameter, match="draft_pick must be greedy or auto where alone drafts"):
            model.generate(TEXT, draft_pick="sample")
        list(model.generate(TEXT, sampling=GREEDY, grammar='root ::= "one two one two one two"'))
        assert model.stats.drafted == 0
        # at temperature 1 drafts are still not drawn
        list(model.generate(TEXT, GenerationParams(max_tokens=100), accept="rejection", ignore_eos=True))
        assert model.stats.drafted > 0


@pytest.mark.parametrize("accept", ["match", "rejection", "rejection-tokenwise", "auto"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_drafts_that_a_grammar_forbids_are_rejected(accept: str, temperature: float) -> None:
    with Model(draft=PromptLookup, draft_max=3, n_ctx=256, n_threads=1) as model:
        generation = model.generate(
            TEXT,
            temperature=temperature,
            seed=1,
            grammar='root ::= ("one " [0-9] " " [a-c] " "){8}',
            accept=accept,  # type: ignore[arg-type]
            max_tokens=30,
        )
        text = "".join(generation)
        assert generation.error is None
        assert re.fullmatch(r"(one \d [a-c] )*(one?|one |one \d|one \d |one \d [a-c]|o)?", text), text
        assert generation.stats.drafted > generation.stats.accepted


@pytest.mark.parametrize(
    ("drafter", "answers"),
    [
        (MtpDrafter, (True, True, True)),
        (LookupDrafter, (True, False, False)),
        (NoDrafter, (False, False, False)),
    ],
)
def test_the_built_in_drafters_have_the_right_traits(drafter: type[Drafter], answers: tuple[bool, bool, bool]) -> None:
    traits = drafter.traits
    assert (traits.needs_rollback, traits.uses_mtp_heads, traits.allows_drawn) == answers
    assert traits.allows_grammar
    assert traits.allows_many


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "returned NoneType, not a list of proposals"),
        ([], "made 0 proposals for 1 requests"),
        ([[5]], "proposed list, not a Proposal"),
        ([Proposal([5] * 50)], r"proposed 50 tokens, \d were asked for"),
        ([Proposal(["a"])], "proposed 'a', which is not an int from 0 to"),
        ([Proposal([-1])], "proposed -1, which is not an int from 0 to"),
        ([Proposal([2**31])], "proposed 2147483648, which is not an int from 0 to"),
        ([Proposal(np.array([5]))], "proposed drafts in a ndarray, not in a list"),  # type: ignore[arg-type]
        ([Proposal(list(np.array([5])))], r"proposed (np\.int64\()?5\)?, which is not an int from 0 to"),
        ([Proposal({5})], "proposed drafts in a set, not in a list"),  # type: ignore[arg-type]
        ([Proposal([5], [None, None])], "gave 2 distributions for 1 tokens"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_named_at_once(answer: object, problem: str) -> None:
    class Broken(PromptLookup):
        traits: ClassVar = DrafterTraits("broken")

        def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
            return answer if any(request.n_draft > 0 for request in requests) else [Proposal()] * len(requests)  # type: ignore[return-value]

    with Model(draft=Broken, draft_max=3, n_ctx=256, n_threads=1) as model:
        for accept in ("match", "rejection"):
            with pytest.raises(PymtpError, match=f"the drafter broken {problem}"):
                "".join(model.generate(TEXT, accept=accept, max_tokens=20, ignore_eos=True))
        assert model.generate(TEXT, max_tokens=1).tokens is not None
