"""A GGUF model that generates text: the package's front door.

Owns the loaded model and the session in which it generates. Everything that can be asked of a file
without loading it is in `gguf_file`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal

from pymtp import _log, embedded
from pymtp._library import llama_cpp
from pymtp.drafting import Drafter, MtpDrafter, NoDrafter
from pymtp.errors import ContextFull, InvalidParameter, UnsupportedModel
from pymtp.generation import FinishReason, TokenLoop
from pymtp.gguf_file import inspect_gguf, load_failure
from pymtp.sampling import Sampler, SamplingParams
from pymtp.session import ContextParams, Session
from pymtp.statistics import Stats
from pymtp.text import Utf8Stream
from pymtp.vocabulary import Vocabulary

DEFAULT_N_CTX = 4096

DRAFT_MAX_LIMIT = 32
"""The longest draft, as in vLLM."""


class Model:
    """A loaded GGUF model. A context manager: leaving it frees everything.

    `path` None takes the embedded model. `draft` "auto" drafts with the model's MTP heads if it has
    usable ones, "mtp" insists on it, "none" decodes plainly; a round drafts `draft_max` tokens (0:
    none). `n_ctx` None takes the model's training context, but at most 4096 tokens. `n_gpu_layers`
    -1 puts all layers on the GPU, if there is one. The other parameters are those of ContextParams.

    Raises ModelError for a file that cannot be used, UnsupportedModel if it cannot draft and must,
    InvalidParameter for a value out of range, BackendError if memory runs out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        n_ctx: int | None = None,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
        flash_attn: Literal["auto", "on", "off"] = "auto",
        type_k: str = "f16",
        type_v: str = "f16",
        draft: Literal["auto", "mtp", "none"] = "auto",
        draft_max: int = 3,
    ) -> None:
        context = ContextParams(n_ctx or 0, n_batch, n_ubatch, n_threads, flash_attn, type_k, type_v)
        if not 0 <= draft_max <= DRAFT_MAX_LIMIT:
            raise InvalidParameter("draft_max", f"between 0 and {DRAFT_MAX_LIMIT}", value=draft_max)
        if draft not in ("auto", "mtp", "none"):
            raise InvalidParameter("draft", "auto, mtp or none", value=draft)

        self.info = inspect_gguf(embedded.model_path() if path is None else path)
        """What the file says about itself."""
        if draft == "mtp" and not self.info.has_heads:
            raise UnsupportedModel(f"{self.info.path} has no usable MTP head ({_heads(self)}); use --draft none")

        n_draft_max = draft_max if draft != "none" and self.info.has_heads else 0
        if n_ctx is None:
            context = replace(context, n_ctx=min(self.info.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX))
        self._generation: Generation | None = None
        loaded = _load(self, n_gpu_layers, load_mtp=n_draft_max > 0)
        try:
            self.session = Session(loaded, context, n_draft_max=n_draft_max)
            """The session in which the model generates."""
        except BaseException:
            llama_cpp.llama_model_free(loaded)
            raise
        self._free = weakref.finalize(self, _free, self.session, loaded)
        self.vocabulary = Vocabulary(loaded, self.info.chat_template)
        self.draft_note = self._note(draft, n_draft_max)
        """One line that says why a model with MTP heads decodes plainly, or None."""
        self.stats = Stats()
        """Of the latest generation."""

    @property
    def draft_max(self) -> int:
        """Tokens that a round drafts; 0 if the model decodes plainly."""
        return self.session.n_draft_max

    @property
    def has_chat_template(self) -> bool:
        """Whether the GGUF brings a chat template."""
        return self.vocabulary.chat_template is not None

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render `messages` ({"role": ..., "content": ...}) with the model's chat template, ready for the answer."""
        return self.vocabulary.apply_chat_template(messages)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int = -1,
        ignore_eos: bool = False,
    ) -> Generation:
        """Continue `prompt` (text, or token ids); iterate over the result for the text.

        At most `max_tokens` tokens; -1 goes on until the model ends its text or the context is full.
        `ignore_eos` bars the tokens that end a text, for drafts and target alike. Raises ContextFull
        if the prompt does not fit.
        """
        if max_tokens < -1:
            raise InvalidParameter("max_tokens", "-1 (no limit) or more", value=max_tokens)
        tokens = self.vocabulary.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise InvalidParameter("prompt", "at least one token long")
        if len(tokens) >= self.session.n_ctx:
            raise ContextFull(
                f"the prompt has {len(tokens)} tokens, the context only {self.session.n_ctx}: "
                "shorten it or raise the context size (-c)"
            )
        if self._generation is not None:
            self._generation.close()
        generation = Generation(self, tokens, sampling or SamplingParams(), max_tokens, ignore_eos)
        self._generation = generation
        self.stats = generation.stats
        return generation

    def close(self) -> None:
        """Free the session and the weights; closing twice is harmless."""
        if self._generation is not None:
            self._generation.close()
        self.vocabulary.close()
        self._free()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, draft: str, n_draft_max: int) -> str | None:
        if n_draft_max > 0 and self.session.n_draft_max == 0:
            reason = f"the memory of {self.info.architecture} models is not shared with MTP heads yet"
            if draft == "mtp":
                self.close()
                raise UnsupportedModel(f"{self.info.path}: {reason}; use --draft none")
            return f"{reason}: plain decoding"
        if draft == "auto" and self.info.n_heads_declared > 0 and not self.info.has_heads:
            return f"{self.info.path} has no usable MTP head ({_heads(self)}): plain decoding"
        return None


