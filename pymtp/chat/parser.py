"""Takes an answer apart while it arrives: reasoning, content, tool calls.

llama.cpp parses; this keeps the message of one answer. Knows text; never tokens.
"""

from dataclasses import dataclass, replace

from pymtp.binding.library import json_of, lib, made
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
        self._begun = self._read()  # what the prompt has of the message
        self._text = ""
        self._n_told = 0  # characters of the text that deltas have told
        self._unread = ""

    def push(self, piece: str) -> list[ChatDelta]:
        """Take the next piece of the answer's text; return what it adds, which may be nothing yet."""
        return self._push(piece, is_partial=True) or []

    def finish(self, piece: str = "", *, is_cut: bool = False) -> list[ChatDelta]:
        """Take the last piece; return what is certain now. What is not an answer of this template becomes content.

        `is_cut`: the answer ended before its end, at a limit of tokens or a stop string.
        """
        deltas = self._push(piece, is_partial=is_cut)
        if deltas is None:
            self._unread = self._text[self._n_told :]
            return [ChatDelta(self._unread)] if self._unread else []
        return deltas

    @property
    def message(self) -> ChatMessage:
        """The message so far, without the part that it continues."""
        message, begun = self._read(), self._begun
        content = message.content.removeprefix(begun.content) + self._unread
        return replace(message, content=content, reasoning=message.reasoning.removeprefix(begun.reasoning))

    def _read(self) -> ChatMessage:
        return json_of(ChatMessage, lib.pymtp_chat_parser_message, self._native)

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
        return found
