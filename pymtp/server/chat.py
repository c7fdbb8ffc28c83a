"""From a chat request to a prompt, and from text to a message: the one place that knows how templates are applied.

Owns what a chat format decides: prompt, constraints, how text is read. Knows messages and text; no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .context import Context
from .errors import invalid, unsupported
from .fields import ChatBody


@dataclass
class Message:
    """What the model has said, taken apart."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def as_openai(self) -> dict[str, Any]:
        """The message of a chat completion."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        elif message["content"] is None:
            message["content"] = ""
        return message


@dataclass(frozen=True)
class Rendered:
    """A chat request as the model gets it."""

    prompt: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of the generation."""

    def parse(self, text: str, *, is_partial: bool) -> Message:
        """What the model has said."""
        return Message(text)


class Chat:
    """Applies the chat template of a model."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def render(self, body: ChatBody) -> Rendered:
        """The prompt of a request. Raises ApiError."""
        if body.tools:
            raise unsupported("tools are not supported")
        messages = _checked(body.messages)
        schema = schema_of(body)
        options = {} if schema is None else {"json_schema": schema}
        return Rendered(self._context.model.chat_prompt(messages), options)


def schema_of(body: ChatBody) -> Any:
    """The JSON schema that the answer has to follow; None: none. Raises ApiError."""
    schema = body.json_schema
    if schema is not None and body.grammar:
        raise invalid("Cannot use both json_schema and grammar")
    asked = body.response_format or {}
    kind = asked.get("type")
    if kind == "json_object":
        schema = asked.get("schema", {} if schema is None else schema)
    elif kind == "json_schema":
        wrapped = asked.get("json_schema") or {}
        schema = wrapped.get("schema", {}) if isinstance(wrapped, dict) else wrapped
    elif kind not in (None, "", "text"):
        raise invalid(f'response_format type must be one of "text", "json_object" or "json_schema", not {kind!r}')
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise invalid("the schema of response_format must be an object")
    return schema or {"type": "object"}


def _checked(messages: Any) -> list[dict[str, Any]]:
    if messages is None:
        raise invalid("'messages' is required")
    if not isinstance(messages, list):
        raise invalid("Expected 'messages' to be an array")
    return [_message(each) for each in messages]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid("each message must be an object with a role")
    content = message.get("content")
    if content is None and message["role"] != "assistant":
        raise invalid("All non-assistant messages must contain 'content'")
    if isinstance(content, list):
        content = "\n".join(_text(part) for part in content)
    if not isinstance(content, str):
        raise invalid("Expected 'content' to be a string or an array")
    return {**message, "content": content}


def _text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "input_audio", "input_video", "video_url"):
        raise unsupported(f"{str(kind).partition('_')[0]} input is not supported: the model reads text only")
    if kind != "text" or not isinstance(part.get("text"), str):
        raise invalid("unsupported content[].type")
    return str(part["text"])
