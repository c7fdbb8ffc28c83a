"""A chat with the embedded model: what it keeps, what it computes again, and what it drops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from families import FAMILIES
from machine import needs_exact_texts, needs_no_gpu
from pymtp import Answer, Conversation, Model, SamplingParams
from pymtp.errors import ContextFull, InvalidParameter

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0)
QUESTIONS = ["Hello, who are you?", "Tell me about the sea.", "What is 12 plus 30?"]
N_TOKENS = 24
"""Of an answer."""


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    # passes of few rows have the arithmetic of single rows (x86), so that what was kept is what would be computed
    with Model(n_ctx=512, n_ubatch=32, n_threads=1, draft_max=3) as model:
        yield model


@pytest.fixture(scope="module")
def narrow() -> Iterator[Model]:
    with Model(n_ctx=200, n_threads=1, draft_max=3) as model:
        yield model


def ask(conversation: Conversation, text: str, max_tokens: int = N_TOKENS) -> Answer:
    """Ask for a long answer: the model would often stop after a word."""
    answer = conversation.ask(text, sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True)
    assert "".join(answer) == answer.text == conversation.messages[-1]["content"]
    return answer


def prompt_of(conversation: Conversation, n_messages: int) -> str:
    return conversation.model.chat_prompt([dict(m) for m in conversation.messages[:n_messages]])  # type: ignore[misc]


def test_only_new_tokens_are_computed(model: Model) -> None:
    model.slots.empty()  # of what other tests left there
    conversation = Conversation(model)
    first, second, third = (ask(conversation, question) for question in QUESTIONS)
    assert first.n_cached == 0
    for before, answer in ((first, second), (second, third)):
        # the last token of an answer is never decoded, the one before perhaps not for the heads
        assert before.n_prompt + N_TOKENS - 2 <= answer.n_cached <= before.n_prompt + N_TOKENS - 1
        assert answer.stats.prompt_tokens == answer.n_prompt - answer.n_cached < 30


def test_a_cached_prompt_does_not_change_the_answer(model: Model) -> None:
    conversation = Conversation(model)
    for question in QUESTIONS:
        answer = ask(conversation, question)
    assert answer.n_cached > 0
    tokens = list(answer._prompt.tokens)
    alone = model.generate(tokens, sampling=GREEDY, max_tokens=N_TOKENS, ignore_eos=True)
    assert "".join(alone) == answer.text


def test_the_prompt_is_what_the_chat_template_makes(model: Model) -> None:
    conversation = Conversation(model, system="Be brief.")
    for question in QUESTIONS:
        answer = ask(conversation, question)
    assert answer._prompt.text == model.chat_prompt(
        [{"role": "system", "content": "Be brief."}, *(dict(m) for m in conversation.messages[:-1])]  # type: ignore[misc]
    )
    pieces = b"".join(map(model.vocabulary.piece, answer._prompt.tokens)).decode()
    without_control_tokens = answer._prompt.text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert pieces == without_control_tokens


def test_an_answer_can_be_regenerated(model: Model) -> None:
    conversation = Conversation(model)
    ask(conversation, QUESTIONS[0])
    answer = ask(conversation, QUESTIONS[1])
    again = conversation.regenerate(sampling=GREEDY, max_tokens=N_TOKENS, ignore_eos=True)
    assert "".join(again) == answer.text
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"] * 2
    other = conversation.regenerate(sampling=SamplingParams(temperature=2, seed=3), max_tokens=N_TOKENS)
    assert "".join(other) != answer.text
    with pytest.raises(InvalidParameter, match="no message to answer again"):
        Conversation(model).regenerate()


@needs_no_gpu
def test_an_earlier_message_can_be_changed_and_an_earlier_answer_made_again(model: Model) -> None:
    conversation = Conversation(model)
    first, second, third = (ask(conversation, question) for question in QUESTIONS)
    options: dict[str, Any] = {"sampling": GREEDY, "max_tokens": N_TOKENS, "ignore_eos": True}
    again = conversation.regenerate(turn=1, **options)
    assert "".join(again) == second.text
    assert [m["content"] for m in conversation.messages[::2]] == QUESTIONS[:2]
    changed = conversation.edit(0, QUESTIONS[2], **options)
    assert "".join(changed) == ask(Conversation(model), QUESTIONS[2]).text
    assert [m["content"] for m in conversation.messages] == [QUESTIONS[2], changed.text]
    with pytest.raises(InvalidParameter, match="turn must be between 0 and 0, or -1 for the last, not 1"):
        conversation.edit(1, "Hello")


def test_a_change_that_does_not_fit_changes_nothing(narrow: Model) -> None:
    conversation = Conversation(narrow)
    for question in QUESTIONS:
        ask(conversation, question, 60)
    before, n_dropped = list(conversation.messages), conversation.n_dropped
    assert n_dropped > 0
    with pytest.raises(ContextFull):
        conversation.edit(0, "word " * 300)
    assert (conversation.messages, conversation.n_dropped) == (before, n_dropped)
    conversation.edit(1, QUESTIONS[1], sampling=GREEDY, max_tokens=10).close()
    assert (len(conversation.messages), conversation.n_dropped) == (4, 0)  # there is room again


def test_a_turn_can_be_undone(model: Model) -> None:
    conversation = Conversation(model)
    first = ask(conversation, QUESTIONS[0])
    second = ask(conversation, QUESTIONS[1])
    assert conversation.undo()
    assert len(conversation.messages) == 2
    assert ask(conversation, QUESTIONS[1]).text == second.text
    assert conversation.undo() and conversation.undo() and not conversation.undo()
    assert ask(conversation, QUESTIONS[0]).text == first.text


def test_an_interrupted_answer_stays_in_the_conversation(model: Model) -> None:
    conversation = Conversation(model)
    answer = conversation.ask(QUESTIONS[0], sampling=GREEDY, ignore_eos=True)
    for _ in range(10):
        next(answer)
    answer.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": answer.text, "finish_reason": None}
    assert next(answer, None) is None
    assert ask(conversation, QUESTIONS[1]).n_cached > answer.n_prompt


def test_a_stop_string_is_no_part_of_later_prompts(model: Model) -> None:
    conversation = Conversation(model)
    stop = ask(conversation, QUESTIONS[1]).text[10:14]
    assert "".join(conversation.regenerate(sampling=GREEDY, stop=[stop])) == conversation.messages[1]["content"]
    assert conversation.messages[1]["finish_reason"] == "stop"
    answer = ask(conversation, QUESTIONS[2])
    assert model.detokenize(answer._prompt.tokens, special=True) == answer._prompt.text


def test_a_new_question_ends_the_unfinished_answer(model: Model) -> None:
    conversation = Conversation(model)
    answer = conversation.ask(QUESTIONS[0], sampling=GREEDY, ignore_eos=True)
    next(answer)
    ask(conversation, QUESTIONS[1])
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"] * 2
    assert conversation.messages[1]["content"] == answer.text


def test_other_generations_in_between_cost_only_the_cache(model: Model) -> None:
    undisturbed = Conversation(model)
    expected = [ask(undisturbed, question).text for question in QUESTIONS]
    conversation = Conversation(model)
    for question, text in zip(QUESTIONS, expected, strict=True):
        "".join(model.generate("Something else entirely", max_tokens=20))
        answer = ask(conversation, question)
        assert (answer.text, answer.n_cached) == (text, 0)


@needs_exact_texts
def test_two_conversations_do_not_mix(model: Model) -> None:
    alone = Conversation(model)
    expected = [ask(alone, question).text for question in QUESTIONS]
    one, other = Conversation(model), Conversation(model, system="Speak of fish.")
    for question, text in zip(QUESTIONS, expected, strict=True):
        ask(other, question)
        assert ask(one, question).text == text


def test_the_oldest_turns_are_dropped_when_the_context_is_full(narrow: Model) -> None:
    conversation = Conversation(narrow)
    for i in range(6):
        answer = ask(conversation, f"{QUESTIONS[i % 2]} {i}", 60)
        assert answer.finish_reason == "length"
    assert len(conversation.messages) == 12
    assert 0 < conversation.n_dropped < 12
    assert conversation.n_dropped % 2 == 0
    assert answer._prompt.text == narrow.chat_prompt(
        [dict(m) for m in conversation.messages[conversation.n_dropped : -1]]  # type: ignore[misc]
    )
    assert answer.n_prompt + 50 <= 200


def test_an_answer_that_fills_the_context_continues_without_the_oldest_turns(narrow: Model) -> None:
    conversation = Conversation(narrow)
    for question in QUESTIONS[:2]:
        ask(conversation, question, 40)
    answer = conversation.ask(QUESTIONS[2], sampling=GREEDY, ignore_eos=True)
    assert conversation.n_dropped == 0
    text = "".join(answer)
    assert conversation.n_dropped == 4
    # all of the context but the prompt is the answer's now
    assert answer.stats.generated_tokens == 200 - answer.n_prompt + 1
    assert answer.finish_reason == "context"
    assert text == answer.text == conversation.messages[-1]["content"]


def test_an_answer_with_a_grammar_ends_where_the_context_is_full(narrow: Model) -> None:
    conversation = Conversation(narrow)
    for question in QUESTIONS[:2]:
        ask(conversation, question, 40)
    text = "".join(conversation.ask(QUESTIONS[2], sampling=GREEDY, grammar='root ::= "begin" " on"*'))
    assert conversation.messages[-1]["finish_reason"] == "context"
    assert text.count("begin") == 1  # a grammar that begins again has it twice


def test_a_message_longer_than_the_context_changes_nothing(narrow: Model) -> None:
    conversation = Conversation(narrow)
    ask(conversation, QUESTIONS[0])
    before = list(conversation.messages)
    with pytest.raises(ContextFull, match="the last message makes a prompt of .* tokens, the context has 200"):
        conversation.ask("word " * 300)
    assert (conversation.messages, conversation.n_dropped) == (before, 0)
    ask(conversation, QUESTIONS[1])


def test_a_long_conversation_is_rendered_a_few_times_to_find_what_it_has_room_for(
    narrow: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, n_rendered, render = Conversation(narrow), 0, narrow.render

    def counted(*args: Any) -> Any:
        nonlocal n_rendered
        n_rendered += 1
        return render(*args)

    monkeypatch.setattr(narrow, "render", counted)
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    conversation.restore(turn * 100)
    answer = ask(conversation, "c")
    assert n_rendered < 12
    n_more = len(narrow.tokenize(prompt_of(conversation, 4), is_start=False)) // 2
    assert answer.n_prompt + N_TOKENS <= narrow.n_ctx < answer.n_prompt + N_TOKENS + n_more


def test_the_draft_length_can_be_set_for_each_answer(model: Model) -> None:
    conversation = Conversation(model)
    drafted = []
    for draft_max in (0, 3, 0, 1, None):
        answer = conversation.ask(QUESTIONS[1], sampling=GREEDY, max_tokens=30, ignore_eos=True, draft_max=draft_max)
        "".join(answer)
        drafted.append(len(answer.stats.acceptance_per_position))
    assert drafted == [0, 3, 0, 1, 3]


def test_messages_that_do_not_alternate_are_refused(model: Model) -> None:
    conversation = Conversation(model)
    for roles in (["user"], ["assistant", "user"], ["user", "user"], ["system", "assistant"]):
        with pytest.raises(InvalidParameter, match="pairs of user and assistant"):
            conversation.restore([{"role": role, "content": ""} for role in roles])
    conversation.restore([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert ask(conversation, "c").n_prompt > 10


def test_a_restored_message_without_content_is_empty_and_one_that_is_not_text_is_refused(model: Model) -> None:
    conversation = Conversation(model)
    conversation.restore([{"role": "user", "content": None}, {"role": "assistant"}])
    assert [message["content"] for message in conversation.messages] == ["", ""]
    for content in (5, ["a"], [{"type": "text", "text": "a"}]):
        with pytest.raises(InvalidParameter, match="messages must be of a text each"):
            conversation.restore([{"role": "user", "content": content}, {"role": "assistant", "content": "b"}])
    assert len(conversation.messages) == 2


def test_a_bos_from_the_template_is_not_added_twice(embedded_model: Path, tmp_path: Path) -> None:
    data = embedded_model.read_bytes()
    key = b"tokenizer.ggml.add_bos_token" + (7).to_bytes(4, "little")
    old = b"{% for m in messages %}<|im_start|>{{ m['role'] }}"
    new = b"{{bos_token}}{%for m in messages%}<|im_start|>user"
    assert data.count(key + b"\0") == data.count(old) == 1
    assert len(old) == len(new)
    path = tmp_path / "bos.gguf"
    path.write_bytes(data.replace(key + b"\0", key + b"\1").replace(old, new))
    with Model(path, n_ctx=64, n_threads=1) as model:
        tokens = model.vocabulary.tokenize(model.chat_prompt([{"role": "user", "content": "hi"}]))
    assert tokens[:2] == [0, 1]


def test_a_text_that_the_vocabulary_cannot_spell_is_named_as_that(tmp_path: Path) -> None:
    path = FAMILIES["glm4moe"].write(tmp_path / "tiny.gguf")
    with Model(path, n_ctx=64, n_threads=1) as model:
        with pytest.raises(InvalidParameter, match="prompt must be of characters that the vocabulary has"):
            model.generate("hi")
        with pytest.raises(InvalidParameter, match="prompt must be at least one token long"):
            model.generate("")


@needs_exact_texts
@pytest.mark.parametrize("name", ["glm4moe", "step35", "qwen35", "qwen3next", "deepseek32", "deepseek4"])
@pytest.mark.parametrize("draft_max", [0, 3])
def test_every_kind_of_memory_continues_a_cached_prompt(name: str, draft_max: int, tmp_path: Path) -> None:
    path = FAMILIES[name].write(tmp_path / "tiny.gguf")
    options = {"sampling": GREEDY, "ignore_eos": True, "draft_max": draft_max}
    with Model(path, n_ctx=256, n_ubatch=32, n_threads=1, type_k="f32", type_v="f32") as model:
        first = model.generate(range(40), max_tokens=20, cache_prompt=True, **options)  # type: ignore[arg-type]
        "".join(first)
        prompt = [*range(40), *first.tokens, *range(50, 70)]
        second = model.generate(prompt, max_tokens=20, cache_prompt=True, **options)  # type: ignore[arg-type]
        "".join(second)
        assert second.n_cached == 40 + len(first.tokens) - 1
        alone = model.generate(prompt, max_tokens=20, **options)  # type: ignore[arg-type]
        "".join(alone)
    assert second.tokens == alone.tokens
