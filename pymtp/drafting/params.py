"""What drafts, and how much: the user's parameters, checked."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pymtp.drafting.interface import Drafter
from pymtp.errors import InvalidParameter, require
from pymtp.text.files import StrPath

N_DRAFT_MAX = 32
"""The longest draft, as in vLLM."""
DRAFTS = ("auto", "mtp", "lookup", "none")
LOOKUPS = ("off", "self", "shared")


@dataclass(frozen=True)
class DraftParams:
    """What drafts, and how much."""

    draft: Literal["auto", "mtp", "lookup", "none"] | type[Drafter] = "auto"
    """auto: the model's MTP heads if it has usable ones; mtp: they must be usable; lookup: what followed the newest
    tokens where the sequence had them before, for any model; none: plain decoding; or a class of your own, which is
    made for the session (see Drafter)."""
    draft_model: StrPath | None = None
    """The file with the heads, if the model's own has none, or its assistant (Gemma-4); without it a fitting
    mtp-*.gguf next to the model is used."""
    draft_max: int | Literal["auto"] = "auto"
    """Tokens that a round drafts; 0: none; auto: adapts."""
    draft_lookup: Literal["off", "self", "shared"] = "self"
    """Whether lookup drafts as well where the length is auto: from a sequence's own prompt and output, or (shared) also
    from texts that have ended, of the same owner (see GenerationParams.draft_owner)."""
    draft_vocab: int | Sequence[int] | Literal["auto", "all"] = "auto"
    """Limits drafts, not the text, to that many first tokens of the vocabulary, or to those that are given, which is
    cheaper. auto: where that pays, to the first ones and those that texts have had recently. all: no limit."""
    mtp_context: Literal["auto", "chained", "target"] = "auto"
    """What several heads read: each the head before it ("chained", as they are trained; "auto" is the same), or all of
    them the trunk ("target", as in llama.cpp, which is cheaper and accepted less)."""
    draft_hints: bool = True
    """Where the length is auto: begin with what earlier processes have learned of this model on this machine, and keep
    what this one learns, in the user's cache folder."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.draft_max, int) and not isinstance(self.draft_max, bool)
        is_length = self.draft_max == "auto" or (is_number and 0 <= int(self.draft_max) <= N_DRAFT_MAX)
        require(is_length, "draft_max", f"auto, or between 0 and {N_DRAFT_MAX}", self.draft_max)
        is_drafter = self.draft in DRAFTS or hasattr(self.draft, "traits")
        require(is_drafter, "draft", f"{', '.join(DRAFTS)} or a Drafter with traits", self.draft)
        is_path = isinstance(self.draft_model, (str, os.PathLike, type(None)))
        require(is_path, "draft_model", "the path of a GGUF file", self.draft_model)
        require(self.draft_lookup in LOOKUPS, "draft_lookup", "off, self or shared", self.draft_lookup)
        contexts = ("auto", "chained", "target")
        require(self.mtp_context in contexts, "mtp_context", "auto, chained or target", self.mtp_context)
        require(isinstance(self.draft_hints, bool), "draft_hints", "True or False", self.draft_hints)

    @property
    def wants_heads(self) -> bool:
        """Whether the model's heads are to draft, if there are any."""
        return self.draft in ("auto", "mtp") and self.draft_max != 0


def parse_draft_vocab(vocab: int | Sequence[int] | Literal["auto", "all"], n_vocab: int) -> range | list[int] | None:
    """The tokens of `draft_vocab`, of a vocabulary of `n_vocab` tokens; a range: the first ones; None: all or auto.

    Raises InvalidParameter.
    """
    if isinstance(vocab, str) and vocab in ("auto", "all"):
        return None
    allowed = f"1 to {n_vocab} tokens of the vocabulary"
    if isinstance(vocab, int) and not isinstance(vocab, bool):
        require(1 <= vocab <= n_vocab, "draft_vocab", allowed, vocab)
        return range(vocab)
    tokens: list[Any] = list(vocab) if isinstance(vocab, Iterable) else [None]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise InvalidParameter("draft_vocab", "auto, all, a number, or token ids", value=vocab)
    require(tokens and min(tokens) >= 0 and max(tokens) < n_vocab, "draft_vocab", allowed)
    token, n_times = Counter(tokens).most_common(1)[0]
    require(n_times == 1, "draft_vocab", f"distinct token ids: {token} is given twice")
    return tokens
