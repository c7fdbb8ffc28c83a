"""Prompts to measure with: from a file, a few built-in ones, or random tokens.

Owns the texts and cuts them to length. Loads the vocabulary of a model, not its weights.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

import msgspec

from pymtp.benchmark.experiment import Workload
from pymtp.binding.library import ffi, lib
from pymtp.chat.template import ChatTemplate
from pymtp.errors import PymtpError, explained
from pymtp.gguf.facts import model_facts
from pymtp.loader import load_native
from pymtp.loading.vocabulary import Vocabulary
from pymtp.text.files import read_text


@dataclass(frozen=True)
class Text:
    """A prompt before tokenisation: a text, or the messages of a chat."""

    category: str
    prompt: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    answer: str = ""
    """If given, what is emitted instead of the model's own text. See acceptance.Scripted."""


@dataclass(frozen=True)
class Prompt:
    """A prompt for the model, with the chat template applied, and its tokens."""

    category: str
    text: str
    tokens: list[int]
    answer: list[int] = field(default_factory=list)
    """If given, what is emitted instead of the model's own text."""


_QUESTIONS = {
    "code": "Write a Python class `Matrix` with methods for addition, multiplication and transposition, each with a "
    "docstring and type hints, and a short example at the end.",
    "prose": "Tell a story about an old lighthouse keeper who finds a letter in a bottle after a storm, and decides to "
    "look for the one who wrote it.",
    "chat": "I have a free weekend and it will probably rain. What could I do with two children at home?",
    "reasoning": "A train leaves at 9:40 and travels 210 km at 70 km/h. A bus leaves the same place at 9:10 and "
    "travels at 60 km/h. Which of them arrives first, and by how many minutes? Think step by step.",
}
BUILT_IN = tuple(Text(category, messages=({"role": "user", "content": text},)) for category, text in _QUESTIONS.items())
"""One of each kind of text; acceptance differs between them."""


def read_texts(path: Path, *, with_answers: bool = False) -> list[Text]:
    """The prompts in a file, {"category": ..., "prompt": ...} or {"category": ..., "messages": [...]} on each line.

    `with_answers`: each line has an "answer" as well, which is left out else. Raises PymtpError.
    """
    with explained(f"read the prompts in {path}", "check the path"):
        lines = read_text(path).splitlines()  # once: it may be a pipe
    found = [_text(line, f"{path}, line {n}", with_answers) for n, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise PymtpError(f"{path} is empty; write {_FORM} on each line")
    return found if with_answers else [replace(text, answer="") for text in found]


def _text(line: str, place: str, needs_answer: bool) -> Text:
    try:
        text = msgspec.json.decode(line, type=Text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PymtpError(f"{place} is no prompt ({error}); write {_FORM}") from error
    if needs_answer and not text.answer:
        raise PymtpError(f'{place} has no answer; add "answer": "..."')
    if text.prompt:
        return replace(text, messages=())
    if not text.messages or not all(message.keys() >= {"role", "content"} for message in text.messages):
        raise PymtpError(f"{place} has no prompt; write {_FORM}")
    return text


_FORM = '{"category": "code", "prompt": "..."}, or "messages": [{"role": ..., "content": ...}] in the prompt\'s place'


def tokenized(text: Text, vocabulary: Vocabulary) -> Prompt:
    """The prompt for `text`. Without a chat template, messages are joined by newlines.

    Raises PymtpError for an answer that takes no round, of which there would be no speed.
    """
    written = text.prompt
    if text.messages and vocabulary.chat_template is not None:
        written = ChatTemplate(vocabulary).render(text.messages).text
    elif text.messages:
        written = "\n".join(message["content"] for message in text.messages)
    answer = vocabulary.tokenize(text.answer, is_start=False) if text.answer else []
    if len(answer) == 1:  # it comes with the prompt
        raise PymtpError(f"the answer {text.answer!r} is a single token, which takes no round; make it longer")
    return Prompt(text.category, written, vocabulary.tokenize(written), answer)


def prompts_for(test: Workload, texts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a test: those of `texts`, repeated or cut to the test's length."""
    if not test.n_gen:
        everything = [token for text in texts for token in text.tokens]
        return [Prompt("", "", _filled(everything, test.n_prompt))]
    if not test.n_prompt:
        return list(texts)
    # the end is what the model answers; repetitions before it only make the prompt longer
    return [replace(text, text="", tokens=_filled(text.tokens[::-1], test.n_prompt)[::-1]) for text in texts]


def prefix_for(test: Workload, texts: Sequence[Prompt]) -> list[int]:
    """The tokens in the cache before a test begins."""
    return _filled([token for text in texts for token in text.tokens], test.n_depth)


def synthetic(n_vocab: int, seed: int = 1) -> list[Prompt]:
    """Four prompts of 64 random tokens."""
    rng = random.Random(seed)
    return [Prompt("synthetic", "", [rng.randrange(n_vocab) for _ in range(64)]) for _ in range(4)]


def open_vocabulary(model: Path) -> AbstractContextManager[Vocabulary]:
    """The vocabulary of a GGUF, which is freed after leaving the context. Raises ModelError."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    info = model_facts(model)
    handle = ffi.gc(load_native(info, params), lib.llama_model_free)
    return closing(Vocabulary(handle, info.chat_template))


def _filled(tokens: Sequence[int], n: int) -> list[int]:
    return list(islice(cycle(tokens), n))
