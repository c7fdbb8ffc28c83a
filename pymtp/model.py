"""A GGUF model that generates text: the package's front door.

Owns the loaded model and the session in which it generates. Everything that can be asked of a file
without loading it is in `gguf_file`.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Literal

from pymtp import _log, embedded
from pymtp._library import abi_id, ffi, lib, llama_cpp
from pymtp.batch import Batch, Generation, OnPrompt
from pymtp.context import ContextParams
from pymtp.cost_record import CostRecord
from pymtp.draft_length import AUTO_DRAFT_MAX, N_DRAFT_MAX
from pymtp.draft_vocab import AutoDraftVocab, read_draft_vocab
from pymtp.drafting import Drafter, MtpDrafter, NoDrafter
from pymtp.errors import InvalidParameter, StateError, UnsupportedModel
from pymtp.experience import Experience
from pymtp.gguf_file import (
    GgufInfo,
    find_draft_model,
    fingerprint,
    gguf_facts,
    inspect_gguf,
    load_failure,
    output_rows,
)
from pymtp.record import Record
from pymtp.request import GenerationParams
from pymtp.session import Session, draft_obstacle
from pymtp.statistics import Stats
from pymtp.vocabulary import Vocabulary


class Model:
    """A loaded GGUF model. A context manager: leaving it frees everything.

    `path` None takes the embedded model. `draft` "auto" drafts with the model's MTP heads if it has
    usable ones, "mtp" insists on it, "none" decodes plainly, a class of your own is made for the
    session (see drafting.Drafter); a round drafts `draft_max` tokens (0: none; "auto": as many as pay).
    `draft_model` names the file with the heads of a model that has them apart, or its assistant (Gemma-4);
    without it, a file mtp-*.gguf beside the model is taken if it fits (`info.draft_model` says which). `draft_vocab`
    limits drafts, not the text, to that many first tokens of the vocabulary ("auto": to as many as
    pay), or to those that are given or that a file lists, which makes drafting cheaper. `mtp_context`
    says what several heads read: each the head before it ("chained", as they are trained; "auto" is the
    same), or all of them the trunk ("target", as llama.cpp does, which is cheaper and accepted less).
    `n_seq_max` texts can be generated together, each in a context of `n_ctx` tokens; None takes the
    model's training context, but at most 4096. `n_gpu_layers` -1 puts all layers on the GPU, if there
    is one. `on_load` is called while the weights are read, with the share that is there, 0 to 1; what
    it raises ends the loading. The other parameters are those of ContextParams.

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
        n_seq_max: int = 1,
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
        flash_attn: Literal["auto", "on", "off"] = "auto",
        type_k: str = "f16",
        type_v: str = "f16",
        kv_unified: bool = True,
        draft: Literal["auto", "mtp", "none"] | type[Drafter] = "auto",
        draft_model: str | os.PathLike[str] | None = None,
        draft_max: int | Literal["auto"] = "auto",
        draft_vocab: int | Sequence[int] | str | os.PathLike[str] | None = None,
        mtp_context: Literal["auto", "chained", "target"] = "auto",
        on_load: Callable[[float], object] | None = None,
    ) -> None:
        context = ContextParams(n_ctx or 0, n_batch, n_ubatch, n_threads, flash_attn, type_k, type_v, kv_unified)
        if draft_max != "auto" and not (isinstance(draft_max, int) and 0 <= draft_max <= N_DRAFT_MAX):
            raise InvalidParameter("draft_max", f"auto, or between 0 and {N_DRAFT_MAX}", value=draft_max)
        if draft not in ("auto", "mtp", "none") and not hasattr(draft, "traits"):
            raise InvalidParameter("draft", "auto, mtp, none or a Drafter with traits", value=draft)
        if mtp_context not in ("auto", "chained", "target"):
            raise InvalidParameter("mtp_context", "auto, chained or target", value=mtp_context)

        if isinstance(draft_vocab, (str, os.PathLike)) and draft_vocab != "auto":
            draft_vocab = read_draft_vocab(draft_vocab)

        path = embedded.model_path() if path is None else path
        problem = None
        mode = draft if isinstance(draft, str) else "none"
        if mode == "none" or draft_max == 0:
            draft_model = None
        elif draft_model is None:
            draft_model, problem = find_draft_model(path)
        self.info = inspect_gguf(path, draft_model)
        """What the files say about themselves."""
        if mode == "mtp" and not self.info.has_heads:
            problem = problem or f"{self.info.path} has no usable MTP head ({_heads(self)})"
            raise UnsupportedModel(f"{problem}; use --draft none")

        drafter = self._drafter(draft)
        if n_seq_max > 1 and not drafter.traits.allows_many:
            raise InvalidParameter("n_seq_max", f"1 where {drafter.traits.name} drafts", value=n_seq_max)
        n_draft_max = AUTO_DRAFT_MAX if draft_max == "auto" else draft_max
        if not drafter.traits.needs_rollback:
            n_draft_max = 0
        uses_heads = drafter.traits.has_own_kv and n_draft_max > 0
        if n_ctx is None:
            context = replace(context, n_ctx=self.info.n_ctx_default)
        self._batch: Batch | None = None
        loaded = _load(self.info, n_gpu_layers, on_load, load_mtp=uses_heads)
        free_models = weakref.finalize(self, _free, None, loaded)
        assistant = None
        if uses_heads and self.info.has_assistant and self.info.draft_model:
            assistant = _load(gguf_facts(self.info.draft_model), n_gpu_layers, None, load_mtp=True)
            free_models.detach()
            free_models = weakref.finalize(self, _free, None, loaded, assistant)
        self.draft_note = self._note(mode, problem, draft_obstacle(loaded, assistant) if uses_heads else None)
        """One line that says why a model with MTP heads decodes plainly, or None."""
        if self.draft_note:
            drafter, n_draft_max = NoDrafter, 0
        self._drafter_class = drafter
        try:
            self.session = Session(
                loaded,
                context,
                n_draft_max=n_draft_max,
                uses_heads=uses_heads,
                assistant=assistant,
                n_seq_max=n_seq_max,
                # several heads are trained one behind the other; for one head both are the same
                mtp_context="target" if mtp_context == "target" else "chained",
                model_id=fingerprint(self.info.path, self.info.draft_model),
            )
            """The session in which the model generates."""
        except BaseException:
            free_models()
            raise
        free_models.detach()
        self._free = weakref.finalize(self, _free, self.session, loaded, assistant)
        self.vocabulary = Vocabulary(loaded, self.info.chat_template)
        self._auto_vocab = AutoDraftVocab(self.info.n_vocab) if draft_vocab == "auto" else None
        self._limit_drafts(None if draft_vocab == "auto" else draft_vocab)
        setup = asdict(context) | {
            "model": self.session.model_id,
            "engine": abi_id(),
            "n_gpu_layers": n_gpu_layers,
            "n_seq_max": n_seq_max,
            "n_draft_max": n_draft_max,
            "n_draft_vocab": "auto" if self._auto_vocab else self.session.n_draft_vocab,
            "drafter": drafter.traits.name,
            "mtp_context": mtp_context,
        }
        self._cost_record = CostRecord(Record("costs", setup))
        # what was learned in one generation serves the next, and those of the next process
        self._experience_record = Record("experience", setup)
        self._experience = Experience.recall(self._experience_record.read())
        self._defaults = GenerationParams(draft_max=draft_max if self.session.n_draft_max else 0)
        self.stats = Stats()
        """Of the latest generation."""

    @property
    def draft_max(self) -> int | Literal["auto"]:
        """Tokens that a round drafts; auto: as many as pay; 0 if the model decodes plainly."""
        return self._defaults.draft_max or 0

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
        params: GenerationParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        **options: Any,
    ) -> Generation:
        """Continue `prompt` (text, or token ids); iterate over the result for the text.

        Parameters and errors are those of `Batch.submit`. Ends what the model was generating before.
        """
        batch = self._new_batch()
        generation = batch.submit(prompt, params, on_prompt=on_prompt, **options)
        self._start(batch)
        self.stats = generation.stats
        return generation

    def batch(self, *, keep: bool = False) -> Batch:
        """A batch, to generate several texts together. Ends what the model was generating before.

        With `keep` it is the same batch again and again, which keeps texts in the cache: see Batch.
        """
        if keep and self._batch is not None and self._batch.keeps:
            return self._batch
        return self._start(self._new_batch(keep=keep))

    def close(self) -> None:
        """Free the session and the weights; closing twice is harmless."""
        if self._batch is not None:
            self._batch.close()
        if self._free.alive and self._experience.costs.knows_drafts:
            with suppress(OSError, StateError):  # then the next process learns it again
                self._experience_record.write(self._experience.as_dict())
        self.vocabulary.close()
        self._free()

    def _drafter(self, draft: str | type[Drafter]) -> type[Drafter]:
        if not isinstance(draft, str):
            return draft
        return MtpDrafter if draft != "none" and self.info.has_heads else NoDrafter

    def _limit_drafts(self, vocab: Any) -> None:
        if vocab is None or self.session.n_heads == 0:
            return
        tokens = range(vocab) if isinstance(vocab, int) else vocab
        if not tokens or min(tokens) < 0 or max(tokens) >= self.info.n_vocab:
            raise InvalidParameter("draft_vocab", f"1 to {self.info.n_vocab} tokens of the vocabulary")
        if isinstance(vocab, int):
            self.session.limit_drafts(vocab)
        else:
            info, heads = self.info, range(min(self.info.n_heads, self.session.n_draft_max))
            matrices = [output_rows(info.path, head, vocab, info.draft_model) for head in heads]
            self.session.limit_drafts_to(vocab, matrices)

    def _new_batch(self, *, keep: bool = False) -> Batch:
        return Batch(
            self.session,
            self.vocabulary,
            keep=keep,
            drafter=self._drafter_class,
            experience=self._experience,
            cost_record=self._cost_record,
            draft_vocab=self._auto_vocab if self.session.n_heads else None,
            defaults=self._defaults,
        )

    def _start(self, batch: Batch) -> Batch:
        if self._batch is not None:
            self._batch.close()
        self._batch = batch
        return batch

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, draft: str, problem: str | None, obstacle: str | None) -> str | None:
        if problem:
            return f"{problem}: plain decoding"
        if draft == "none" or self.info.n_heads_declared == 0:
            return None
        if not self.info.has_heads:
            return f"{self.info.path} has no usable MTP head ({_heads(self)}): plain decoding"
        if obstacle is None:
            return None
        what = "assistant" if self.info.has_assistant else "MTP heads"
        reason = f"the pinned llama.cpp cannot run the {what} of this {self.info.architecture} model ({obstacle})"
        if draft == "mtp":
            raise UnsupportedModel(f"{self.info.path}: {reason}; use --draft none")
        return f"{reason}: plain decoding"


