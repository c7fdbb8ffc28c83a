"""Prompts as requests write them: text, token ids, both mixed, or a list of those.

Knows text and token ids; nothing of what is done with them.
"""

from __future__ import annotations

from typing import Any

from pymtp.loading.vocabulary import Vocabulary

from .errors import invalid, unsupported


def prompts_of(value: Any, vocabulary: Vocabulary) -> list[list[int]]:
    """The token ids of each prompt. Raises ApiError."""
    if value is None:
        raise invalid('"prompt" is required')
    if isinstance(value, list) and not all(isinstance(part, int) for part in value) and not _is_mixed(value):
        if not value:
            raise invalid('"prompt" must not be empty')
        return [_tokens(part, vocabulary) for part in value]
    return [_tokens(value, vocabulary)]


def mixed_tokens(value: Any, vocabulary: Vocabulary, *, add_special: bool, parse_special: bool = True) -> list[int]:
    """The token ids of a text, or of a list of texts and ids. Raises ApiError."""
    parts = value if isinstance(value, list) else [value]
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            is_start = add_special and i == 0
            tokens += vocabulary.tokenize(part, is_start=is_start, parse_special=parse_special)
        elif isinstance(part, int) and not isinstance(part, bool):
            if not 0 <= part < vocabulary.size:
                raise invalid(f"token ids in a prompt must be below {vocabulary.size}")
            tokens.append(part)
        else:
            raise invalid("a prompt must be a string, token ids, or a list of both")
    return tokens


def _is_mixed(value: list[Any]) -> bool:
    """Whether texts and ids are parts of one prompt: a list of texts alone are several prompts."""
    return any(isinstance(part, int) for part in value) and all(isinstance(part, (int, str)) for part in value)


def _tokens(value: Any, vocabulary: Vocabulary) -> list[int]:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise unsupported("multimodal_data is not supported: the model reads text only")
        value = value.get("prompt_string")
    tokens = mixed_tokens(value, vocabulary, add_special=True)
    if not tokens:
        raise invalid("the prompt is empty: it needs at least one token")
    return tokens
