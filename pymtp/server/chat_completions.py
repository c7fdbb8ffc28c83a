"""OpenAI's /v1/chat/completions.

Owns the form of its answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.chat.parser import AnswerParser, ChatDelta, ChatMessage, ToolCall
from pymtp.sampling.logprobs import TokenLogprobs

from . import reports
from .answer import LiveAnswer, Piece
from .bodies import read
from .chat import Rendered, answer_chat, count_tokens_of
from .fields import ChatBody
from .ids import new_id, random_name
from .respond import event, json_response
from .state import ServerState


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions"""
    return await answer_chat(request, await read(request, ChatBody), ChatReply)


async def count_chat_tokens(request: Request) -> Response:
    """POST /v1/chat/completions/input_tokens"""
    n = await count_tokens_of(request, await read(request, ChatBody))
    return json_response({"object": "response.input_tokens", "input_tokens": n})


class ChatReply:
    """Answers as chat completions. See respond.Reply."""

    def __init__(self, state: ServerState, rendered: Rendered) -> None:
        self._state, self._rendered = state, rendered
        self._head = {
            "id": new_id("chatcmpl"),
            "created": int(time.time()),
            "model": state.name,
            "system_fingerprint": state.fingerprint,
        }
        self._parsers: dict[int, AnswerParser] = {}  # by answer
        self._logprobs: dict[int, list[TokenLogprobs]] = {}  # by answer, those without text so far

    def piece(self, answer: LiveAnswer, piece: Piece) -> Iterable[bytes]:
        """See Reply."""
        held = self._logprobs.setdefault(answer.index, [])
        held += piece.logprobs
        if self._begin(answer):
            yield event(self._chunk(answer, {"role": "assistant", "content": None}))
        yield from self._events(answer, self._parsers[answer.index].push(piece.text), held)
        if answer.options.return_drafts and piece.text:
            parts = answer.generation.parts(len(answer.text) - len(piece.text))
            yield event(self._chunk(answer, {}) | {"drafts": parts, "timings": reports.timings(answer)})

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        """See Reply."""
        self._begin(answer)
        data = self._chunk(answer, {"role": "assistant", "content": None})
        data["prompt_progress"] = reports.progress(answer, n_done)
        if answer.options.timings_per_token:
            data["timings"] = reports.timings_of_prompt(answer, n_done)
        yield event(data)

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        """See Reply."""
        if self._begin(answer):
            yield event(self._chunk(answer, {"role": "assistant", "content": None}))
        parser = self._parsers[answer.index]
        yield from self._events(answer, parser.finish(is_cut=not answer.is_complete), [])
        data = self._chunk(answer, {}, self._reason(answer, has_calls=bool(parser.message.tool_calls)))
        yield event(data if answer.options.include_usage else data | reports.extras(self._state, answer))

    def close(self, answers: Sequence[LiveAnswer]) -> Iterable[bytes]:
        """See Reply."""
        if answers[0].options.include_usage:
            head = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": reports.usage(answers)}
            yield event(head | reports.extras(self._state, answers[0]))
        yield b"data: [DONE]\n\n"

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        """See Reply."""
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(answer) for answer in answers],
            "usage": reports.usage(answers),
            **reports.extras(self._state, answers[0]),
        }

    def _choice(self, answer: LiveAnswer) -> dict[str, Any]:
        message = self._rendered.message(answer.text, is_cut=not answer.is_complete)
        choice: dict[str, Any] = {
            "finish_reason": self._reason(answer, has_calls=bool(message.tool_calls)),
            "index": answer.index,
            "message": _message(message),
        }
        if answer.generation.logprobs:
            choice["logprobs"] = {"content": self._shown(answer, answer.generation.logprobs)}
        return choice

    def _begin(self, answer: LiveAnswer) -> bool:
        """Whether this is the first event of the answer."""
        if answer.index in self._parsers:
            return False
        self._parsers[answer.index] = self._rendered.prompt.parse()
        return True

    def _events(
        self, answer: LiveAnswer, deltas: Sequence[ChatDelta], logprobs: list[TokenLogprobs]
    ) -> Iterable[bytes]:
        for i, delta in enumerate(deltas):
            data = self._chunk(answer, _delta(delta))
            if i == len(deltas) - 1:
                if logprobs:
                    data["choices"][0]["logprobs"] = {"content": self._shown(answer, logprobs)}
                    logprobs.clear()
                if answer.options.timings_per_token:
                    data["timings"] = reports.timings(answer)
            yield event(data)

    def _chunk(self, answer: LiveAnswer, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"finish_reason": reason, "index": answer.index, "delta": delta}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _reason(self, answer: LiveAnswer, *, has_calls: bool) -> str:
        reason = reports.finish_reason(answer)
        return "tool_calls" if has_calls and reason == "stop" else reason

    def _shown(self, answer: LiveAnswer, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        return reports.logprobs_of(entries, self._state.vocabulary, of_chain=answer.options.of_chain)


def _message(message: ChatMessage) -> dict[str, Any]:
    """The message of a chat completion."""
    found: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["content"] = message.content or None
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: ToolCall) -> dict[str, Any]:
    """A tool call of a message."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id or random_name(), "type": "function", "function": function}


def _delta(delta: ChatDelta) -> dict[str, Any]:
    """The delta of a chunk."""
    if delta.reasoning:
        return {"reasoning_content": delta.reasoning}
    if delta.tool_call is None:
        return {"content": delta.content}
    part = delta.tool_call
    call: dict[str, Any] = {"index": part.index}
    function = {"arguments": part.arguments}
    if part.name:
        call |= {"id": part.id or random_name(), "type": "function"}
        function = {"name": part.name, "arguments": part.arguments}
    return {"tool_calls": [call | {"function": function}]}
