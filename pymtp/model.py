"""A GGUF model that generates text: the package's front door.

Owns the loaded model, its session, and the engine that runs in it. Knows no policy: each part is made where it belongs.
"""

import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pymtp import embedded, hub
from pymtp.chat.images import source_of, take_images
from pymtp.chat.params import ChatParams, asked_as_openai
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.template import ChatTemplate
from pymtp.drafting.adaptive import AdaptiveDrafter
from pymtp.drafting.choice import DraftChoice, choose_drafter, without_rollback, without_runnable_heads
from pymtp.drafting.hints import DraftHints
from pymtp.drafting.lookup import EarlierTexts
from pymtp.drafting.params import DraftParams, parse_draft_vocab
from pymtp.drafting.text_vocab import TextVocab
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Session
from pymtp.engine.threads import threads_of
from pymtp.errors import Closed, InvalidParameter, UnsupportedModel, require
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.model_file import read_model
from pymtp.gguf.weights import fingerprint, output_matrix, trimmed_output
from pymtp.loader import OnLoad, Weights
from pymtp.loading.images import IMAGE_MARKER, Image, ImagePrompt, Projector, load_images, split_at_markers
from pymtp.loading.params import ModelParams
from pymtp.loading.vocabulary import Vocabulary
from pymtp.options import ModelOptions, Params, merge_options
from pymtp.placement.plan import check_host, plan_memory
from pymtp.placement.target import LoadTarget
from pymtp.sampling.params import SamplingParams
from pymtp.sampling.recommended import recommended_sampling
from pymtp.serving.adapters import Adapters
from pymtp.serving.admission import Admission
from pymtp.serving.controls import ModelAdapters, ModelSlots
from pymtp.serving.generation import Generation, OnPrompt
from pymtp.serving.loop import EngineLoop
from pymtp.serving.make_sequence import ModelTraits
from pymtp.serving.params import GenerationOptions, GenerationParams, with_options
from pymtp.serving.passes import Passes
from pymtp.serving.request import Request
from pymtp.serving.scheduler import Scheduler
from pymtp.serving.statistics import Stats
from pymtp.text.files import StrPath, path_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

T = TypeVar("T")


