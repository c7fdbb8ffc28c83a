"""Keywords of Model and generate: the typed names are those of the parameters, and mistakes are named."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from pymtp import (
    ContextParams,
    Conversation,
    DraftParams,
    GenerationParams,
    InvalidParameter,
    Model,
    ModelParams,
    SamplingParams,
    Session,
)
from pymtp.options import ModelOptions, Params, merge_options
from pymtp.serving.params import GenerationOptions, with_options


def names(*parts: Any) -> set[str]:
    return {each.name for part in parts for each in fields(part)}


def test_what_editors_complete_is_what_there_is() -> None:
    assert set(ModelOptions.__annotations__) == names(ModelParams, ContextParams, DraftParams)
    assert set(GenerationOptions.__annotations__) == names(GenerationParams, SamplingParams)
    assert names(GenerationParams).isdisjoint(names(SamplingParams))


def test_keywords_override_the_parameters() -> None:
    params = merge_options(
        Params(ModelParams(n_gpu_layers=3), ContextParams(n_ctx=100), DraftParams()), {"n_ctx": 200, "draft_max": 2}
    )
    assert (params.model.n_gpu_layers, params.context.n_ctx, params.drafting.draft_max) == (3, 200, 2)
    asked = with_options(
        GenerationParams(SamplingParams(top_k=7), max_tokens=5), {"temperature": 0, "max_tokens": 6, "stop": "x"}
    )
    assert (asked.sampling.top_k, asked.sampling.temperature, asked.max_tokens, asked.stop) == (7, 0, 6, ("x",))


def test_sampling_and_its_fields_go_together() -> None:
    asked = with_options(GenerationParams(), {"sampling": SamplingParams(top_k=3), "temperature": 0})
    assert (asked.sampling.top_k, asked.sampling.temperature) == (3, 0)


@pytest.mark.parametrize(("name", "near"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("xyz", "")])
def test_an_unknown_keyword_of_a_generation_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"unknown parameter '{name}'" + (f"; did you mean '{near}'" if near else "$")):
        with_options(GenerationParams(), {name: 1})


def test_an_unknown_keyword_of_a_model_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="unknown parameter 'n_ctxx'; did you mean 'n_ctx'"):
        Model(n_ctxx=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": {"temperature": 0}}, "sampling must be a SamplingParams, not {'temperature': 0}"),
        ({"sampling": 3, "temperature": 0}, "sampling must be a SamplingParams, not 3"),
        ({"grammar": 5}, "grammar must be a string of GBNF, not 5"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, not 1"),
        ({"cache_prompt": "yes"}, "cache_prompt must be True or False, not 'yes'"),
        ({"temperature": "hot"}, "temperature must be 0 or more, not 'hot'"),
        ({"stop": 5}, "stop must be a sequence of strings, not 5"),
        ({"max_tokens": "5"}, "max_tokens must be an integer, .*, not '5'"),
        ({"json_schema": {"type": "string", "minLength": 3000}}, r"json_schema must be a schema whose grammar is GBNF"),
        ({"logit_bias": 5}, "logit_bias must be token ids with numbers: {15043: 1.5}, not 5"),
        ({"logit_bias": [5]}, "logit_bias must be token ids with numbers"),
        ({"samplers": 5}, "samplers must be a sequence of strings, not 5"),
        ({"samplers": [5]}, "samplers must be different names out of .*, not '5'"),
        ({"dry_sequence_breakers": 5}, "dry_sequence_breakers must be a sequence of strings, not 5"),
        ({"thinking_tags": 5}, "thinking_tags must be two strings"),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=f"^{message}"):
        with_options(GenerationParams(), options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": "big"}, "n_ctx must be an integer between 0 and"),
        ({"n_seq_max": 0}, "n_seq_max must be an integer between 1 and 256, not 0"),
        ({"n_seq_max": True}, "n_seq_max must be an integer"),
        ({"kv_unified": 1}, "kv_unified must be True or False, not 1"),
        ({"n_gpu_layers": "all"}, "n_gpu_layers must be a number of layers, -1 for .*, not 'all'"),
        ({"draft_max": True}, "draft_max must be auto, or between 0 and 32, not True"),
        ({"draft": "eagle"}, "draft must be auto, mtp, lookup, none or a Drafter with traits, not 'eagle'"),
        ({"draft_vocab": [1, 2, 1]}, r"draft_vocab must be distinct token ids"),
        ({"draft_vocab": 2**40}, "draft_vocab must be 1 to"),
        ({"draft_vocab": [1.5]}, "draft_vocab must be"),
        ({"draft_vocab": 3.5}, "draft_vocab must be"),
        ({"path": 5}, "path must be that of a GGUF file, or None for the embedded model, not 5"),
        ({"path": b"model.gguf"}, "path must be"),
        ({"draft_model": 5}, "draft_model must be the path of a GGUF file, not 5"),
        ({"chat_template": 5}, "chat_template must be a string of Jinja, not 5"),
        ({"model": 5}, "model must be of the class ModelParams, not 5"),
        ({"context": {"n_ctx": 5}}, "context must be of the class ContextParams"),
        ({"drafting": "mtp"}, "drafting must be of the class DraftParams"),
    ],
)
def test_a_value_that_a_model_cannot_have_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=f"^{message}"):
        Model(**options)


@pytest.mark.parametrize("part", [ModelParams(), ContextParams(), DraftParams(), GenerationParams(), SamplingParams()])
def test_parameters_are_frozen(part: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(part, fields(part)[0].name, 1)


def test_what_was_refused_in_another_process_is_said_here() -> None:
    error = InvalidParameter("top_p", "between 0 and 1", value=3)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "top_p must be between 0 and 1, not 3"
    assert (again.name, again.value) == ("top_p", 3)


@pytest.mark.model
@pytest.mark.parametrize(
    "prompt",
    [None, 5, [1, "x"], [-1], [10**6], ["a"], b"a", "a\udcff"],
    ids=["None", "5", "mixed", "-1", "10^6", "a", "bytes", "lone"],
)
def test_a_prompt_of_a_wrong_type_is_refused(prompt: Any) -> None:
    with Model(n_ctx=64, n_threads=1) as model, pytest.raises(InvalidParameter) as raised:
        model.generate(prompt)
    assert re.match(r"(prompt|text) must be (a string|of token ids)", str(raised.value))


@pytest.mark.model
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda model: model.generate("a", {"temperature": 0}), "params must be a GenerationParams"),
        (lambda model: model.chat([{"role": "user", "content": "a"}], chat_params=5), "params must be a ChatParams"),
        (lambda model: model.detokenize("abc"), "tokens must be a list of token ids, not 'abc'"),
        (lambda model: model.detokenize(5), "tokens must be a list of token ids, not 5"),
        (lambda model: model.slots.save("first"), "slot must be between 0 and 0, not 'first'"),
        (lambda model: model.slots.keep_prefixes("all"), "n_bytes must be a number of bytes, 0 or more, not 'all'"),
        (lambda model: Conversation(model).ask(None), "text must be a string, not None"),
        (lambda model: Conversation(model, system=5).ask("Hello"), "system must be a string, not 5"),
        (lambda model: Session(model, ContextParams()), "model must be the handle of a loaded model"),
        (lambda model: Session(5, ContextParams()), "model must be the handle of a loaded model, not 5"),
    ],
)
def test_a_method_names_a_wrong_type_and_what_was_expected(use: Callable[[Any], object], message: str) -> None:
    with Model(n_ctx=64, n_threads=1) as model:
        with pytest.raises(InvalidParameter, match=f"^{re.escape(message)}"):
            use(model)
        assert len(list(model.generate("Once", max_tokens=2, ignore_eos=True))) > 0


@pytest.mark.model
def test_what_is_shown_of_a_chat_says_how_far_it_is() -> None:
    with Model(n_ctx=64, n_threads=1) as model:
        conversation = Conversation(model)
        assert repr(conversation) == f"<pymtp.Conversation with {model.info.path.name}: 0 turns>"
        answer = conversation.ask("Hello", max_tokens=2, temperature=0)
        assert repr(answer) == "<pymtp.Answer running: ''>"
        text = "".join(answer)
        assert repr(answer) == f"<pymtp.Answer {answer.finish_reason}: {text!r}>"
        assert repr(conversation).endswith(": 1 turn>")


@pytest.mark.model
@pytest.mark.parametrize("messages", ["hello", [], [{"role": "user"}], ["hello"], [{"role": 1, "content": "x"}], None])
def test_messages_of_a_wrong_shape_are_refused(messages: Any) -> None:
    with Model(n_ctx=64, n_threads=1) as model, pytest.raises(InvalidParameter, match="^messages must be a list of"):
        model.chat(messages)


@pytest.mark.model
def test_what_is_shown_of_objects_says_what_they_are() -> None:
    with Model(n_ctx=64, n_threads=1, draft_max=2) as model:
        assert repr(model) == "<pymtp.Model nano-step35-Q4_K_M.gguf: step35, n_ctx=64, draft_max=2>"
        generation = model.generate("Once", max_tokens=4, temperature=0, ignore_eos=True)
        text = "".join(generation)
        assert repr(generation) == f"<pymtp.Generation length: 4 tokens, {text!r}>"
        assert "4 generated" in repr(generation.stats)
        assert model.detokenize(model.tokenize("Once upon")) == "Once upon"


def test_a_value_that_is_nested_too_deeply_to_be_shown_is_refused_all_the_same() -> None:
    value: Any = []
    for _ in range(5000):
        value = [value]
    assert len(str(InvalidParameter("tools", "a list", value=value))) < 250  # Python before 3.12 cannot show it at all
