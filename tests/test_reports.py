"""What users of other engines have reported of speculative decoding, tried here. Links are in docs/reliability.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http_server import running
from llama_archive import texts
from machine import needs_exact_texts
from pymtp import ChatParams, ChatTemplate, GenerationParams, Model, SamplingParams
from pymtp.server.settings import ServerSettings
from random_gguf import write_glm4moe, write_mimo2, write_qwen35

pytestmark = [pytest.mark.model, needs_exact_texts]

PROMPT = "Once upon a time"
STORY = "Tom has a red box. Tom has a blue box. Tom has a green box. Tom has a"
GREEDY = {"temperature": 0, "n_predict": 32, "ignore_eos": True}
TEMPLATES = texts("models/templates", ".jinja")
PROMPTS = [[5, 6, 7, 8] * 6, [5, 9, 11, 2] * 5, [5, 6, 7, 8] * 3 + [40, 41]]
"""All begin with the same token, as if it were the one that begins a text."""


def load(**options: Any) -> Model:
    return Model(**{"n_ctx": 256, "n_threads": 1, "draft_max": 3, "kv_unified": False} | options)


def text_of(model: Model, prompt: str | list[int], **options: Any) -> str:
    return "".join(model.generate(prompt, **{"temperature": 0, "max_tokens": 24, "ignore_eos": True} | options))


def test_log_probabilities_with_drafts_are_those_without() -> None:
    """llama.cpp 27972: 0.0 for each token. One that was drafted has the probability that plain decoding reports."""
    with running(load, ServerSettings(GenerationParams())) as client:
        found = {}
        for draft_max in (0, 3):
            reply = client.post("/completion", prompt=PROMPT, n_probs=3, draft_max=draft_max, **GREEDY).json
            found[draft_max] = reply["completion_probabilities"]
            assert bool(reply["timings"].get("draft_n_accepted")) == bool(draft_max)
    assert len(found[0]) == GREEDY["n_predict"]
    assert found[3] == found[0]
    assert len({entry["logprob"] for entry in found[0]}) > 20


@pytest.mark.parametrize("n_ctx", [40, 41, 42, 43])
def test_log_probabilities_hold_up_to_the_end_of_the_context(n_ctx: int) -> None:
    """vLLM 38711: they were wrong in the last rounds, for which the drafts have no room."""
    found = {}
    for draft in ("mtp", "none"):
        with load(n_ctx=n_ctx, draft=draft) as model:
            generation = model.generate(PROMPT, temperature=0, ignore_eos=True, logprobs=2)
            found[draft] = "".join(generation), generation.logprobs, generation.finish_reason
            assert bool(model.stats.drafted) == (draft == "mtp")
    assert found["mtp"] == found["none"]
    assert found["none"][2] == "context"


@pytest.mark.parametrize("write", [write_glm4moe, write_mimo2, write_qwen35])
def test_a_text_that_ends_inside_accepted_drafts_is_reused_whole(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """llama.cpp 28049: accepted tokens after the last stayed in the cache; a hybrid model then computed all again."""
    path = write(tmp_path / "tiny.gguf")
    same: dict[str, Any] = {"temperature": 0, "logit_bias": {7: 1000.0}, "cache_prompt": True}
    with load(path=path, draft="lookup", draft_max=4) as model, load(path=path, draft="none") as plain:
        for n in range(6, 16):
            stop = model.detokenize([7] * n)
            first = model.generate(PROMPTS[0], max_tokens=30, stop=(stop,), **same)
            list(first)
            assert (first.finish_reason, first.tokens) == ("stop", [7] * n)
            longer = PROMPTS[0] + first.tokens + [3, 4]
            second = model.generate(longer, temperature=0, max_tokens=8, ignore_eos=True, cache_prompt=True)
            assert "".join(second) == text_of(plain, longer, max_tokens=8)
            assert second.n_cached >= len(PROMPTS[0]) + n - 1
        assert model.stats.accepted


def test_a_slot_that_is_restored_in_a_new_server_is_used_and_drafts_as_before(tmp_path: Path) -> None:
    """llama.cpp 26676: nothing was reused. llama.cpp 28619: the heads' part of the cache was not saved."""
    settings = ServerSettings(GenerationParams(cache_prompt=True), slot_save_path=tmp_path, cache_bytes=0)
    longer = PROMPT + " there was a small house near the river, and in the house lived"
    replies = []
    with running(load, settings) as client:
        client.post("/completion", prompt=longer, id_slot=0, **GREEDY)
        assert client.post("/slots/0?action=save", filename="one").json["n_saved"] > GREEDY["n_predict"]
        replies.append(client.post("/completion", prompt=longer, id_slot=0, **GREEDY).json)
    with running(load, settings) as client:
        assert client.post("/slots/0?action=restore", filename="one").status == 200
        replies.append(client.post("/completion", prompt=longer, id_slot=0, **GREEDY).json)
    for reply in replies:
        assert reply["timings"]["prompt_n"] == 1 and reply["timings"]["cache_n"] > 10
    kept, restored = replies
    assert restored["content"] == kept["content"]
    for count in ("draft_n", "draft_n_accepted"):
        assert restored["timings"][count] == kept["timings"][count] > 0


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand (build/ holds no archive): run make")
@pytest.mark.parametrize("name", ["Qwen3-Coder", "Qwen-Qwen3-0.6B", "GLM-4.6", "deepseek-ai-DeepSeek-V3.1"])
def test_the_words_of_a_description_are_no_part_of_a_tools_grammar(name: str) -> None:
    """llama.cpp 27619: with some descriptions of a parameter no token of the grammar was left."""
    template = ChatTemplate(None, TEMPLATES[f"{name}.jinja"])
    said = ["The folder", 'Omit for the default. Do not say "undefined" or "null".', "<tool_call>\n</parameter> | ::="]
    grammars = []
    for description in said:
        fields = {"pattern": {"type": "string"}, "path": {"type": "string", "description": description}}
        parameters = {"type": "object", "properties": fields, "required": ["pattern"]}
        tool = {"type": "function", "function": {"name": "glob", "parameters": parameters}}
        prompt = template.render([{"role": "user", "content": "Find"}], ChatParams(tools=[tool], tool_choice="auto"))
        grammars.append((prompt.grammar, prompt.triggers))
    assert grammars[0][0] and grammars[1:] == grammars[:1] * 2


