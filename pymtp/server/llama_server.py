"""llama-server's own endpoints for text: /completion, /infill, /tokenize, /detokenize, /apply-template.

Owns their answers. Generates nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.loading.images import IMAGE_MARKER
from pymtp.loading.vocabulary import Vocabulary

from . import reports
from .answer import LiveAnswer, Piece
from .bodies import apart, read
from .chat import prepared, render
from .fields import ChatBody, CompletionBody, DetokenizeBody, InfillBody, TokenizeBody
from .infill import infill_prompt
from .prompts import mixed_tokens, read_prompts
from .respond import Reply, event, json_response, respond
from .state import state_of


async def completion(request: Request) -> Response:
    """POST /completion"""
    state, body = state_of(request), await read(request, CompletionBody)
    prompts = await read_prompts(request, body.prompt)
    answers = state.submit(prompts, body, n_probs=body.n_probs or body.logprobs or 0)
    return await respond(request, answers, LlamaServerReply(state))


async def infill(request: Request) -> Response:
    """POST /infill"""
    state, body = state_of(request), await read(request, InfillBody)
    n_predict = next((n for n in (body.n_predict, body.max_completion_tokens, body.max_tokens) if n is not None), -1)
    n_ctx = state.model.n_ctx
    n_answer = n_predict if 0 <= n_predict < n_ctx else n_ctx // 4
    n_max = max(n_ctx - n_answer - 1, 0)
    prompt = await apart(request, lambda: infill_prompt(body, state.vocabulary, n_max))
    answers = state.submit([prompt], body, n_probs=body.n_probs or 0)
    return await respond(request, answers, LlamaServerReply(state))


async def tokenize(request: Request) -> Response:
    """POST /tokenize"""
    state, body = state_of(request), await read(request, TokenizeBody)
    return json_response({"tokens": await apart(request, lambda: _tokens(body, state.vocabulary))})


def _tokens(body: TokenizeBody, vocabulary: Vocabulary) -> list[Any]:
    if body.content is None:
        return []
    parses = body.parse_special is not False
    tokens = mixed_tokens(body.content, vocabulary, add_special=bool(body.add_special), parse_special=parses)
    if body.with_pieces:
        return [{"id": token, "piece": _piece(vocabulary.special_piece(token))} for token in tokens]
    return tokens


async def detokenize(request: Request) -> Response:
    """POST /detokenize"""
    state, body = state_of(request), await read(request, DetokenizeBody)
    text = await apart(request, lambda: state.vocabulary.detokenize(body.tokens or [], special=True))
    return json_response({"content": text})


async def apply_template(request: Request) -> Response:
    """POST /apply-template"""
    state, body = state_of(request), await read(request, ChatBody)
    text = (await prepared(request, body, render)).prompt.text
    return json_response({"prompt": text.replace(state.model.marker, IMAGE_MARKER)})


class LlamaServerReply(Reply):
    """Answers in the form of /completion. See respond.Reply."""

    def piece(self, answer: LiveAnswer, piece: Piece) -> Iterable[bytes]:
        """See Reply."""
        data = self._partial(answer, piece.text, piece.tokens) | reports.timings_of_piece(answer)
        if piece.logprobs:
            data["completion_probabilities"] = reports.logprobs_of(self._state, answer, piece.logprobs)
        yield event(data)

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        """See Reply."""
        yield event(self._partial(answer, "", ()) | reports.progress(answer, n_done))

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        """See Reply."""
        yield event(reports.whole(self._state, answer))

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        """See Reply."""
        found = [reports.whole(self._state, answer) for answer in answers]
        return found[0] if len(found) == 1 else found

    def _partial(self, answer: LiveAnswer, text: str, tokens: Sequence[int]) -> dict[str, Any]:
        return {
            "index": answer.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": answer.generation.slot,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(answer.prompt),
        }


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
