"""From a chat request of any API to its prompt and its answers, in the words of OpenAI's chat completions.

Owns which parts a message may have: what else is wrong with messages the template says. Knows no form of an answer.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pymtp.chat.images import take_images
from pymtp.chat.params import ChatParams, name_of, schema_of
from pymtp.chat.parser import ChatDelta, ChatMessage, ChatParser
from pymtp.chat.prompt import ChatPrompt
from pymtp.errors import UnsupportedModel
from pymtp.loading.images import Image

from .answer import LiveAnswer
from .bodies import apart, as_structure, read
from .errors import invalid
from .fields import ChatBody
from .logs import ignore
from .respond import Reply, json_response, respond
from .served_model import ServedModel, served_by

T = TypeVar("T")
Turn = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes a body of another API one of /v1/chat/completions. Raises ApiError."""

N_TOP_DEFAULT = 20
"""Tokens whose log probabilities a chat shows if it does not say how many."""
_MEDIA = ("input_audio", "input_video", "video_url")


class AllowedTools(msgspec.Struct):
    """A tool_choice of some of the tools."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]] = []


class ChatReply(Reply):
    """What replies of all APIs for chats have in common. Owns the parsers of the answers."""

    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self._parsers: dict[int, ChatParser] = {}  # by answer

    def piece(self, answer: LiveAnswer, text: str) -> Iterable[bytes]:
        yield from self._begin(answer)
        yield from self._deltas(answer, self._parsers[answer.index].push(text))

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        yield from self._begin(answer)
        parser = self._parsers[answer.index]
        yield from self._deltas(answer, parser.finish(is_cut=not answer.is_complete))
        yield from self._closing(answer, parser.message)

    def _begin(self, answer: LiveAnswer) -> Iterable[bytes]:
        """Make the parser of an answer, unless it has one; the events that are due then."""
        if answer.index in self._parsers:
            return ()
        chat = answer.generation.params.chat
        assert chat is not None
        self._parsers[answer.index] = chat.parse()
        return self._opening(answer)

    def _deltas(self, answer: LiveAnswer, deltas: Sequence[ChatDelta]) -> Iterable[bytes]:
        for i, delta in enumerate(deltas):
            yield from self._delta(answer, delta, is_last=i == len(deltas) - 1)

    @abstractmethod
    def _opening(self, answer: LiveAnswer) -> Iterable[bytes]:
        """The events before those of the text."""

    @abstractmethod
    def _delta(self, answer: LiveAnswer, delta: ChatDelta, *, is_last: bool) -> Iterable[bytes]:
        """The events of what a piece adds to the message. `is_last`: it adds no more."""

    @abstractmethod
    def _closing(self, answer: LiveAnswer, message: ChatMessage) -> Iterable[bytes]:
        """The events after those of the text."""


async def answer_chat(turn: Turn | None, reply: Callable[[ServedModel], Reply], request: Request) -> Response:
    """The response to a chat request of any API, in the words of `reply`. Raises ApiError."""
    served, body = served_by(request), await _body(turn, request)
    tokens, of_chat = await prepared(request, body, prepare)
    n_probs = body.n_probs or None
    if body.logprobs:
        n_probs = N_TOP_DEFAULT if body.top_logprobs is None else body.top_logprobs
    elif body.top_logprobs:
        raise invalid("top_logprobs requires logprobs to be set to true")
    body.json_schema, body.messages = None, []  # the prompt has them
    answers = served.submit([tokens], body, n_probs=n_probs, **of_chat)
    return await respond(request, answers, reply(served))


async def count_tokens_of(turn: Turn | None, more: Mapping[str, str], request: Request) -> Response:
    """How many tokens the prompt of a chat request has, with `more` fields. Raises ApiError."""
    tokens, _ = await prepared(request, await _body(turn, request), prepare)
    return json_response({**more, "input_tokens": len(tokens)})


async def _body(turn: Turn | None, request: Request) -> ChatBody:
    return as_structure(turn(await read(request, dict[str, Any])), ChatBody) if turn else await read(request, ChatBody)


def turned(body: Mapping[str, Any], kind: type[msgspec.Struct], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat: `fields`, if they are not None, and what `body` has besides those that a `kind` has."""
    kept = {name: value for name, value in body.items() if name not in kind.__struct_fields__}
    return kept | {name: value for name, value in fields.items() if value is not None}


def prepare(served: ServedModel, body: ChatBody) -> tuple[Sequence[int], dict[str, Any]]:
    """The tokens of a chat request, and parameters that chats alone have. Raises ApiError."""
    model, (prompt, images) = served.model, render(served, body)
    budgets = (body.reasoning_budget_tokens, body.thinking_budget_tokens, served.settings.reasoning_budget)
    budget = next(budget for budget in budgets if budget is not None)
    tokens = model.image_prompt(prompt.text, images, model.marker) if images else model.tokenize(prompt.text)
    return tokens, {"chat": prompt, "reasoning_budget": budget}