def _load(info: GgufInfo, n_gpu_layers: int, on_load: Callable[[float], object] | None, *, load_mtp: bool) -> object:
    raised: list[BaseException] = []

    # Also without `on_load`: it is the moment in which Ctrl-C can be noticed.
    def report(share: float, _: object) -> bool:
        try:
            if on_load:
                on_load(share)
        except BaseException as error:
            raised.append(error)
        return not raised

    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers
    params.load_mtp = load_mtp
    params.progress_callback = llama_cpp.llama_progress_callback(report)
    llama_cpp.llama_backend_init()
    layers_on_gpu = n_gpu_layers < 0 or n_gpu_layers > info.n_layer + info.n_heads_declared
    if layers_on_gpu and info.tied_embedding_type is not None:
        override = lib.pymtp_embedding_on_device(info.tied_embedding_type)
        params.tensor_buft_overrides = int(ffi.cast("intptr_t", override)) or None
    _log.take_recent()
    if info.draft_model is None or info.has_assistant:
        loaded = llama_cpp.llama_model_load_from_file(os.fsencode(info.path), params)
    else:
        files = info.files
        paths = (ctypes.c_char_p * len(files))(*map(os.fsencode, files))
        loaded = llama_cpp.llama_model_load_from_splits(paths, len(files), params)
    if raised:
        if loaded:
            llama_cpp.llama_model_free(loaded)
        raise raised[0]
    if not loaded:
        raise load_failure(info, _log.take_recent())
    return loaded


def _free(session: Session | None, *models: object | None) -> None:
    if session:
        session.close()
    for model in models:
        if model:
            llama_cpp.llama_model_free(model)


def _heads(model: Model) -> str:
    if model.info.n_heads_declared:
        return f"its metadata names {model.info.n_heads_declared}, it holds the tensors of {model.info.n_heads}"
    return "nextn_predict_layers = 0"
