"""The prompts, ready for every program: chat template applied, and tokens counted, by the model's own vocabulary.

Loads the vocabulary of a model, not its weights.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pymtp._library import llama_cpp
from pymtp.gguf_file import inspect_gguf
from pymtp.vocabulary import Vocabulary

from .case import Prompt


@contextmanager
def open_vocabulary(model: Path) -> Iterator[Vocabulary]:
    """The vocabulary of a GGUF."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    handle = llama_cpp.llama_model_load_from_file(os.fsencode(model), params)
    if not handle:
        raise SystemExit(f"{model}: llama.cpp cannot load its vocabulary")
    with closing(Vocabulary(handle, inspect_gguf(model).chat_template)) as vocabulary:
        yield vocabulary
    llama_cpp.llama_model_free(handle)


def read_prompts(
    path: Path, vocabulary: Vocabulary, n_per_category: int | None, categories: Sequence[str]
) -> list[Prompt]:
    """The first `n_per_category` prompts (None: all) of each of `categories` (none: of all) in a list.

    Each line of the list is {"category": ..., "prompt": ...} or {"category": ..., "messages": [...]}.
    """
    by_category: dict[str, list[Any]] = defaultdict(list)
    for line in path.read_text("utf-8").splitlines():
        item = json.loads(line)
        by_category[item["category"]].append(item)
    if unknown := sorted(set(categories) - set(by_category)):
        raise SystemExit(f"{path} has no prompts of {', '.join(unknown)}; it has {', '.join(by_category)}")
    return [
        Prompt(name, text := _text(item, vocabulary), vocabulary.tokenize(text))
        for name in categories or by_category
        for item in by_category[name][:n_per_category]
    ]


def _text(item: Any, vocabulary: Vocabulary) -> str:
    if "messages" not in item:
        return str(item["prompt"])
    if vocabulary.chat_template is None:
        return "\n".join(message["content"] for message in item["messages"])
    return vocabulary.apply_chat_template(item["messages"])
