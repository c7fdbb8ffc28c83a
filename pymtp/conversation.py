"""A chat: messages in, answers out, and a context that never overflows.

Owns the messages and which of them a prompt still has. Knows text and the tokens that it came from; the cache is the
scheduler's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from pymtp.chat.params import ChatParams
from pymtp.chat.parser import ChatMessage
from pymtp.chat.prompt import ChatPrompt
from pymtp.errors import ContextFull, require
from pymtp.loading.images import Image, ImagePrompt, PlacedImage, fit_together, load_images, n_more_cells
from pymtp.model import Model
from pymtp.serving.generation import Generation, OnPrompt
from pymtp.serving.params import GenerationOptions, GenerationParams, with_options
from pymtp.serving.sequence import FinishReason
from pymtp.serving.statistics import Stats
from pymtp.text.files import StrPath

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Message(TypedDict, total=False):
    """A message of one side; only role and content are always there."""

    role: Literal["user", "assistant"]
    content: str
    reasoning_content: str
    """The assistant's thinking, where the template sets it apart."""
    images: Sequence[Image]
    """Images that come before the text."""
    finish_reason: FinishReason | None
    """Why an answer ended; None: early."""


class _Text(NamedTuple):
    """What a conversation knows of a prompt: its text, and the tokens that it came from."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    chat: ChatPrompt = ChatPrompt("")
    images: tuple[PlacedImage, ...] = ()


class Conversation:
    """A chat with a model that has a chat template. See `ask`.

    What a prompt has in common with the one before stays in the cache, as long as nothing else is generated with the
    model. When the context gets full, prompts leave out the oldest turns, enough to leave the answer a quarter of the
    context.
    """

    def __init__(self, model: Model, *, system: str | None = None, params: ChatParams | None = None) -> None:
        self.model = model
        self.params = params or ChatParams()
        """How the template is applied; may be changed at any time."""
        self.system = system
        """The system prompt; may be changed at any time."""
        self.messages: list[Message] = []
        """All messages, beginning with the user's."""
        self.n_dropped = 0
        """Oldest messages that prompts leave out because the context is full."""
        self._known: list[_Text] = []  # prompts with their answers
        self._answer: Answer | None = None

    def ask(
        self,
        text: str,
        params: GenerationParams | None = None,
        *,
        images: Sequence[Image | StrPath | bytes] = (),
        on_prompt: OnPrompt | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Answer:
        """Send `text`, after `images`, and return the answer, to be iterated over.

        The answer is part of the conversation when it ends.

        Parameters and errors are those of `Model.generate`. Raises ContextFull if the text is too long for the context,
        ModelError if the chat template fails; the conversation is as before then.
        """
        return self._answer_to(None, _asked(text, images), params, on_prompt, options)

    def edit(
        self,
        turn: int,
        text: str,
        params: GenerationParams | None = None,
        *,
        images: Sequence[Image | StrPath | bytes] = (),
        on_prompt: OnPrompt | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Answer:
        """Send `text`, after `images`, in place of the message of a turn, from 0; -1: the last.

        The turns after it are dropped. See `ask`. Raises InvalidParameter if there is no such turn.
        """
        return self._answer_to(turn, _asked(text, images), params, on_prompt, options)

    def regenerate(
        self,
        params: GenerationParams | None = None,
        *,
        turn: int = -1,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Answer:
        """Answer the last message again, or that of `turn`; its answer and later turns are dropped. See `edit`."""
        return self._answer_to(turn, None, params, on_prompt, options)

    def undo(self) -> bool:
        """Take back the last message and answer; return whether there was one."""
        self._end_answer()
        if not self.messages:
            return False
        del self.messages[-2:]
        self.n_dropped = min(self.n_dropped, max(0, len(self.messages) - 2))
        return True

    def clear(self) -> None:
        """Begin again, with the same system prompt."""
        self.restore([])

    def restore(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Continue from other messages.

        Raises InvalidParameter unless user and assistant take turns, UnsupportedModel for images that the model cannot
        take; the conversation is as before then.
        """
        self._end_answer()
        if any(message.get("images") for message in messages):
            self.model.check_takes_images()
        roles = [message.get("role") for message in messages]
        require(roles == ["user", "assistant"] * (len(roles) // 2), "messages", "pairs of user and assistant")
        self.messages = [_message(message) for message in messages]
        self.n_dropped = 0

    def __repr__(self) -> str:
        n = len(self.messages) // 2
        return f"<pymtp.Conversation with {self.model.info.path.name}: {n} turn{'s' * (n != 1)}>"

    def _answer_to(
        self,
        turn: int | None,
        message: Message | None,
        params: GenerationParams | None,
        on_prompt: OnPrompt | None,
        options: GenerationOptions,
    ) -> Answer:
        """Answer `message`, or the one that is there (None), in place of a turn, or after all turns (None).

        If that fails, the conversation is as before.
        """
        self._end_answer()
        n_kept = len(self.messages)
        if turn is not None:
            n = n_kept // 2
            require(n, "messages", "not empty: there is no message to answer again")
            require(-n <= turn < n, "turn", f"between 0 and {n - 1}, or -1 for the last", turn)
            n_kept = 2 * (turn % n)
        message = message or self.messages[n_kept]
        for name, text in (("text", message["content"]), ("system", self.system or "")):
            require(isinstance(text, str), name, f"a string, not {text!r}")
        before = self.messages, self.n_dropped
        if n_kept < len(self.messages):
            self.n_dropped = 0  # there may be room again
        self.messages = [*self.messages[:n_kept], message]
        try:
            self._answer = Answer(self, with_options(params or self.model.defaults, options), on_prompt)
        except BaseException:
            self.messages, self.n_dropped = before
            raise
        return self._answer

    def _end_answer(self) -> None:
        if self._answer is not None:
            self._answer.close()

    def _prompt(self, request: GenerationParams, so_far: _Text) -> _Text:
        """The prompt: as much of the conversation as leaves room for an answer of which `so_far` is there already."""
        n_ctx = self.model.session.n_ctx
        n_reserved = n_ctx // 4 if request.max_tokens < 0 else min(n_ctx // 4, request.max_tokens)
        # a turn begins with the user, and the last one stays
        starts = range(self.n_dropped, len(self.messages), 2)
        render = cache(self._render)

        def n_tokens(start: int) -> int:
            return len(render(start).tokens) + n_more_cells(render(start).images) + len(so_far.tokens)

        def fits(start: int) -> bool:
            images = [image for message in self.messages[start:] for image in message.get("images", ())]
            return fit_together(images) and n_tokens(start) + n_reserved <= n_ctx

        start = starts[0 if fits(starts[0]) else bisect_left(starts[:-1], True, key=fits)]
        if (n := n_tokens(start)) >= n_ctx:
            fix = "shorten it or raise the context size (n_ctx, -c)"
            raise ContextFull(f"the last message makes a prompt of {n} tokens, the context has {n_ctx}: {fix}")
        self.n_dropped = start
        return render(start)

    def _render(self, start: int) -> _Text:
        """The prompt of the messages from `start` on, of tokens that are the known ones as far as its text is."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages, images = self.model.marked([*system, *map(_rendered, self.messages[start:])])
        prompt = self.model.render(messages, self.params)
        text = prompt.text
        if images:  # tokens of earlier prompts stand at other images
            made = self.model.image_prompt(text, images, self.model.marker)
            return _Text(text, tuple(made), prompt, made.images)
        known = max((k for k in self._known if text.startswith(k.text)), key=lambda k: len(k.text), default=_Text())
        rest = self.model.vocabulary.tokenize(text[len(known.text) :], is_start=not known.text)
        return _Text(text, (*known.tokens, *rest), prompt)

    def _note(self, text: _Text, answer: ChatMessage, reason: FinishReason | None) -> None:
        """An answer has ended; `text` is its prompt and the answer."""
        message: Message = {"role": "assistant", "content": answer.content, "finish_reason": reason}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        self.messages.append(message)
        known = [known for known in self._known if text.text.startswith(known.text)]
        # the tokens of an answer that a stop string ended have that, too
        self._known = known if text.images or reason == "stop" else [*known, text]


class Answer(Iterator[str]):
    """An answer: an iterator over its text, in the pieces in which it is made.

    If the context fills up meanwhile, the oldest turns are dropped and the answer continues, unless the request names a
    grammar: that would begin again.
    """

    def __init__(self, conversation: Conversation, request: GenerationParams, on_prompt: OnPrompt | None) -> None:
        self._conversation = conversation
        self._request = request
        self._on_prompt = on_prompt
        self._parts: list[Generation] = []
        self._is_over = False
        self._submit()
        self.n_cached = 0
        """Tokens of the prompt that were in the cache; known with the first piece."""

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(part.text for part in self._parts)

    @property
    def message(self) -> ChatMessage:
        """The answer so far, taken apart: reasoning and content."""
        return self._prompt.chat.read(self.text, self.finish_reason)

    @property
    def params(self) -> GenerationParams:
        """What was asked for; `chat` is how the prompt was rendered."""
        return self._parts[0].params

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self._prompt.tokens)

    @property
    def stats(self) -> Stats:
        """Counts and times up to now. Of the prompt, what was in the cache does not count."""
        return reduce(add, (part.stats for part in self._parts))

    @property
    def acceptance(self) -> str:
        """How drafts are verified. See Generation.acceptance."""
        return self._parts[-1].acceptance

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended, once it has; None also if it was ended early."""
        return self._parts[-1].finish_reason

    def parts(self, begin: int = 0, end: int | None = None) -> list[tuple[str, bool]]:
        """Cut `text[begin:end]` into accepted drafts (True) and what the target sampled. See Generation.parts."""
        found: list[tuple[str, bool]] = []
        n_before, last = 0, len(self.text) if end is None else end
        for part in self._parts:
            found += part.parts(max(begin - n_before, 0), max(last - n_before, 0))
            n_before += len(part.text)
        return found

    def close(self) -> None:
        """End the answer here; the text so far stays in the conversation."""
        if not self._is_over:
            self._is_over = True
            self._parts[-1].close()
            so_far, prompt = self._so_far(), self._prompt
            whole = _Text(prompt.text + so_far.text, prompt.tokens + so_far.tokens, images=prompt.images)
            self._conversation._note(whole, self.message, self.finish_reason)

    def __repr__(self) -> str:
        state = self.finish_reason or ("closed" if self._is_over else "running")
        return f"<pymtp.Answer {state}: {self.text[:40]!r}>"

    def __next__(self) -> str:
        if self._is_over:
            raise StopIteration
        try:
            while True:
                piece = next(self._parts[-1], None)
                self.n_cached = self._parts[0].n_cached
                if piece is not None:
                    return piece
                if self.finish_reason != "context" or self._request.grammar is not None:
                    raise StopIteration
                try:
                    self._submit()  # without the oldest turns
                except ContextFull:
                    raise StopIteration from None
        except BaseException:
            self.close()
            raise

    def _submit(self) -> None:
        request, so_far = self._request, self._so_far()
        prompt = self._prompt = self._conversation._prompt(request, so_far)
        tokens = [*prompt.tokens, *so_far.tokens]
        generation = self._conversation.model.generate(
            ImagePrompt(tokens, prompt.images) if prompt.images else tokens,
            request,
            on_prompt=self._on_prompt,
            cache_prompt=True,
            chat=replace(prompt.chat, generation_prompt=prompt.chat.generation_prompt + so_far.text),
            max_tokens=request.max_tokens if request.max_tokens < 0 else request.max_tokens - len(so_far.tokens),
        )
        self._parts.append(generation)

    def _so_far(self) -> _Text:
        parts = (part.tokens[:-1] if part.finish_reason == "eog" else part.tokens for part in self._parts)
        return _Text(self.text, tuple(chain.from_iterable(parts)))


def _asked(text: str, images: Sequence[Image | StrPath | bytes]) -> Message:
    message: Message = {"role": "user", "content": text}
    if images:
        message["images"] = load_images(images)
    return message


def _rendered(message: Message) -> Mapping[str, Any]:
    found: dict[str, Any] = {k: v for k, v in message.items() if k not in ("finish_reason", "images")}
    if images := message.get("images"):
        parts = [{"type": "image", "image": image} for image in images]
        found["content"] = [*parts, {"type": "text", "text": message["content"]}]
    return found


def _message(given: Mapping[str, Any]) -> Message:
    role: Literal["user", "assistant"] = "user" if given["role"] == "user" else "assistant"
    content = given.get("content") or ""
    require(isinstance(content, str), "messages", "of a text each (images apart)", content)
    message: Message = {"role": role, "content": content}
    if "finish_reason" in given:
        message["finish_reason"] = given["finish_reason"]
    if given.get("images"):
        message["images"] = load_images(given["images"])
    if given.get("reasoning_content"):
        message["reasoning_content"] = str(given["reasoning_content"])
    return message
