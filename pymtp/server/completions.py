"""OpenAI's /v1/completions.

Owns the form of its answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.sampling.logprobs import TokenLogprobs

from . import reports
from .answer import LiveAnswer, Piece
from .bodies import read
from .fields import CompletionBody
from .ids import new_id
from .prompts import read_prompts
from .respond import event, respond
from .state import ServerState, state_of


async def completions(request: Request) -> Response:
    """POST /v1/completions"""
    state, body = state_of(request), await read(request, CompletionBody)
    prompts = await read_prompts(request, body.prompt)
    answers = state.submit(prompts, body, n_probs=body.n_probs or body.logprobs or 0)
    return await respond(request, state.served, answers, CompletionReply(state))


class CompletionReply:
    """Answers as text completions. See respond.Reply."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": state.name,
            "system_fingerprint": state.fingerprint,
        }
        self._logprobs: dict[int, list[TokenLogprobs]] = {}  # by answer, those without text so far

    def piece(self, answer: LiveAnswer, piece: Piece) -> Iterable[bytes]:
        """See Reply."""
        held = self._logprobs.setdefault(answer.index, [])
        held += piece.logprobs
        if not piece.text:
            return
        data = self._chunk(answer, piece.text, self._shown(answer, held), None)
        held.clear()
        if answer.options.timings_per_token:
            data["timings"] = reports.timings(answer)
        yield event(data)

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        """See Reply."""
        data = self._chunk(answer, "", None, None) | {"prompt_progress": reports.progress(answer, n_done)}
        if answer.options.timings_per_token:
            data["timings"] = reports.timings_of_prompt(answer, n_done)
        yield event(data)

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        """See Reply."""
        data = self._chunk(answer, "", None, reports.finish_reason(answer)) | reports.extras(self._state, answer)
        if answer.options.include_usage:
            data["usage"] = reports.usage([answer])
        yield event(data)

    def close(self, answers: Sequence[LiveAnswer]) -> Iterable[bytes]:
        """See Reply."""
        yield b"data: [DONE]\n\n"

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        """See Reply."""
        choices = [
            {
                "text": answer.text,
                "index": answer.index,
                "logprobs": self._shown(answer, answer.generation.logprobs),
                "finish_reason": reports.finish_reason(answer),
            }
            for answer in answers
        ]
        return {
            **self._head,
            "choices": choices,
            "usage": reports.usage(answers),
            **reports.extras(self._state, answers[0]),
        }

    def _chunk(self, answer: LiveAnswer, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"text": text, "index": answer.index, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [choice]}

    def _shown(self, answer: LiveAnswer, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """Log probabilities in OpenAI's form for completions, and in that of chats, as llama-server has it."""
        if not entries:
            return None
        content = reports.logprobs_of(entries, self._state.vocabulary, of_chain=answer.options.of_chain)
        key, top = ("prob", "top_probs") if answer.options.of_chain else ("logprob", "top_logprobs")
        return {
            "content": content,
            "tokens": [each["token"] for each in content],
            "token_logprobs": [each[key] for each in content],
            "top_logprobs": [{other["token"]: other[key] for other in each[top]} for each in content],
        }
