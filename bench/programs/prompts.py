"""The prompts for all programs: rendered with the model's chat template, and tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pymtp.benchmark.prompts import Prompt, read_texts, tokenized
from pymtp.loading.vocabulary import Vocabulary


def read_prompts(
    path: Path, vocabulary: Vocabulary, n_per_category: int | None, categories: Sequence[str]
) -> list[Prompt]:
    """The first `n_per_category` prompts (None: all) of each of `categories` (none: of all) in a list."""
    texts = read_texts(path)
    known = list(dict.fromkeys(text.category for text in texts))
    if unknown := sorted(set(categories) - set(known)):
        raise SystemExit(f"{path} has no prompts of {', '.join(unknown)}; it has {', '.join(known)}")
    return [
        tokenized(text, vocabulary)
        for name in categories or known
        for text in [text for text in texts if text.category == name][:n_per_category]
    ]
