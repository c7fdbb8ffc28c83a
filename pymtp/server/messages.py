"""Anthropic's /v1/messages: its requests as chats, and its events.

Owns the form of its answers.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from secrets import token_hex
from typing import Any

import msgspec
from msgspec import Struct

from pymtp.chat.parser import ChatDelta, ChatMessage

from . import reports
from .answer import LiveAnswer
from .bodies import as_structure, refuse
from .chat import ChatReply, turned
from .errors import invalid
from .fields import OneAnswer
from .respond import event
from .served_model import ServedModel

N_TOKENS_DEFAULT = 4096
N_THINKING_DEFAULT = 10000
_STAMP = re.compile(r"\A(x-anthropic-billing-header:.*?cch=).{5};", re.DOTALL)
"""What Claude Code begins with: another in each request, so that nothing after it would be in the cache."""


class Block(Struct, kw_only=True):
    """A part of a message, of any type."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    source: dict[str, Any] | None = None
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: "str | list[Block] | None" = None


class Message(Struct):
    role: str
    content: str | list[Block]


class Tool(Struct):
    type: str | None = None
    name: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None


class MessagesBody(Struct, kw_only=True):
    """What of a request has another form than in a chat. Null stands for a field that is left out."""

    messages: list[Message]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    n: OneAnswer = None
    n_cmpl: OneAnswer = None


_UNSUPPORTED = dict.fromkeys(("container", "mcp_servers"), "nothing runs here but the model")


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A request as one of /v1/chat/completions. Raises ApiError."""
    asked = as_structure(body, MessagesBody)
    refuse(body, _UNSUPPORTED)
    given = asked.messages or [Message("user", "")]  # none are no error, as in llama-server
    system = _content(asked.system)
    if not isinstance(system, str):
        raise invalid("content of the type 'image' is not supported in a system prompt")
    before = [{"role": "system", "content": _STAMP.sub(r"\1fffff;", system)}] if system else []
    choice, output, thinking = asked.tool_choice or {}, asked.output_config or {}, asked.thinking or {}
    kind, thinks = choice.get("type"), thinking.get("type")
    fields = {
        "messages": [*before, *chain.from_iterable(map(_messages, given))],
        "tools": [_tool(tool) for tool in asked.tools or ()] or None,
        "tool_choice": "required" if kind == "any" else {"function": choice} if kind == "tool" else kind,
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
        "stop": asked.stop_sequences or None,
        "max_tokens": N_TOKENS_DEFAULT if body.get("max_tokens") is None else None,
        "response_format": output.get("format") or asked.output_format or None,
        "reasoning_effort": "none" if thinks == "disabled" else output.get("effort") or None,
        "thinking_budget_tokens": thinking.get("budget_tokens", N_THINKING_DEFAULT) if thinks == "enabled" else None,
    }
    return turned(body, MessagesBody, fields)


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        return {"type": tool.type}
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema or {}}
    return {"type": "function", "function": function}


def _messages(message: Message) -> Iterator[dict[str, Any]]:
    """The messages of a chat that a message stands for: results of tools are messages of their own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thinking = ""
    for block in message.content:
        if block.type == "thinking":
            thinking += block.thinking
        elif block.type == "tool_use":
            arguments = msgspec.json.encode(block.input or {}).decode()
            function = {"name": block.name, "arguments": arguments}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type == "tool_result":
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _content(block.content)})
        elif block.type != "redacted_thinking":  # which only Anthropic can read
            content.append(_part(block))
    yield from results  # they come before what the user adds
    if content or calls or thinking:
        said: dict[str, Any] = {"role": message.role, "content": content or ""}
        if calls:
            said["tool_calls"] = calls
        if thinking:
            said["reasoning_content"] = thinking
        yield said


