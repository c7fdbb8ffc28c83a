"""A model's vocabulary: text to token ids and back, its special tokens.

Knows text and token ids; never logits. A thin layer over llama.cpp.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from numbers import Integral
from typing import Any, NamedTuple

from pymtp.binding.library import check, ffi, lib, model_pointer, text_of
from pymtp.errors import Closed, InvalidParameter, require
from pymtp.text.thinking import tags_of


class InfillTokens(NamedTuple):
    """Tokens around the parts of a prompt for a text with a gap; -1: the model has no such token."""

    prefix: int
    suffix: int
    middle: int
    repository: int
    file: int


class Vocabulary:
    def __init__(self, model: object, chat_template: str | None) -> None:
        pointer = model_pointer(model)
        # a call that is under way holds what it was given, and so the model, which is freed after the last of them
        handles = [ffi.gc(each, lambda _: model) for each in (lib.llama_model_get_vocab(pointer), pointer)]
        self._handles: list[Any] | None = handles
        self.size: int = lib.llama_vocab_n_tokens(self.native)
        self.chat_template = chat_template
        self.bos: int = lib.llama_vocab_bos(self.native)
        """The id of the token that begins a text; -1 if there is none."""
        self.bos_text = self._text(self.bos)
        """The token that begins a text; empty if there is none."""
        self.eos_text = self._text(lib.llama_vocab_eos(self.native))
        """The token that ends a text; empty if there is none."""
        self.begins_with_bos: bool = lib.llama_vocab_get_add_bos(self.native)
        """Whether a text begins with a token of its own."""
        parts = ("pre", "suf", "mid", "rep", "sep")
        self.infill = InfillTokens(*(getattr(lib, f"llama_vocab_fim_{part}")(self.native) for part in parts))
        n = ffi.new("int32_t *")
        suppressed = lib.llama_vocab_get_suppress_tokens(self.native, n)
        self.suppressed: list[int] = ffi.unpack(suppressed, n[0]) if n[0] else []
        """Tokens that must never be sampled, according to the model."""
        self.end_of_generation = frozenset(filter(partial(lib.llama_vocab_is_eog, self.native), range(self.size)))
        self.piece = lru_cache(maxsize=None)(partial(self._bytes, special=False))
        """The bytes that a token adds to the text; special tokens add none."""
        self.special_piece = lru_cache(maxsize=None)(partial(self._bytes, special=True))
        """The bytes of a token, also if it is a special one."""

    @property
    def native(self) -> Any:
        """llama.cpp's handle. Raises Closed after `close`."""
        return self._opened()[0]

    @property
    def native_model(self) -> Any:
        """The handle of its model, for pymtp's own library. Raises Closed after `close`."""
        return self._opened()[1]

    def close(self) -> None:
        """Let go of the model; calls of other threads that are under way keep it until they return."""
        self._handles = None

    def _opened(self) -> list[Any]:
        if (handles := self._handles) is None:
            raise Closed("the model is closed")
        return handles

    def tokenize(self, text: str, *, is_start: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens in it are recognised, unless `parse_special` is off.

        `is_start`: `text` starts a sequence, so a BOS comes first if the model uses one.
        """
        try:
            data = text.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise InvalidParameter("text", f"a string that can be encoded as UTF-8 ({error})") from None
        n_max = len(data) + 2
        n = ffi.new("int32_t *")
        while True:
            tokens = ffi.new("int32_t[]", n_max)
            check(lib.pymtp_tokenize(self.native, data, len(data), is_start, parse_special, n_max, tokens, n))
            if n[0] <= n_max:
                return list(ffi.unpack(tokens, n[0])) if n[0] else []
            n_max = n[0]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of `tokens`; `special` shows special tokens as well. Raises InvalidParameter for an unknown id."""
        if not isinstance(tokens, Iterable) or not all(isinstance(token, Integral) for token in tokens):
            raise InvalidParameter("tokens", "a list of token ids", value=tokens)
        if any(not 0 <= token < self.size for token in tokens):
            raise InvalidParameter("tokens", f"token ids below {self.size}", value=list(tokens)[:10])
        piece = self.special_piece if special else self.piece
        return b"".join(map(piece, tokens)).decode("utf-8", errors="replace")

    @cached_property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The tags around the model's thinking; None if it has none."""
        return tags_of({self._text(token): token for token in range(self.size)}, self.chat_template)

    def piece_with(self, special: tuple[str, ...]) -> Callable[[int], bytes]:
        """A function like `piece`, for which tokens with these texts are part of the text as well."""
        texts = (self.tokenize(text, is_start=False) for text in special)
        tokens = {tokens[0] for tokens in texts if len(tokens) == 1}
        if not tokens:
            return self.piece
        return lambda token: self.special_piece(token) if token in tokens else self.piece(token)

    def _bytes(self, token: int, *, special: bool) -> bytes:
        require(0 <= token < self.size, "token", f"below {self.size}", token)
        n_max, n = 64, ffi.new("int32_t *")
        while True:
            buffer = ffi.new("char[]", n_max)
            check(lib.pymtp_token_bytes(self.native, token, special, n_max, buffer, n))
            if n[0] <= n_max:
                return bytes(ffi.buffer(buffer, n[0]))
            n_max = n[0]

    def _text(self, token: int) -> str:
        native = self.native  # keeps the model, whose text this is
        return text_of(lib.llama_vocab_get_text(native, token)) if 0 <= token < self.size else ""