@pytest.mark.slow
def test_a_schema_holds_where_a_thinking_ends_inside_drafts(embedded_model: Path) -> None:
    """vLLM 36138: drafts after the end of the thinking in the same round were not held to the grammar."""
    with Model(embedded_model, n_ctx=512, n_threads=1, draft_max=3) as model:
        (end,) = model.tokenize("</think>", is_start=False)
        prompt = model.tokenize("Question: 3 + 4? <think>")
        options: dict[str, Any] = {"json_schema": {"type": "integer", "minimum": 10, "maximum": 99}, "max_tokens": 60}
        n_inside = 0
        for seed in range(4):
            made = {}
            for draft_max in (0, 3):
                sampling = SamplingParams(temperature=1.0, seed=seed)
                one = model.generate(
                    prompt, sampling=sampling, draft_max=draft_max, accept="match", logit_bias={end: 9.0}, **options
                )
                made[draft_max] = "".join(one)
                if draft_max and "</think>" in made[draft_max] and one.finish_reason == "eog":
                    assert re.fullmatch("[1-9][0-9]", made[draft_max].partition("</think>")[2].strip())
                    parts = [text for text, is_draft in one.parts() if is_draft]
                    n_inside += any("</think>" in text for text in parts)
            assert made[0] == made[3]
        assert n_inside


@pytest.mark.slow
def test_drafts_are_accepted_alike_in_contexts_of_all_sizes(embedded_model: Path) -> None:
    """llama.cpp 23636: at some sizes, 256 positions apart, hardly any draft was accepted."""
    accepted = set()
    for n_ctx in (250, 256, 512, 768, 1024):
        with load(path=embedded_model, n_ctx=n_ctx) as model:
            text = text_of(model, STORY, max_tokens=48)
            accepted.add((text, model.stats.drafted, model.stats.accepted))
    assert len(accepted) == 1


@pytest.mark.slow
def test_a_text_that_repeats_itself_never_stops_a_slot(embedded_model: Path) -> None:
    """llama.cpp 23268: with lookup, at temperature 0, a round drafted the same again for ever."""
    penalties = {"presence_penalty": 1.5, "repeat_last_n": 64}
    with load(path=embedded_model, draft="lookup", draft_max=8) as model, load(draft="none") as plain:
        for prompt in (STORY, "a a a a a a a a", STORY):
            for more in ({}, penalties):
                assert text_of(model, prompt, max_tokens=40, **more) == text_of(plain, prompt, max_tokens=40, **more)
        assert model.stats.drafted


@pytest.mark.parametrize("write", [write_glm4moe, write_mimo2, write_qwen35])
@pytest.mark.parametrize("draft", ["mtp", "none"])
def test_texts_that_share_their_first_token_follow_each_other(
    write: Callable[[Path], Path], draft: str, tmp_path: Path
) -> None:
    """llama-cpp-python 2180: the second text failed where layers attend to a window.

    vLLM 54490: a prompt of which all was cached was continued otherwise than one that was new.
    """
    path = write(tmp_path / "tiny.gguf")
    with load(path=path, draft="none") as alone:
        wanted = [text_of(alone, prompt) for prompt in PROMPTS]
    assert len(set(wanted)) == len(PROMPTS)
    with load(path=path, draft=draft) as model:
        for i in (0, 1, 0, 2, 2, 1, 0, 0):
            assert text_of(model, PROMPTS[i], cache_prompt=True) == wanted[i]


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["lookup", "mtp"])
def test_a_schema_is_followed_where_drafts_repeat_what_it_forbids(embedded_model: Path, draft: str) -> None:
    """vLLM 40875: lookup took broken calls from the prompt into the answer."""
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["weather", "clock"]}, "count": {"type": "integer", "minimum": 0}},
        "required": ["name", "count"],
        "additionalProperties": False,
    }
    broken = '<tool_call>\n<<tool_call>{"name": "name": "weather", "count": count": 1}} {"name": "weather", '
    options: dict[str, Any] = {"json_schema": schema, "max_tokens": 60, "ignore_eos": False}
    with load(path=embedded_model, draft=draft, draft_max=4) as model, load(draft="none") as plain:
        for prompt in (broken, broken * 2, broken + STORY):
            text = text_of(model, prompt, **options)
            assert text == text_of(plain, prompt, **options)
            assert json.loads(text).keys() == {"name", "count"}
        assert model.stats.drafted