def _part(block: Block) -> dict[str, Any]:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type != "image":
        raise invalid(f"content of the type {block.type!r} is not supported here")
    source = block.source or {}
    url = source.get("url", "")
    if source.get("type") == "base64":
        url = f"data:{source.get('media_type', '')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _content(content: str | list[Block] | None) -> str | list[dict[str, Any]]:
    """A system prompt or a result: its text, and the images after it, if there are any."""
    if not isinstance(content, list):
        return content or ""
    parts = [_part(block) for block in content]
    text = "".join(part.get("text", "") for part in parts)
    images = [part for part in parts if part["type"] == "image_url"]
    return [{"type": "text", "text": text}, *images] if images else text


class MessagesReply(ChatReply):
    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self._id = f"msg_{token_hex(16)}"
        self._open: tuple[str, int | None] | None = None  # the block that is being sent: its kind, and which call
        self._n_blocks = 0

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        yield _event("ping")

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        answer = answers[0]
        message = answer.generation.message
        content: list[dict[str, Any]] = []
        if message.reasoning:
            content.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
        if message.content:
            content.append({"type": "text", "text": message.content})
        for call in message.tool_calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            try:
                block["input"] = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
            except msgspec.DecodeError:  # cut: it is no input, and not lost
                content.append({"type": "text", "text": call.arguments})
            content.append(block)
        return {
            **self._head(),
            "content": content,
            **_end(answer, message),
            "usage": _usage(answer, len(answer.tokens)),
            **self._extras(answer),
        }

    def _extras(self, answer: LiveAnswer) -> dict[str, Any]:
        """What other answers have besides their API's, without the times, which llama-server leaves out here."""
        return {key: value for key, value in reports.extras(self._served, answer).items() if key != "timings"}

    def _opening(self, answer: LiveAnswer) -> Iterable[bytes]:
        yield _event("message_start", message=self._head() | {"usage": _usage(answer, 0)})

    def _closing(self, answer: LiveAnswer, message: ChatMessage) -> Iterable[bytes]:
        yield from self._close_block()
        usage = {"output_tokens": len(answer.tokens)}
        yield _event("message_delta", delta=_end(answer, message), usage=usage, **self._extras(answer))
        yield _event("message_stop")

    def _delta(self, answer: LiveAnswer, delta: ChatDelta, *, is_last: bool) -> Iterable[bytes]:
        if delta.reasoning:
            yield from self._open_block({"type": "thinking", "thinking": ""})
            yield self._block_delta({"type": "thinking_delta", "thinking": delta.reasoning})
        elif delta.tool_call:
            call = delta.tool_call
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield from self._open_block(block, call.index)
            if call.arguments:
                yield self._block_delta({"type": "input_json_delta", "partial_json": call.arguments})
        elif delta.content:
            yield from self._open_block({"type": "text", "text": ""})
            yield self._block_delta({"type": "text_delta", "text": delta.content})

    def _open_block(self, block: dict[str, Any], call: int | None = None) -> Iterator[bytes]:
        if self._open == (block["type"], call):
            return
        yield from self._close_block()
        self._open = block["type"], call
        yield _event("content_block_start", index=self._n_blocks, content_block=block)

    def _close_block(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open[0] == "thinking":
            yield self._block_delta({"type": "signature_delta", "signature": ""})
        yield _event("content_block_stop", index=self._n_blocks)
        self._open = None
        self._n_blocks += 1

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._n_blocks, delta=delta)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._served.name,
            "stop_reason": None,
            "stop_sequence": None,
        }


def _usage(answer: LiveAnswer, n_output: int) -> dict[str, int]:
    generation = answer.generation
    return {
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": generation.n_cached,
        "input_tokens": generation.n_prompt - generation.n_cached,
        "output_tokens": n_output,
    }


def _end(answer: LiveAnswer, message: ChatMessage) -> dict[str, Any]:
    stop = answer.generation.stop_text
    stop = stop if stop in answer.generation.params.stop else None  # else it is the template's, which ends a turn
    reason = "tool_use" if message.tool_calls else "stop_sequence" if stop else "end_turn"
    return {"stop_reason": reason if answer.is_complete else "max_tokens", "stop_sequence": stop}


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data})