class Generation:
    """One answer: an iterator over its text, in the pieces in which it is made.

    A new generation of the same model ends the one before.
    """

    def __init__(
        self, model: Model, prompt: list[int], sampling: SamplingParams, max_tokens: int, ignore_eos: bool
    ) -> None:
        vocabulary, session = model.vocabulary, model.session
        eog = vocabulary.end_of_generation
        barred = sorted(eog) if ignore_eos else []
        sampler = Sampler(sampling, barred)
        drafter: Drafter = NoDrafter()
        if session.n_draft_max > 0:
            session.bar(barred)
            n_heads = min(model.info.n_heads, session.n_draft_max)
            drafter = MtpDrafter(session, sampler, n_heads, fused=n_heads == 1)
        loop = TokenLoop(session, drafter, sampler, eog, session.n_draft_max, max_tokens)

        self.stats = Stats()
        """Counts and times, up to date between pieces."""
        self.tokens: list[int] = []
        """Token ids made so far; the one that ended the text, if any, is the last."""
        self.finish_reason: FinishReason | None = None
        """Why the text ended, once it has."""
        session.truncate(0)
        self._pieces = self._run(loop, prompt, vocabulary)

    def _run(self, loop: TokenLoop, prompt: list[int], vocabulary: Vocabulary) -> Iterator[str]:
        text = Utf8Stream()
        steps = loop.run(prompt, self.stats)
        while True:
            try:
                tokens = next(steps)
            except StopIteration as end:
                self.finish_reason = end.value
                break
            self.tokens += tokens
            if piece := text.push(b"".join(map(vocabulary.piece, tokens))):
                yield piece
        if piece := text.flush():
            yield piece

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the generation early."""
        self._pieces.close()  # type: ignore[attr-defined]


def _load(model: Model, n_gpu_layers: int, *, load_mtp: bool) -> object:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers
    params.load_mtp = load_mtp
    llama_cpp.llama_backend_init()
    _log.take_recent()
    loaded = llama_cpp.llama_model_load_from_file(os.fsencode(model.info.path), params)
    if not loaded:
        raise load_failure(model.info, _log.take_recent())
    return loaded


def _free(session: Session, loaded: object) -> None:
    session.close()
    llama_cpp.llama_model_free(loaded)


def _heads(model: Model) -> str:
    if model.info.n_heads_declared:
        return f"its metadata names {model.info.n_heads_declared}, it holds the tensors of {model.info.n_heads}"
    return "nextn_predict_layers = 0"
