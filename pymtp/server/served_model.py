"""The model that answers, from loading to draining, and the requests that it has at present.

Owns the model, how many requests may wait for it, and what happens when it fails. Knows no API's words.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from starlette.requests import Request

from pymtp.chat.template import ChatTemplate
from pymtp.errors import BackendError, PymtpError, RemoteError
from pymtp.loading.images import ImagePrompt
from pymtp.loading.vocabulary import Vocabulary
from pymtp.model import Model
from pymtp.placement.devices import host_free_bytes
from pymtp.serving.params import with_options
from pymtp.text.files import path_text

from .answer import LiveAnswer
from .errors import ApiError, busy, invalid, unavailable
from .fields import GenerationFields
from .logs import log
from .parameters import params_of
from .settings import ServerSettings

Phase = Literal["loading", "ready", "failed", "stopping"]
T = TypeVar("T")

key_id: ContextVar[str] = ContextVar("key_id", default="")
"""A hash of the API key that a request came with; empty where none is needed."""
REMOTE_RETRY_S = 1.0
IDLE_S = 5.0
"""After so long without a request, prompts are written to files."""
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Histogram:
    """How often a time was in which range."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, n: int = 1) -> None:
        """Count it, `n` times."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += n
        self.sum_s += seconds * n


class Counts:
    def __init__(self) -> None:
        self.n_cached = 0
        """Tokens of prompts that were in the cache."""
        self.n_tokens_max = 0
        """Tokens of the longest prompt with its answer."""
        self.first_token = Histogram()
        self.between_tokens = Histogram()
        self.ended: Counter[str] = Counter()
        """Answers by how they ended."""


class ServedModel:
    """The model that `load` loads, and its requests. Lives in one asyncio loop.

    `on_failure` is called if there is no model, or no more; `error` says why.
    """

    def __init__(
        self, load: Callable[[], Model], settings: ServerSettings, on_failure: Callable[[], object] = lambda: None
    ) -> None:
        self.settings = settings
        self.phase: Phase = "loading"
        self.started_at = time.time()
        self.counts = Counts()
        self.answers: set[LiveAnswer] = set()
        """Answers that are not complete."""
        self.error: BaseException | None = None
        """Why there is no model."""
        self._load, self._on_failure = load, on_failure
        self._model: Model | None = None
        self._chatml: ChatTemplate | None = None  # for a model without a template
        self._restarts_left = 1
        self._task: asyncio.Task[None] | None = None
        self._answer_s = 1.0  # how long answers take, smoothed
        self._decoding = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_told = False  # that prompts cannot be written
        self._n_decoding = 0  # requests whose images are decoded, or wait for that

    def start(self) -> None:
        self._task = asyncio.create_task(self._load_model())

    async def stop(self) -> None:
        """Close the model. Answers that are not complete end with an error."""
        self.phase = "stopping"
        if self._task:
            await asyncio.wait([self._task])
        await self._write_prompts()
        await self._close_model()

    @property
    def model(self) -> Model:
        """The model. Raises ApiError while there is none."""
        if self._model is None or self.phase != "ready":
            raise unavailable("Loading model" if self.phase == "loading" else f"the server is {self.phase}")
        return self._model

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @property
    def template(self) -> ChatTemplate:
        """The chat template, ChatML for a model without one, as in llama-server. Raises what ChatTemplate raises."""
        model = self.model
        if model.has_chat_template:
            return model.chat_template
        if self._chatml is None:
            log("no chat template", level="warning", use="chatml; --chat-template-file names another")
            self._chatml = ChatTemplate(model.vocabulary, "chatml")
        return self._chatml

    @property
    def name(self) -> str:
        return min(self.settings.aliases) if self.settings.aliases else path_text(self.model.info.path.name)

    @property
    def cache_scope(self) -> str:
        """Whose cache the request reuses."""
        return "" if self.settings.shares_cache else key_id.get()

    @property
    def n_slots(self) -> int:
        """Answers that are made at the same time."""
        return self.model.session.n_seq_max

    @property
    def n_waiting(self) -> int:
        """Answers that wait for a slot."""
        return max(len(self.answers) - self.n_slots, 0)

    def submit(
        self, prompts: Sequence[Sequence[int]], fields: GenerationFields, *, n_probs: int | None, **of_chat: Any
    ) -> list[LiveAnswer]:
        """Ask for what a request asks for; `of_chat` are parameters that chats alone have.

        Raises ApiError, and what Model.generate raises.
        """
        slot, n_slots = fields.id_slot, self.n_slots
        if slot is not None and slot >= n_slots:
            raise invalid(f"Field 'id_slot': there are {n_slots} slots, 0 to {n_slots - 1}, not {slot}")
        params = params_of(fields, self.settings, self.vocabulary, n_probs)
        # texts are shared between requests with the same key only
        params = replace(params, cache_scope=self.cache_scope, draft_owner=key_id.get(), **of_chat)
        n_answers, deadline_s = fields.n_cmpl or fields.n or 1, self.settings.deadline_s
        self._check_room(prompts, len(prompts) * n_answers)
        answers: list[LiveAnswer] = []
        seed = params.sampling.seed
        varied = [  # each answer to a prompt has a seed of its own
            params if seed is None or i == 0 else with_options(params, {"seed": (seed + i) % 2**32})
            for i in range(n_answers)
        ]
        try:
            for prompt in prompts:
                for one in varied:
                    generation = self.model.generate(prompt, one)
                    answers.append(LiveAnswer(generation, len(answers), prompt, fields, deadline_s))
                    self.answers.add(answers[-1])
        except BaseException:
            self.give_up(answers)
            raise
        return answers

    def _check_room(self, prompts: Sequence[Sequence[int]], n_new: int) -> None:
        """Raise ApiError for prompts that are too long, and where too many others wait."""
        model = self.model
        for prompt in prompts:
            n_cells = prompt.n_cells if isinstance(prompt, ImagePrompt) else len(prompt)
            if n_cells >= model.n_ctx:
                what = f"request ({n_cells} tokens) exceeds the available context size ({model.n_ctx} tokens)"
                fix = "shorten it or raise the context size (-c)"
                kind = "exceed_context_size_error"
                raise ApiError(400, f"{what}: {fix}", type=kind, n_prompt_tokens=n_cells, n_ctx=model.n_ctx)
        self.check_number(n_new)
        if len(self.answers) + n_new > self.n_slots + self.settings.n_queue_max:
            raise busy(f"{self.n_waiting} requests are waiting", self._retry_after_s)
        if n_rows := n_image_rows(prompts):
            self._check_images(n_rows)

    async def complete(self, answers: Sequence[LiveAnswer]) -> None:
        """Wait for the end of all of them. Raises what ended one early, and ends the others then."""
        try:
            for answer in answers:
                await answer.complete()
                self.finish(answer)
        except BaseException as error:
            self.give_up(answers, error)
            raise

    def give_up(self, answers: Sequence[LiveAnswer], error: BaseException | None = None) -> None:
        """Nobody wants these answers any more, or an error has ended one of them."""
        for answer in answers:
            self.finish(answer, error)

    async def decode(self, prepare: Callable[[], T]) -> T:
        """What `prepare`, which decodes images, returns from another thread. Raises ApiError.

        One request at a time, as pixels take a thousand times the memory of a file, and none where many wait already.
        """
        self._check_images(1)
        if self._n_decoding > self.settings.n_queue_max:  # one is decoded
            raise busy(f"the images of {self._n_decoding} requests are waiting", self._retry_after_s)
        self._n_decoding += 1
        try:
            async with self._decoding:
                self._check_images(1)
                return await asyncio.to_thread(prepare)
        finally:
            self._n_decoding -= 1

    def check_number(self, n_new: int) -> None:
        """Raise ApiError for more answers than a request can ever get."""
        n_slots, n_max = self.n_slots, self.settings.n_queue_max
        if n_new > n_slots + n_max:
            raise invalid(f"{n_new} answers at once are too many: at most {n_slots} are made and {n_max} wait")

    def finish(self, answer: LiveAnswer, error: BaseException | None = None) -> None:
        """The answer is complete, or nobody wants it any more; its slot is free for another."""
        answer.close()
        if answer in self.answers:
            self.answers.remove(answer)
            self._answer_s += 0.1 * (time.monotonic() - answer.asked_at - self._answer_s)
            self._count(answer, error)
        if isinstance(error, BackendError):
            self._restart(error)
        elif not self.answers and self.settings.cache_dir:
            if self._idle:
                self._idle.cancel()
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._begin_to_write)

    def _begin_to_write(self) -> None:
        if not self.answers:
            self._writing = asyncio.create_task(self._write_prompts())

    async def _write_prompts(self) -> None:
        model = self._model
        if model and self.settings.cache_dir:
            with suppress(PymtpError):  # the model has failed, or is closed
                failure = await asyncio.to_thread(model.slots.write_files)
                if failure and not self._is_told:  # a full disk fails again after each request
                    self._is_told = True
                    log("prompts are not kept", level="warning", error=failure)

    def _count(self, answer: LiveAnswer, error: BaseException | None) -> None:
        counts, generation = self.counts, answer.generation
        counts.n_cached += generation.n_cached
        counts.n_tokens_max = max(counts.n_tokens_max, generation.n_prompt + len(answer.tokens))
        counts.ended[generation.finish_reason or ("error" if isinstance(error, PymtpError) else "closed")] += 1
        if generation.first_at is not None:
            counts.first_token.observe(generation.first_at - answer.asked_at)
            n_more = len(answer.tokens) - 1
            if n_more > 0:
                counts.between_tokens.observe((generation.last_at - generation.first_at) / n_more, n_more)

    def _check_images(self, n_new: int) -> None:
        """`n_new`: rows."""
        n_rows = n_image_rows({id(answer.prompt): answer.prompt for answer in self.answers}.values())
        if n_rows and n_rows + n_new > self.settings.image_rows_max:
            raise busy(f"images of {n_rows} tokens are in the queue", self._retry_after_s)

    @property
    def _retry_after_s(self) -> int:
        return max(1, round(self._answer_s * (1 + self.n_waiting / self.n_slots)))

    async def _load_model(self, *, waits: bool = False) -> None:
        """Load the model, in the place of one that has failed. `waits`: for other machines that it needs."""
        await self._close_model()
        is_told = False
        while self.phase == "loading":
            try:
                self._model = model = await asyncio.to_thread(self._load)
                self._begin(model)
                return
            except BaseException as error:
                if not (waits and isinstance(error, RemoteError)):
                    self.error, self.phase = error, "failed"
                    self._on_failure()
                    return
                if not is_told:
                    log("waiting for an RPC server", level="warning", error=str(error))
                    is_told = True
            await asyncio.sleep(REMOTE_RETRY_S)

    def _begin(self, model: Model) -> None:
        if self.settings.cache_bytes:
            # the context may have taken most of the memory
            model.slots.keep_prefixes(min(self.settings.cache_bytes, host_free_bytes() // 2))
        if self.settings.cache_dir:
            model.slots.keep_files(self.settings.cache_dir, self.settings.cache_disk_bytes)
        if self.phase != "loading":
            return
        self.phase, self.error = "ready", None
        log(
            "model loaded",
            model=path_text(model.info.path.name),
            slots=model.session.n_seq_max,
            ctx_of_slot=model.n_ctx,
            ctx_of_all=model.session.n_cells,
            ctx_trained=model.info.n_ctx_train,
            ctx_mib=model.memory.total_bytes >> 20,
            model_mib=model.info.size_bytes >> 20,
        )

    def _restart(self, error: BackendError) -> None:
        """The engine has failed: all that it had is lost. Load the model again, once, or whenever a machine is back."""
        if self.phase != "ready":
            return
        log("engine failed", level="error", error=str(error))
        self.error = error
        is_remote = isinstance(error, RemoteError)
        if not is_remote:
            if not self._restarts_left:
                self.phase = "failed"
                return
            self._restarts_left -= 1
        self.phase = "loading"
        self._task = asyncio.create_task(self._load_model(waits=is_remote))

    async def _close_model(self) -> None:
        model, self._model, self._chatml = self._model, None, None
        if model:
            await asyncio.to_thread(model.close)


def served_by(request: Request) -> ServedModel:
    """The model of the server that got the request."""
    return cast(ServedModel, request.app.state.served)


def n_image_rows(prompts: Iterable[Sequence[int]]) -> int:
    """Rows of embeddings of all images in `prompts`."""
    return sum(prompt.n_rows for prompt in prompts if isinstance(prompt, ImagePrompt))
