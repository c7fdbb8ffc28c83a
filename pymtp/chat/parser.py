"""Takes an answer apart while it arrives: reasoning, content, tool calls.

llama.cpp parses; this keeps the message of one answer. Knows text; never tokens.
"""

from dataclasses import dataclass

from pymtp.binding.library import lib, made
from pymtp.chat.native import json_of
from pymtp.errors import BackendError


@dataclass(frozen=True)
class ToolCall:
    """A call of a function."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""
    id: str = ""


@dataclass(frozen=True)
class ChatMessage:
    """What an answer says."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ToolCallDelta:
    """What is added to a call: its id and name come once, with the first delta of the call; then arguments."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class ChatDelta:
    """What a piece of an answer adds to its message: one of the three."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


class ChatParser:
    """Parses one answer: `push` its pieces as they come, `finish` after the last.

    The deltas of all calls together make up `message`. `maker`: ChatPrompt.parser. One thread at a time.
    """

    def __init__(self, maker: object) -> None:
        self._native = made("chat_parser", lib.pymtp_chat_parser_init, maker)
        self.message = ChatMessage()
        """The message so far, without the part that it continues."""
        self._text = ""
        self._n_told = 0  # characters of the text that deltas have told

    def push(self, piece: str) -> list[ChatDelta]:
        """Take the next piece of the answer's text; return what it adds, which may be nothing yet."""
        return self._push(piece, is_partial=True) or []

    def finish(self, piece: str = "", *, is_cut: bool = False) -> list[ChatDelta]:
        """Take the last piece; return what is certain now. What is not an answer of this template becomes content.

        `is_cut`: the answer ended before its end, at a limit of tokens or a stop string.
        """
        deltas = self._push(piece, is_partial=is_cut)
        if deltas is None:
            unread = self._text[self._n_told :]
            deltas = [ChatDelta(unread)] if unread else []
            self._add(deltas)
        return deltas

    def _push(self, piece: str, *, is_partial: bool) -> list[ChatDelta] | None:
        """None: llama.cpp cannot read it."""
        self._text += piece
        data = piece.encode(errors="replace")
        try:
            found = json_of(list[ChatDelta], lib.pymtp_chat_parser_push, self._native, data, len(data), is_partial)
        except BackendError:
            return None
        if found:
            call = found[-1].tool_call
            last = (call.arguments or call.name) if call else found[-1].content or found[-1].reasoning
            at = self._text.rfind(last)
            self._n_told = len(self._text) if at < 0 else at + len(last)
        self._add(found)
        return found

    def _add(self, deltas: list[ChatDelta]) -> None:
        for delta in deltas:
            before, calls = self.message, [*self.message.tool_calls]
            if call := delta.tool_call:
                one = calls.pop(call.index) if call.index < len(calls) else ToolCall("", "")
                made = ToolCall(call.name or one.name, one.arguments + call.arguments, call.id or one.id)
                calls.insert(call.index, made)
            content, reasoning = before.content + delta.content, before.reasoning + delta.reasoning
            self.message = ChatMessage(content, reasoning, tuple(calls))
