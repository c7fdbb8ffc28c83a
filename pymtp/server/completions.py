"""OpenAI's /v1/chat/completions and /v1/completions.

Owns the form of their answers.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pymtp.chat.parser import ChatDelta, ChatMessage, ToolCall, ToolCallDelta
from pymtp.sampling.logprobs import TokenLogprobs

from . import reports
from .answer import LiveAnswer
from .chat import ChatReply
from .fields import ChatBody
from .respond import Reply, event
from .served_model import ServedModel


class ChatCompletionReply(ChatReply):
    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self._head = reports.head(served, "chatcmpl")

    def piece(self, answer: LiveAnswer, text: str) -> Iterable[bytes]:
        yield from super().piece(answer, text)
        if text and isinstance(answer.asked, ChatBody) and answer.asked.return_drafts:
            parts = answer.generation.parts(len(answer.text) - len(text))
            yield event(self._chunk(answer, {}) | {"drafts": parts, "timings": reports.timings(answer)})

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        self._begin(answer)
        yield event(self._chunk(answer, _OPENING) | reports.progress(answer, n_done))

    def close(self, answers: Sequence[LiveAnswer]) -> Iterable[bytes]:
        if answers[0].includes_usage:
            head = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": reports.usage(answers)}
            yield event(head | reports.extras(self._served, answers[0]))
        yield b"data: [DONE]\n\n"

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(answer) for answer in answers],
            "usage": reports.usage(answers),
            **reports.extras(self._served, answers[0]),
        }

    def _choice(self, answer: LiveAnswer) -> dict[str, Any]:
        message = answer.generation.message
        choice = {"finish_reason": _reason(answer, message), "index": answer.index, "message": _message(message)}
        return choice | self._shown(answer, answer.logprobs)

    def _opening(self, answer: LiveAnswer) -> Iterable[bytes]:
        yield event(self._chunk(answer, _OPENING))

    def _delta(self, answer: LiveAnswer, delta: ChatDelta, *, is_last: bool) -> Iterable[bytes]:
        data = self._chunk(answer, _added(delta))
        if is_last:
            data["choices"][0] |= self._shown(answer, answer.new_logprobs())
            data |= reports.timings_of_piece(answer)
        yield event(data)

    def _closing(self, answer: LiveAnswer, message: ChatMessage) -> Iterable[bytes]:
        data = self._chunk(answer, {}, _reason(answer, message))
        data["choices"][0] |= self._shown(answer, answer.new_logprobs())
        yield event(data if answer.includes_usage else data | reports.extras(self._served, answer))

    def _chunk(self, answer: LiveAnswer, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"finish_reason": reason, "index": answer.index, "delta": delta}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _shown(self, answer: LiveAnswer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {"logprobs": {"content": reports.logprobs_of(self._served, answer, entries)}} if entries else {}


_OPENING = {"role": "assistant", "content": None}


def _reason(answer: LiveAnswer, message: ChatMessage) -> str:
    return "tool_calls" if message.tool_calls and answer.is_complete else reports.finish_reason(answer)


def _message(message: ChatMessage) -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["content"] = message.content or None
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: ToolCall | ToolCallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _added(delta: ChatDelta) -> dict[str, Any]:
    if delta.reasoning:
        return {"reasoning_content": delta.reasoning}
    if delta.tool_call is None:
        return {"content": delta.content}
    part = delta.tool_call
    call = _call(part) if part.name else {"function": {"arguments": part.arguments}}
    return {"tool_calls": [{"index": part.index, **call}]}


class CompletionReply(Reply):
    def __init__(self, served: ServedModel) -> None:
        super().__init__(served)
        self._head = reports.head(served, "cmpl") | {"object": "text_completion"}

    def piece(self, answer: LiveAnswer, text: str) -> Iterable[bytes]:
        if text:
            shown = self._shown(answer, answer.new_logprobs())
            yield event(self._chunk(answer, text, shown) | reports.timings_of_piece(answer))

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        yield event(self._chunk(answer, "") | reports.progress(answer, n_done))

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        yield event(self._chunk(answer, "", None, reports.finish_reason(answer)) | reports.extras(self._served, answer))

    def close(self, answers: Sequence[LiveAnswer]) -> Iterable[bytes]:
        if answers[0].includes_usage:
            yield event({**self._head, "choices": [], "usage": reports.usage(answers)})
        yield b"data: [DONE]\n\n"

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        choices = [
            _choice(each, each.text, self._shown(each, each.logprobs), reports.finish_reason(each)) for each in answers
        ]
        more = {"usage": reports.usage(answers), **reports.extras(self._served, answers[0])}
        return {**self._head, "choices": choices, **more}

    def _chunk(self, answer: LiveAnswer, text: str, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [_choice(answer, text, logprobs, reason)]}

    def _shown(self, answer: LiveAnswer, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Log probabilities in OpenAI's form for completions, and in that of chats, as llama-server has it."""
        if not entries:
            return None
        content = reports.logprobs_of(self._served, answer, entries)
        key, top = ("prob", "top_probs") if answer.asked.post_sampling_probs else ("logprob", "top_logprobs")
        return {
            "content": content,
            "tokens": [each["token"] for each in content],
            "token_logprobs": [each[key] for each in content],
            "top_logprobs": [{other["token"]: other[key] for other in each[top]} for each in content],
        }


def _choice(answer: LiveAnswer, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": answer.index, "logprobs": logprobs, "finish_reason": reason}
