"""OpenAI's /v1/responses: its requests as chats, and its events.

Owns the form of its answers. Keeps no responses: each request brings the whole conversation.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from typing import Any, Literal

from msgspec import Struct

from pymtp.chat.parser import ChatDelta, ChatMessage, ToolCallDelta

from . import reports
from .answer import LiveAnswer
from .bodies import as_structure, refuse
from .chat import ChatReply, turned
from .errors import invalid
from .fields import ChatBody, OneAnswer
from .respond import event
from .served_model import ServedModel


class Part(Struct, kw_only=True):
    """A part of what an item says, of any type."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: Any = None


class Item(Struct, kw_only=True):
    """An item of the conversation, of any type: a message has a role."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    arguments: str | None = None
    call_id: str | None = None
    output: str | list[Part] | None = None


class ResponsesBody(Struct, kw_only=True):
    """What of a request has another form than in a chat. Null stands for a field that is left out."""

    input: str | list[Item]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    max_output_tokens: int | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    n: OneAnswer = None
    n_cmpl: OneAnswer = None


_UNSUPPORTED = {
    "previous_response_id": "send the whole conversation as input",
    "conversation": "nothing is stored",
    "background": "an answer is made while the client waits",
    "prompt": "write it out as input",
}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A request as one of /v1/chat/completions. Raises ApiError."""
    asked = as_structure(body, ResponsesBody)
    refuse(body, _UNSUPPORTED)
    messages: list[dict[str, Any]] = []
    if asked.instructions:
        messages.append({"role": "system", "content": asked.instructions})
    if isinstance(asked.input, str):
        messages.append({"role": "user", "content": asked.input})
    else:
        for item in asked.input:
            _add_item(messages, item)
    has_logprobs = "message.output_text.logprobs" in (asked.include or ())
    fields = {
        "messages": messages,
        "tools": [_tool(tool) for tool in asked.tools or ()] or None,
        "max_tokens": asked.max_output_tokens,
        "reasoning_effort": (asked.reasoning or {}).get("effort") or None,
        "response_format": (asked.text or {}).get("format") or None,
        "logprobs": has_logprobs,
        "top_logprobs": (body.get("top_logprobs") or 0) if has_logprobs else 0,
    }
    return turned(body, ResponsesBody, fields)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _tool_as_asked(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool of a response that `_tool` has made one of a chat."""
    return {"type": "function", **tool["function"]} if tool.get("type") == "function" else tool


def _add_item(messages: list[dict[str, Any]], item: Item) -> None:
    """Add an item of the input: what the assistant did in one turn is one message."""
    if item.role in ("user", "system", "developer"):
        role = "system" if item.role == "developer" else item.role
        messages.append({"role": role, "content": _content(item.content)})
    elif item.role == "assistant":
        _assistant(messages).setdefault("content", []).extend(_content(item.content))
    elif item.type == "function_call":
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif item.type == "function_call_output":
        content = item.output if isinstance(item.output, str) else _content(item.output)
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
    elif item.type == "reasoning":
        parts = item.content if isinstance(item.content, list) else []
        _assistant(messages)["reasoning_content"] = "".join(part.text for part in parts)
    else:
        raise invalid(f"an item of 'input' has the type {item.type!r}, which is not supported")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _content(content: str | list[Part] | None) -> list[dict[str, Any]]:
    if content is None:
        raise invalid("'content' must be a string or an array")
    return [{"type": "text", "text": content}] if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if part.type in ("input_text", "output_text", "text", "refusal"):
        return {"type": "text", "text": part.refusal if part.type == "refusal" else part.text}
    if part.type == "input_image":
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    raise invalid(f"content of the type {part.type!r} is not supported")


class ResponsesReply(ChatReply):
    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self._id = f"resp_{token_hex(16)}"
        self._ids = {"reasoning": f"rs_{token_hex(16)}", "message": f"msg_{token_hex(16)}"}
        self._created = int(time.time())
        self._open: dict[str, dict[str, Any]] = {}  # the items that were begun, and how events name them
        self._n_events = 0

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        yield from self._begin(answer)
        done = reports.progress(answer, n_done)["prompt_progress"]
        yield self._event("response.in_progress", response=self._head(answer, "in_progress"), prompt_progress=done)

    def _closing(self, answer: LiveAnswer, message: ChatMessage) -> Iterable[bytes]:
        output = self._output(answer, message)
        for index, item in enumerate(output):
            yield from self._done(index, item)
        response = self._whole(answer, output)
        yield self._event("response.completed", response=response, **reports.extras(self._served, answer))

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        response = self._whole(answers[0], self._output(answers[0], answers[0].generation.message))
        return response | reports.extras(self._served, answers[0])

    def _opening(self, answer: LiveAnswer) -> Iterable[bytes]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._head(answer, "in_progress"))

    def _delta(self, answer: LiveAnswer, delta: ChatDelta, *, is_last: bool) -> Iterable[bytes]:
        more = reports.timings_of_piece(answer) if is_last else {}
        if delta.reasoning:
            if "reasoning" not in self._open:
                yield self._add("reasoning", self._item("reasoning", [], "in_progress"))
            where = self._open["reasoning"] | {"content_index": 0}
            yield self._event("response.reasoning_text.delta", delta=delta.reasoning, **where, **more)
        elif delta.tool_call:
            yield from self._call_delta(delta.tool_call, more)
        elif delta.content:
            if "message" not in self._open:
                yield self._add("message", self._item("message", [], "in_progress"))
                part = {"type": "output_text", "text": "", "annotations": []}
                yield self._event("response.content_part.added", part=part, content_index=0, **self._open["message"])
            where = self._open["message"] | {"content_index": 0}
            yield self._event("response.output_text.delta", delta=delta.content, logprobs=[], **where, **more)

    def _call_delta(self, call: ToolCallDelta, more: dict[str, Any]) -> Iterator[bytes]:
        name = f"call {call.index}"
        if name not in self._open:
            yield self._add(name, _call_item(call.id, call.name, "", "in_progress"))
        if call.arguments:
            where = self._open[name]
            yield self._event("response.function_call_arguments.delta", delta=call.arguments, **where, **more)

    def _done(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        where = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            part = item["content"][0]
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._event("response.output_text.done", **text, content_index=0, **where)
            yield self._event("response.content_part.done", part=part, content_index=0, **where)
        elif item["type"] == "function_call":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"], **where)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _output(self, answer: LiveAnswer, message: ChatMessage) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if message.reasoning:
            content = [{"type": "reasoning_text", "text": message.reasoning}]
            items.append(self._item("reasoning", content, "completed") | {"encrypted_content": ""})
        if message.content:
            logprobs = reports.logprobs_of(self._served, answer, answer.logprobs)
            part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": logprobs}
            items.append(self._item("message", [part], "completed"))
        return items + [_call_item(call.id, call.name, call.arguments, "completed") for call in message.tool_calls]

    def _whole(self, answer: LiveAnswer, output: list[dict[str, Any]]) -> dict[str, Any]:
        usage = reports.usage([answer])
        thought = "".join(item["content"][0]["text"] for item in output if item["type"] == "reasoning")
        n_thought = len(self._served.model.vocabulary.tokenize(thought, is_start=False))  # nearly those that it was
        n_thought = min(n_thought, usage["completion_tokens"])
        # clients wait for the event "completed": a text that was cut is completed, too
        details = None if answer.is_complete else {"reason": "max_output_tokens"}
        return {
            **self._head(answer, "completed"),
            "completed_at": int(time.time()),
            "output": output,
            "incomplete_details": details,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens_details": {"reasoning_tokens": n_thought},
            },
        }

    def _head(self, answer: LiveAnswer, status: str) -> dict[str, Any]:
        asked = answer.asked
        assert isinstance(asked, ChatBody)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._served.name,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "tool_choice": asked.tool_choice or "auto",
            "tools": [_tool_as_asked(tool) for tool in asked.tools or ()],
        }

    def _item(self, kind: Literal["reasoning", "message"], content: list[Any], status: str) -> dict[str, Any]:
        more: dict[str, Any] = {"summary": []} if kind == "reasoning" else {"role": "assistant"}
        return {"id": self._ids[kind], "type": kind, "content": content, "status": status, **more}

    def _add(self, name: str, item: dict[str, Any]) -> bytes:
        index = len(self._open)
        self._open[name] = {"item_id": item["id"], "output_index": index}
        return self._event("response.output_item.added", output_index=index, item=item)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._n_events += 1
        return event({"type": kind, "sequence_number": self._n_events - 1, **data})


def _call_item(name: str, function: str, arguments: str, status: str) -> dict[str, Any]:
    ids = {"id": f"fc_{name}", "call_id": f"call_{name}", "status": status}
    return {"type": "function_call", "name": function, "arguments": arguments, **ids}
