"""What is new in a message as its text grows: pieces of content, of reasoning, of tool calls.

Knows messages; how they are read from text is the chat format's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .chat import Message, Rendered


class Delta(NamedTuple):
    """What came to a message."""

    content: str = ""
    reasoning_content: str = ""
    call: int | None = None
    """The tool call that it belongs to."""
    call_id: str = ""
    """With the name, in the first delta of a call."""
    name: str = ""
    arguments: str = ""

    def as_openai(self) -> dict[str, Any]:
        """The delta of a chunk."""
        if self.reasoning_content:
            return {"reasoning_content": self.reasoning_content}
        if self.call is None:
            return {"content": self.content}
        call: dict[str, Any] = {"index": self.call}
        if self.call_id:
            call |= {"id": self.call_id, "type": "function"}
        function = {"name": self.name, "arguments": self.arguments}
        call["function"] = {key: value for key, value in function.items() if value or key == "arguments"}
        return {"tool_calls": [call]}


class Parsing:
    """Follows a message."""

    def __init__(self, rendered: Rendered) -> None:
        self._rendered = rendered
        self.message = Message()
        """What has been told so far."""

    def follow(self, text: str) -> list[Delta]:
        """What is new now that this is the text; more of it will come."""
        return self._take(self._rendered.parse(text, is_partial=True))

    def finish(self, text: str) -> list[Delta]:
        """What is new now that the text is complete."""
        return self._take(self._rendered.parse(text, is_partial=False))

    def _take(self, message: Message) -> list[Delta]:
        before, self.message = self.message, message
        return list(_deltas(before, message))


def _deltas(before: Message, after: Message) -> Iterator[Delta]:
    if len(after.reasoning_content) > len(before.reasoning_content):
        yield Delta(reasoning_content=after.reasoning_content[len(before.reasoning_content) :])
    if len(after.content) > len(before.content):
        yield Delta(content=after.content[len(before.content) :])
    for i, call in enumerate(after.tool_calls):
        function = call["function"]
        if i >= len(before.tool_calls):
            yield Delta(call=i, call_id=call["id"], name=function["name"], arguments=function["arguments"])
            continue
        n_known = len(before.tool_calls[i]["function"]["arguments"])
        if len(function["arguments"]) > n_known:
            yield Delta(call=i, arguments=function["arguments"][n_known:])
