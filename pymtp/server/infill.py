"""The prompt of llama-server's /infill, for the text between a beginning and an end.

Owns the form of the prompt: that of Qwen2.5-Coder (https://arxiv.org/pdf/2409.12186), as in llama-server. Knows token
ids; generates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.loading.vocabulary import Vocabulary

from .errors import invalid, unsupported
from .fields import InfillBody, InfillChunk
from .prompts import mixed_tokens


def infill_prompt(body: InfillBody, vocabulary: Vocabulary, n_max: int) -> list[int]:
    """The prompt for what belongs between the two, of at most `n_max` tokens: those next to the gap are kept.

    Three of four are for what is before the gap, if that needs as many; other files get what is left. Raises ApiError.
    """
    special = vocabulary.infill
    missing = [name for name in ("prefix", "suffix", "middle") if getattr(special, name) < 0]
    if missing:
        raise unsupported(f"Infill is not supported by this model: it has no token for {', '.join(missing)}")
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise invalid(f'"{name}" is required')
    begin = mixed_tokens(body.input_prefix, vocabulary, add_special=False, parse_special=False)
    end = mixed_tokens(body.input_suffix, vocabulary, add_special=False, parse_special=False)
    answer = vocabulary.tokenize(body.prompt or "", is_start=False)
    bos = [vocabulary.bos] if vocabulary.begins_with_bos and vocabulary.bos >= 0 else []
    n_left = max(n_max - len(bos) - len(answer) - 3, 0)
    begin = _last(begin, max(3 * n_left // 4, n_left - len(end)))
    end = end[: n_left - len(begin)]
    others = _last(_other_files(body.input_extra or (), vocabulary), n_left - len(begin) - len(end))
    return [*others, *bos, special.prefix, *begin, *answer, special.suffix, *end, special.middle]


def _other_files(chunks: Sequence[InfillChunk], vocabulary: Vocabulary) -> list[int]:
    """Pieces of other files, each after its name, and the name of the one with the gap."""
    special = vocabulary.infill

    def tokens(text: str) -> list[int]:
        return vocabulary.tokenize(text, is_start=False, parse_special=False)

    found = [special.repository, *tokens("myproject\n")] if special.repository >= 0 else []
    for chunk in chunks:
        head = [special.file, *tokens(f"{chunk.filename}\n")] if special.file >= 0 else tokens(SEPARATOR)
        found += [*head, *tokens(chunk.text)]
    return [*found, special.file, *tokens("filename\n")] if special.file >= 0 else found


def _last(tokens: list[int], n: int) -> list[int]:
    return tokens[max(len(tokens) - n, 0) :]


SEPARATOR = "\n\n--- snippet ---\n\n"
"""Before a piece of another file, where the model has no token for that."""