class Model:
    """A loaded GGUF model. A context manager: leaving it frees everything.

    `path` None takes the embedded model; `hf`, in place of a path, one of the Hugging Face Hub: `user/repo` or
    `user/repo:quant`, downloaded once. How it is loaded and run is in ModelParams, ContextParams and DraftParams; their
    fields are also keywords, which override them: `Model("model.gguf", n_ctx=8192, draft_max=3)`. `on_load` is called
    while the weights are read, with the share read so far, 0 to 1; what it raises ends the loading.

    Any number of threads and asyncio tasks may use a model at the same time: `n_seq_max` texts are generated together,
    others wait for a slot. The passes run in a thread of the model's own.

    Raises ModelError for a file that cannot be used, UnsupportedModel if it must draft and cannot, InvalidParameter for
    a value out of range, BackendError if memory runs out.
    """

    def __init__(
        self,
        path: StrPath | None = None,
        *,
        hf: str | None = None,
        model: ModelParams | None = None,
        context: ContextParams | None = None,
        drafting: DraftParams | None = None,
        on_load: OnLoad | None = None,
        **options: "Unpack[ModelOptions]",
    ) -> None:
        defaults = Params(model or ModelParams(), context or ContextParams(), drafting or DraftParams())
        self.params = merge_options(defaults, options)
        """How it was loaded."""
        path = read_model(_path_of(path, hf), dict(self.params.model.override_kv))
        self.info, choice = choose_drafter(path, self.params.drafting)
        """The facts in the headers of the files."""
        _check_choice(self.info, self.params, choice)
        tokens = parse_draft_vocab(self.params.drafting.draft_vocab, self.info.n_vocab)
        asked, target = self.params.model, LoadTarget(self.params.model, self.info)
        plan = plan_memory(self.info, self.params, choice, target)
        self.params = plan.params
        check_host(plan)
        with_heads = choice.uses_heads
        weights = Weights(self.info, asked, on_load, with_heads=with_heads, target=target, planned=plan.params.model)
        self.memory = plan.memory
        """Bytes of its caches, and of what passes compute in; an estimate."""
        self.room_note: str | None = plan.note
        """One line for people: what does not fit, or None."""
        self._parts = ExitStack()  # what is closed with the model, the last part first
        self._parts.callback(weights.close)
        self._free = weakref.finalize(self, self._parts.close)
        if choice.n_draft_max > 0 and not weights.goes_back:
            choice = without_rollback(self.info, self.params.drafting)
        elif choice.uses_heads and (obstacle := weights.draft_obstacle):
            choice = without_runnable_heads(self.info, self.params.drafting, obstacle)
        self.draft_note: str | None = choice.note
        """One line for people: why a model's MTP heads are not used, or None."""
        self.session = _open_session(weights, self.params, choice)
        """The session in which the model generates; see `call`."""
        self.n_ctx = self.session.n_ctx
        """Tokens of context of each sequence."""
        if self.session.n_heads > 0:
            self._limit_drafts(tokens)
        self.vocabulary = Vocabulary(weights.model, self.info.chat_template)
        if self.params.model.chat_template is not None:
            _ = self.chat_template  # what is not Jinja shows at once
        self.projector: Projector | None = None
        """What turns images into rows of embeddings; None: the model takes no images."""
        if self.params.model.mmproj is not None:
            n_threads = threads_of(self.params.context)[0].n_threads
            self.projector = Projector(weights.model, self.vocabulary, self.params.model, n_threads)
        self._start(weights, choice, target)
        self.slots = ModelSlots(self._loop, self._scheduler.admission, self.session)
        """What the cache holds of texts that have ended: saved, restored, emptied. See ModelSlots."""
        self.adapters = ModelAdapters(self._loop, self._scheduler.admission.adapters, weights.adapters)
        """The LoRA adapters that are loaded (`lora`), with the scales of texts that do not ask for others."""

    def _start(self, weights: Weights, choice: DraftChoice, target: LoadTarget) -> None:
        session, traits = self.session, choice.drafter.traits
        adapters = ", ".join(path_text(adapter.path.name) for adapter in weights.adapters)
        name = path_text(self.info.path.name) + (f" with {adapters}" if adapters else "")
        self._traits = ModelTraits(
            self.vocabulary, traits, session.n_ctx, session.n_draft_max, len(weights.adapters), name=name
        )
        draft_max = self.params.drafting.draft_max if session.n_draft_max else 0
        if draft_max == "auto" and traits.auto_draft_max is not None:
            draft_max = session.n_draft_max
        sampling = SamplingParams(**recommended_sampling(self.info.sampling))
        self._defaults = GenerationParams(sampling, draft_max=draft_max)
        earlier = EarlierTexts() if self.params.drafting.draft_lookup == "shared" else None
        drafter = choice.make(session, earlier)
        self._adaptive = drafter if isinstance(drafter, AdaptiveDrafter) else None
        policy = self._adaptive.policy if self._adaptive else None
        self._hints: DraftHints | None = None
        for part in (self.vocabulary, self.projector, session):
            if part:
                self._parts.callback(part.close)
        if policy and draft_max == "auto" and self.params.drafting.draft_hints:
            # how long the context may be makes no difference to what is learned
            params = self.params._replace(context=replace(self.params.context, n_ctx=None, n_cells=None))
            self._hints = DraftHints((session.model_id, params, threads_of(params.context), target.descriptions))
            self._hints.give_to(policy)
            self._parts.callback(self._hints.keep, policy)
        lora = Adapters(session, weights.adapters)
        follows = session.n_heads and choice.follows_texts(self.info, self.params.drafting)
        is_whole = self.params.model.split_mode in ("none", "layer")  # else single rows cannot be written
        vocab = TextVocab(session, self._output_matrices()) if follows and is_whole else None
        admission = Admission(session, earlier, lora, vocab)
        self._scheduler = Scheduler(admission, Passes(session, drafter, admission.slots, policy, perf_counter))
        self._loop = EngineLoop(self._scheduler)
        self._parts.callback(self._loop.close)

    @property
    def draft_max(self) -> int | Literal["auto"]:
        """Tokens that a round drafts; auto: adapts; 0 if the model decodes plainly."""
        return self._defaults.draft_max or 0

    @property
    def defaults(self) -> GenerationParams:
        """What a generation uses where nothing else is asked for: the sampling that the GGUF recommends
        (`general.sampling.*`), as in llama.cpp, and the draft length of `draft_max`."""
        return self._defaults

    @property
    def has_chat_template(self) -> bool:
        """Whether it has a chat template: that of the GGUF, or another in its place."""
        return (self.params.model.chat_template or self.vocabulary.chat_template) is not None

    @property
    def stats(self) -> Stats:
        """Counts and times of all texts so far. A pass's time is shared out between sequences by their rows."""
        with suppress(Closed):
            return self.call(self._read_stats)
        return self._read_stats()

    @property
    def plain_tok_s(self) -> float | None:
        """About how many tokens per second plain decoding makes, of one text; None before it has decoded plainly, and
        nor has an earlier process (`draft_hints`)."""
        plain_ms = self._adaptive.policy.costs.plain_ms if self._adaptive else None
        return 1000 / plain_ms if plain_ms else None

    def tokenize(self, text: str, *, is_start: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens in it are recognised.

        `is_start` puts a BOS first if the model wants one.
        """
        return self.vocabulary.tokenize(text, is_start=is_start)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of `tokens`; `special` shows special tokens as well."""
        return self.vocabulary.detokenize(tokens, special=special)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises UnsupportedModel if there is none, ModelError if the model's own is not Jinja."""
        return ChatTemplate(self.vocabulary, self.params.model.chat_template)

    def render(self, messages: Sequence[Mapping[str, Any]], params: ChatParams | None = None) -> ChatPrompt:
        """Render `messages`, as in OpenAI's chat completions, with the model's chat template, ready for the answer.

        The result has the prompt's text, and says what the answer may look like and how it is parsed. Raises
        what `chat_template` raises, InvalidParameter for messages, tools or a schema that cannot be used.
        """
        return self.chat_template.render(messages, params)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of `render`."""
        return self.render(messages).text

    def generate(
        self,
        prompt: str | Sequence[int],
        params: GenerationParams | None = None,
        *,
        images: Sequence[Image | StrPath | bytes] = (),
        on_prompt: OnPrompt | None = None,
        **options: "Unpack[GenerationOptions]",
    ) -> Generation:
        """Continue `prompt` (text, or token ids); iterate over the result for the text.

        `images`: for each `pymtp.IMAGE_MARKER` in the text the image that it stands for; needs a projector (`mmproj`).

        `options` are fields of GenerationParams and of its SamplingParams; they override those of `params`, or without
        it those of `defaults`: `generate("Hello", temperature=0, max_tokens=20)`. Whoever iterates over the result
        calls `on_prompt` with the prompt's progress until it is complete, before there is text.

        Raises ContextFull if the prompt does not fit, InvalidParameter for a value out of range, Closed after `close`.
        """
        if images:
            prompt = self.image_prompt(prompt, images)
        asked = with_options(params or self._defaults, options)
        if asked.draft_max is None:
            asked = with_options(asked, {"draft_max": self._defaults.draft_max})
        self._loop.check_open()
        request = Request(prompt, asked, self._traits)
        generation = Generation(request, self._loop, self.vocabulary, on_prompt, owner=self)
        self._loop.submit(request)
        if asked.forced and self._hints:
            self._hints.is_wanted = False
        return generation

    def image_prompt(
        self, text: str | Sequence[int], images: Sequence[Image | StrPath | bytes], marker: str = IMAGE_MARKER
    ) -> ImagePrompt:
        """The tokens of a text with a marker for each image, for `generate`.

        Raises UnsupportedModel without a projector, InvalidParameter for an image that cannot be used, and unless there
        are as many markers as images.
        """
        self.check_takes_images()
        if not isinstance(text, str):
            raise InvalidParameter("prompt", "a text, if it has images")
        assert self.projector
        return self.projector.prompt(split_at_markers(text, load_images(images), marker))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerationParams | None = None,
        *,
        chat_params: ChatParams | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        on_prompt: OnPrompt | None = None,
        **options: "Unpack[GenerationOptions]",
    ) -> Generation:
        """Answer `messages`, as in OpenAI's chat completions. See `render` and `generate`.

        `tools`, `tool_choice` and `response_format` are OpenAI's too, and override those of `chat_params`.

        The generation's `message` is the answer taken apart: reasoning, content, tool calls. A part of a message can
        be an image: `{"type": "image_url", "image_url": {"url": "data:..."}}`, or `{"type": "image", "image": ...}`
        with an Image, bytes, or the path of a file, which is opened: in messages that others wrote, refuse such parts.
        """
        if "images" in options:
            raise TypeError("chat() takes images as parts of messages")
        messages, images = self.marked(messages)
        asked = asked_as_openai(chat_params, response_format, tools=tools, tool_choice=tool_choice)
        options["chat"] = prompt = self.render(messages, asked)
        tokens = self.image_prompt(prompt.text, images, self.marker) if images else prompt.text
        return self.generate(tokens, params, on_prompt=on_prompt, **options)

    def marked(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], list[Image]]:
        """Messages with `marker` in place of their images, for `render`, and the images, for `image_prompt`.

        Raises UnsupportedModel for images where there is no projector, InvalidParameter for one that cannot be used.
        """
        marked, parts = take_images(messages, self.marker)
        if parts:
            self.check_takes_images()
        return marked, load_images(list(map(source_of, parts)))

    def check_takes_images(self) -> None:
        """Raise UnsupportedModel if it was loaded without a projector."""
        if self.projector is None:
            raise UnsupportedModel("the model takes no images: load it with its projector (mmproj, --mmproj)")

    @cached_property
    def marker(self) -> str:
        """What stands for an image in the text of a chat: nobody else knows it, so that no message can have it."""
        return f"<__media_{secrets.token_hex(16)}__>"

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the engine's thread, between passes, and return what it returns.

        The way to use `session` while anything is being generated: `model.call(model.session.save)`.
        """
        return self._loop.call(function)

    def lookup_bytes(self) -> int:
        """What drafts by lookup take of host memory: the texts that are generated, and earlier ones that are shared."""
        return self.call(lambda: self._adaptive.lookup_bytes if self._adaptive else 0)

    def close(self) -> None:
        """Free the session and the weights; closing twice is harmless. What is being generated ends with an error."""
        self._free()

    def __enter__(self) -> "Model":
        self._loop.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        drafts = f"draft_max={self.draft_max}" if self.draft_max else "plain"
        return f"<pymtp.Model {self.info.path.name}: {self.info.architecture}, n_ctx={self.n_ctx}, {drafts}>"

    def _read_stats(self) -> Stats:
        self._scheduler.report()
        return self._scheduler.stats + Stats()

    def _limit_drafts(self, tokens: range | list[int] | None) -> None:
        session = self.session
        if self.info.n_draft_vocab is not None:
            own, matrices, type_id = trimmed_output(self.info)
            session.limit_drafts_to(own, matrices[: session.n_heads], type_id)
        elif isinstance(tokens, range):
            session.limit_drafts(len(tokens))
        elif tokens:
            session.limit_drafts_to(tokens, [matrix[tokens] for matrix in self._output_matrices()])

    def _output_matrices(self) -> "list[npt.NDArray[np.uint8]]":
        return [output_matrix(self.info, head) for head in range(self.session.n_heads)]


def _path_of(path: StrPath | None, hf: str | None) -> StrPath:
    if hf is not None:
        require(path is None, "hf", "left out where a path is given", hf)
        return hub.resolve(hf)
    if path is None:
        return embedded.model_path()
    is_path = isinstance(path, (str, os.PathLike))
    require(is_path, "path", "that of a GGUF file, or None for the embedded model", path)
    return os.path.expanduser(path) if isinstance(path, str) else path


def _check_choice(info: GgufInfo, params: Params, choice: DraftChoice) -> None:
    traits, n_seq_max = choice.drafter.traits, params.context.n_seq_max
    require(n_seq_max == 1 or traits.allows_many, "n_seq_max", f"1 where {traits.name} drafts", n_seq_max)
    # trimmed heads say themselves which tokens are drafted, and have a matrix of their own for that
    vocab = params.drafting.draft_vocab
    text = f"left out: the heads in {info.draft_model} are trimmed to {info.n_draft_vocab} tokens"
    require(info.n_draft_vocab is None or isinstance(vocab, str), "draft_vocab", text, vocab)


def _open_session(weights: Weights, params: Params, choice: DraftChoice) -> Session:
    return Session(
        weights.model,
        params.context,
        n_draft_max=choice.n_draft_of_session(
            params.drafting, params.context.n_seq_max, has_states=weights.has_recurrent_states
        ),
        uses_heads=choice.uses_heads,
        assistant=weights.assistant if choice.uses_heads else None,
        # several heads are trained as a chain; for one head both are the same
        mtp_context="target" if params.drafting.mtp_context == "target" else "chained",
        model_id=fingerprint(weights.info.shards, params.model.override_kv),
    )
