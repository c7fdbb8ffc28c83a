"""What an answer has to be: lazy grammars, grammars of a template, budgets of thinking; with drafts and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_archive import texts
from machine import needs_exact_texts
from pymtp import ChatParams, ChatPrompt, ChatTemplate, GenerationParams, InvalidParameter, Model, SamplingParams
from pymtp.chat.prompt import Trigger
from pymtp.sampling.chain import Sampler
from pymtp.sampling.rules import AnswerRules

THINKING = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{%- if m.reasoning_content %}
<think>{{ m.reasoning_content }}</think>{% endif %}
{{ m.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>{% if enable_thinking is false %}</think>{% endif %}
{% endif %}"""
QUESTION = [{"role": "user", "content": "Tom has 3 boxes with 12 apples each and gives away 6. How many are left?"}]
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def model(embedded_model: Path) -> Iterator[Model]:
    with Model(embedded_model, n_ctx=512, draft_max=3) as model:
        yield model


@pytest.fixture
def thinks(model: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The embedded model with a template that opens a thinking."""
    monkeypatch.setattr(model, "chat_template", ChatTemplate(model.vocabulary, THINKING))
    return model


def thought(model: Model, tokens: list[int]) -> int:
    """How many tokens the thinking has."""
    (end,) = model.tokenize("</think>", is_start=False)
    return tokens.index(end)


# --- budgets ---


@pytest.mark.model
@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("budget", [0, 1, 2, 7, 11])
def test_a_thinking_has_as_many_tokens_as_its_budget_and_is_closed(thinks: Model, budget: int, draft_max: int) -> None:
    free = thinks.chat(QUESTION, sampling=GREEDY, max_tokens=40, draft_max=0)
    text = "".join(free)
    n_free = thought(thinks, free.tokens)
    assert n_free > 11, text
    short = thinks.chat(QUESTION, sampling=GREEDY, max_tokens=40, draft_max=draft_max, reasoning_budget=budget)
    assert "</think>" in "".join(short)
    assert thought(thinks, short.tokens) == budget
    assert short.tokens[:budget] == free.tokens[:budget]
    assert short.message.content.strip() == short.text.partition("</think>")[2].strip()


@pytest.mark.model
def test_drafts_change_nothing_about_a_budget(thinks: Model) -> None:
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=5)):
        texts = {
            "".join(
                thinks.chat(QUESTION, sampling=sampling, max_tokens=60, draft_max=k, reasoning_budget=9, accept="match")
            )
            for k in (0, 1, 3)
        }
        assert len(texts) == 1


@pytest.mark.model
def test_what_closes_the_thinking_is_drafted_and_accepted(thinks: Model) -> None:
    drafted = set()
    for budget in range(2, 9):
        short = thinks.chat(QUESTION, sampling=GREEDY, max_tokens=20, draft_max=3, reasoning_budget=budget)
        text = "".join(short)
        at = text.index("</think>")
        drafted |= {by_draft for _, by_draft in short.parts(at, at + len("</think>"))}
    assert True in drafted


@pytest.mark.model
def test_a_thinking_that_ends_by_itself_is_not_closed_again(thinks: Model) -> None:
    free = thinks.chat(QUESTION, sampling=GREEDY, max_tokens=80)
    text = "".join(free)
    wide = thinks.chat(QUESTION, sampling=GREEDY, max_tokens=80, reasoning_budget=thought(thinks, free.tokens) + 10)
    assert "".join(wide) == text


@pytest.mark.model
def test_reasoning_off_with_a_budget_of_zero_closes_nothing_twice(thinks: Model) -> None:
    off = ChatParams(reasoning="off")
    text = "".join(thinks.chat(QUESTION, chat_params=off, sampling=GREEDY, max_tokens=20))
    closed = thinks.chat(QUESTION, chat_params=off, sampling=GREEDY, max_tokens=20, reasoning_budget=0)
    assert "".join(closed) == text


@pytest.mark.model
def test_a_raw_prompt_that_opens_a_thinking_has_a_budget_too(model: Model) -> None:
    generation = model.generate(
        "<|im_start|>assistant\n<think>\n12 +", sampling=GREEDY, max_tokens=30, reasoning_budget=4
    )
    list(generation)
    assert thought(model, generation.tokens) == 4


@pytest.mark.model
def test_a_budget_for_a_model_that_does_not_think_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model.vocabulary.__dict__, "thinking_tags", None)
    with pytest.raises(InvalidParameter, match="^reasoning_budget must be -1: the model is not known to think"):
        model.generate("hi", reasoning_budget=3)


@pytest.mark.model
def test_a_schema_holds_after_a_thinking_that_was_cut_short(thinks: Model) -> None:
    schema = {"type": "integer", "minimum": 1, "maximum": 6}
    for seed in range(6):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        for options in ({"json_schema": schema}, {"chat_params": ChatParams(json_schema=schema)}):
            answer = thinks.chat(QUESTION, sampling=sampling, max_tokens=60, reasoning_budget=6, **options)  # type: ignore[arg-type]
            list(answer)
            assert answer.finish_reason == "eog"
            assert json.loads(answer.message.content) in range(1, 7)


@pytest.mark.model
def test_a_chat_takes_tools_and_a_format_as_openai_does(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    template = texts("models/templates", ".jinja")["Qwen-Qwen2.5-7B-Instruct.jinja"]
    monkeypatch.setattr(model, "chat_template", ChatTemplate(model.vocabulary, template))
    die = {"type": "object", "properties": {"eyes": {"enum": [1, 2, 3, 4, 5, 6]}}, "required": ["eyes"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": die}} for name in ("roll", "hold")]
    one: dict[str, Any] = {"type": "function", "function": {"name": "hold"}}
    calls = model.chat(QUESTION, tools=tools, tool_choice=one, max_tokens=60, sampling=GREEDY)
    list(calls)
    assert [call.name for call in calls.message.tool_calls] == ["hold"]
    form = {"type": "json_schema", "json_schema": {"name": "die", "schema": die}}
    for asked in (form, {"type": "json_object"}):
        other = ChatParams(json_schema={"const": 9})
        answer = model.chat(QUESTION, chat_params=other, response_format=asked, max_tokens=60, sampling=GREEDY)
        list(answer)
        assert answer.message.content.lstrip().startswith("{")
        assert asked is not form or json.loads(answer.message.content)["eyes"] in range(1, 7)
    text = model.chat(QUESTION, response_format={"type": "text"}, max_tokens=1)
    assert text.params.json_schema is None and not text.params.chat.grammar
    for wrong in ({"type": "sound"}, {"type": "json_schema"}, "text", {"type": "json_object", "schema": 5}):
        with pytest.raises(InvalidParameter, match="^response_format must be an object"):
            model.chat(QUESTION, response_format=wrong)  # type: ignore[arg-type]


@pytest.mark.model
@pytest.mark.parametrize("draft_max", [0, 3])
def test_a_second_closing_tag_is_no_content(thinks: Model, draft_max: int) -> None:
    """The model closes its thinking once more, as it does not know that a budget has."""
    (end,) = thinks.tokenize("</think>", is_start=False)
    options = {"sampling": GREEDY, "max_tokens": 12, "draft_max": draft_max, "logit_bias": {end: 1000}}
    closed = thinks.chat(QUESTION, reasoning_budget=0, **options)
    text = "".join(closed)
    assert text.count("</think>") == 1
    assert closed.tokens.count(end) > 1
    assert "</think>" not in closed.message.content


# --- grammars of a template ---


def with_grammar(**fields: object) -> GenerationParams:
    return GenerationParams(sampling=GREEDY, max_tokens=30, chat=ChatPrompt("", **fields))  # type: ignore[arg-type]


@needs_exact_texts
@pytest.mark.model
@pytest.mark.parametrize("draft_max", [0, 3])
def test_a_lazy_grammar_holds_from_its_trigger_on(model: Model, draft_max: int) -> None:
    free = "".join(model.generate("Once upon a time", sampling=GREEDY, max_tokens=30))
    trigger = " ".join(free.split()[3:5])
    params = with_grammar(grammar=f'root ::= "{trigger}" "!!" [a-z]{{4}}', triggers=(Trigger(trigger),))
    text = "".join(model.generate("Once upon a time", params, draft_max=draft_max))
    before = free[: free.index(trigger)]
    assert text.startswith(before + trigger)
    tail = text[len(before) + len(trigger) :]
    assert tail.startswith("!!") and len(tail) == 6 and tail[2:].isalpha()


@pytest.mark.model
def test_a_lazy_grammar_without_its_trigger_changes_nothing(model: Model) -> None:
    free = "".join(model.generate("Once upon a time", sampling=GREEDY, max_tokens=30))
    params = with_grammar(grammar='root ::= "zzz" "!"', triggers=(Trigger("zzz"), Trigger("q+x", is_pattern=True)))
    assert "".join(model.generate("Once upon a time", params)) == free


@pytest.mark.model
def test_a_grammar_begins_with_what_the_prompt_has_of_the_answer(model: Model) -> None:
    params = with_grammar(
        grammar='root ::= "<|im_start|>assistant\\n" "yes"', generation_prompt="<|im_start|>assistant\n"
    )
    assert "".join(model.generate("Well?<|im_start|>assistant\n", params)) == "yes"


@pytest.mark.model
def test_a_prompt_that_its_grammar_does_not_allow_is_refused(model: Model) -> None:
    params = with_grammar(grammar='root ::= "a"', generation_prompt="b")
    with pytest.raises(Exception, match=r"(?i)grammar|empty"):
        model.generate("Well?", params)


@pytest.mark.model
def test_a_grammar_beside_that_of_the_chat_is_refused(model: Model) -> None:
    with pytest.raises(InvalidParameter, match="^grammar must be left out where the chat has one"):
        model.generate("hi", with_grammar(grammar='root ::= "a"'), grammar='root ::= "b"')


@pytest.mark.model
def test_preserved_tokens_are_text_and_the_templates_stops_end_it(model: Model) -> None:
    grammar = 'root ::= <think> "a" </think> "bc"'
    plain = GenerationParams(sampling=GREEDY, grammar=grammar)
    assert "".join(model.generate("hi", plain)) in ("abc", "<think>a</think>bc")
    shown = GenerationParams(
        sampling=GREEDY, chat=ChatPrompt("", grammar=grammar, preserved_tokens=("<think>", "</think>"), stop=("c",))
    )
    generation = model.generate("hi", shown)
    assert ("".join(generation), generation.finish_reason) == ("<think>a</think>b", "stop")


# --- the chain ---


@pytest.mark.model
def test_rows_after_assumed_tokens_know_the_rules(model: Model) -> None:
    vocabulary = model.vocabulary
    (begin,), (end,) = (model.tokenize(tag, is_start=False) for tag in ("<think>", "</think>"))
    rules = AnswerRules(None, (), (), "<think>", "<think>", ("</think>",), 2)
    sampler = Sampler(GREEDY, vocabulary, rules=rules)
    row = np.zeros(vocabulary.size, np.float32)
    row[65] = 5.0
    a, b = (sampler.distribution(row).tokens[0] for _ in range(2))
    assert a == b == 65
    sampler.assume(65)
    assert sampler.distribution(row).tokens[0] == 65
    sampler.assume(65)
    assert list(sampler.distribution(row).tokens) == [end]
    sampler.forget()
    assert sampler.sample(row) == 65 and sampler.sample(row) == 65 and sampler.sample(row) == end
    assert sampler.sample(row) == 65
    sampler.accept(begin)
    assert sampler.sample(row) == 65