async def prepared(request: Request, body: ChatBody, make: Callable[[ServedModel, ChatBody], T]) -> T:
    """What `make` returns; in another thread, if it decodes images or the body is long. Raises ApiError."""
    served = served_by(request)
    work = partial(make, served, body)
    _, images = take_images(body.messages, "")
    return await (served.decode(work) if images else apart(request, work))


def render(served: ServedModel, body: ChatBody) -> tuple[ChatPrompt, Sequence[Image]]:
    """The prompt of a request, and the images in it, in the order of the markers in its text.

    Raises ApiError, and what ChatTemplate.render raises.
    """
    schema = _schema(body)
    for message in body.messages:
        for part in content if isinstance(content := message.get("content"), list) else ():
            _check_part(part)
    kwargs = {**served.settings.template_kwargs, **(body.chat_template_kwargs or {})}
    thinks = kwargs.get("enable_thinking", True)
    if not isinstance(thinks, bool):
        raise invalid('invalid type for "enable_thinking" (expected boolean)')
    if body.reasoning_effort and body.reasoning_effort != "none":
        kwargs["reasoning_effort"] = body.reasoning_effort
    is_off = not thinks or body.reasoning_effort == "none" or served.settings.reasoning == "off"
    tools, choice = _tools(body)
    if tools and body.grammar:
        raise invalid("Cannot use custom grammar constraints with tools.")
    continues, begins = _ends(body)
    chat = ChatParams(
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        strict_schemas=bool(body.strict_schemas),
        reasoning="off" if is_off else "auto",
        reasoning_format=cast(Any, body.reasoning_format or served.settings.reasoning_format),
        json_schema=schema,
        template_kwargs=kwargs,
        add_generation_prompt=begins,
        continue_final_message=cast(Any, continues),
    )
    try:
        marked, images = served.model.marked(body.messages)
    except UnsupportedModel:
        raise invalid("image input is not supported: the server was started without --mmproj") from None
    prompt = served.template.render(marked, chat)
    for what in prompt.ignored:
        ignore(what)
    if tools and chat.has_to_call == "required" and not prompt.grammar:
        raise invalid("tool_choice: the chat template knows no tools, so that no call can be required of the model")
    return prompt, images


def _tools(body: ChatBody) -> tuple[list[dict[str, Any]], Any]:
    """The functions that the answer may call, and whether it has to. What services run themselves is left out."""
    tools = []
    for tool in body.tools or ():
        if (kind := tool.get("type", "function")) == "function":
            tools.append(tool)
        else:
            ignore(f"a tool of the type {kind!r}: only functions can be called")
    choice = body.tool_choice or "auto"
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = as_structure(choice.get("allowed_tools", choice), AllowedTools)
        names = {name_of(tool) or tool.get("name") for tool in allowed.tools}
        tools, choice = [tool for tool in tools if name_of(tool) in names], allowed.mode
    elif isinstance(choice, dict) and "name" in choice:  # as in responses
        choice = {"type": "function", "function": choice}
    if choice == "required" and not tools:
        raise invalid("tool_choice: none of the tools is a function that is allowed, so that no call can be required")
    return tools, choice


def _ends(body: ChatBody) -> tuple[bool | str, bool]:
    """Whether the answer continues the last message, and whether the prompt ends where an answer begins."""
    continues, begins = body.continue_final_message or False, body.add_generation_prompt is not False
    roles = [message.get("role") for message in body.messages]
    if not continues and roles[-1:] == ["assistant"]:
        if roles[-2:] == ["assistant", "assistant"]:
            raise invalid("Cannot have 2 or more assistant messages at the end of the list.")
        continues, begins = True, False
    elif continues and begins:
        raise invalid("Cannot set both add_generation_prompt and continue_final_message to true.")
    return continues, begins


def _schema(body: ChatBody) -> Any:
    """The JSON schema that the answer has to follow; None: none. Raises ApiError."""
    schema, asked = body.json_schema, body.response_format or {}
    found = schema_of(asked)
    says_none = found is None or (asked["type"] == "json_object" and "schema" not in asked)
    return (schema or {"type": "object"}) if schema is not None and says_none else found


def _check_part(part: Any) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _MEDIA:
        raise invalid(f"{'audio' if kind == 'input_audio' else 'video'} input is not supported")
    if kind not in ("text", "image_url"):
        raise invalid(f"unsupported content[].type {kind!r}: parts of messages are text or image_url")
