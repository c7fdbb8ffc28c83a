"""OpenAI's /v1/completions.

Owns the form of its answers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.sampling.logprobs import TokenLogprobs

from . import reports
from .answer import LiveAnswer, Piece
from .prompts import answer_prompts
from .respond import Reply, event
from .state import ServerState


async def completions(request: Request) -> Response:
    return await answer_prompts(request, CompletionReply)


class CompletionReply(Reply):
    """Answers as text completions."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(state)
        self._head = reports.head(state, "cmpl") | {"object": "text_completion"}
        self._held = defaultdict[int, list[TokenLogprobs]](list)  # by answer, those without text so far

    def piece(self, answer: LiveAnswer, piece: Piece) -> Iterable[bytes]:
        held = self._held[answer.index]
        held += piece.logprobs
        if not piece.text:
            return
        yield event(self._chunk(answer, piece.text, self._shown(answer, held)) | reports.timings_of_piece(answer))
        held.clear()

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        yield event(self._chunk(answer, "") | reports.progress(answer, n_done))

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        data = self._chunk(answer, "", reason=reports.finish_reason(answer)) | reports.extras(self._state, answer)
        if answer.options.include_usage:
            data["usage"] = reports.usage([answer])
        yield event(data)

    def close(self, answers: Sequence[LiveAnswer]) -> Iterable[bytes]:
        yield b"data: [DONE]\n\n"

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        choices = [
            _choice(each, each.text, self._shown(each, each.generation.logprobs), reports.finish_reason(each))
            for each in answers
        ]
        more = {"usage": reports.usage(answers), **reports.extras(self._state, answers[0])}
        return {**self._head, "choices": choices, **more}

    def _chunk(self, answer: LiveAnswer, text: str, logprobs: Any = None, reason: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [_choice(answer, text, logprobs, reason)]}

    def _shown(self, answer: LiveAnswer, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Log probabilities in OpenAI's form for completions, and in that of chats, as llama-server has it."""
        if not entries:
            return None
        content = reports.logprobs_of(self._state, answer, entries)
        key, top = ("prob", "top_probs") if answer.options.of_chain else ("logprob", "top_logprobs")
        return {
            "content": content,
            "tokens": [each["token"] for each in content],
            "token_logprobs": [each[key] for each in content],
            "top_logprobs": [{other["token"]: other[key] for other in each[top]} for each in content],
        }


def _choice(answer: LiveAnswer, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": answer.index, "logprobs": logprobs, "finish_reason": reason}
