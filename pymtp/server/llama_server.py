"""llama-server's own endpoints for text: /completion, /infill, /tokenize, /detokenize, /apply-template.

Owns their answers, and the form of the prompt of /infill: that of Qwen2.5-Coder (https://arxiv.org/pdf/2409.12186), as
in llama-server. Generates nothing itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.loading.images import IMAGE_MARKER
from pymtp.loading.vocabulary import Vocabulary

from . import reports
from .answer import LiveAnswer
from .bodies import apart, read
from .chat import prepared, render
from .errors import invalid
from .fields import ChatBody, DetokenizeBody, InfillBody, InfillChunk, TokenizeBody
from .prompts import mixed_tokens
from .respond import Reply, event, json_response, respond
from .served_model import served_by

_SEPARATOR = "\n\n--- snippet ---\n\n"
"""Before a piece of another file, where the model has no token for that."""


async def infill(request: Request) -> Response:
    served, body = served_by(request), await read(request, InfillBody)
    n_predict = next((n for n in (body.n_predict, body.max_completion_tokens, body.max_tokens) if n is not None), -1)
    n_ctx = served.model.n_ctx
    n_answer = n_predict if 0 <= n_predict < n_ctx else n_ctx // 4
    n_max = max(n_ctx - n_answer - 1, 0)
    prompt = await apart(request, lambda: infill_prompt(body, served.vocabulary, n_max))
    body.input_extra = None
    answers = served.submit([prompt], body, n_probs=body.n_probs or None)
    return await respond(request, answers, LlamaServerReply(served))


def infill_prompt(body: InfillBody, vocabulary: Vocabulary, n_max: int) -> list[int]:
    """The prompt for what belongs between the two, of at most `n_max` tokens: those next to the gap are kept.

    Three of four are for what is before the gap, if that needs as many; other files get what is left. Raises ApiError.
    """
    special = vocabulary.infill
    missing = [name for name in ("prefix", "suffix", "middle") if getattr(special, name) < 0]
    if missing:
        raise invalid(f"Infill is not supported by this model: it has no token for {', '.join(missing)}")
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise invalid(f'"{name}" is required')
    begin = mixed_tokens(body.input_prefix, vocabulary, add_special=False, parse_special=False)
    end = mixed_tokens(body.input_suffix, vocabulary, add_special=False, parse_special=False)
    answer = vocabulary.tokenize(body.prompt or "", is_start=False)
    bos = [vocabulary.bos] if vocabulary.begins_with_bos and vocabulary.bos >= 0 else []
    n_left = max(n_max - len(bos) - len(answer) - 3, 0)
    begin = _last(begin, max(3 * n_left // 4, n_left - len(end)))
    end = end[: n_left - len(begin)]
    others = _last(_other_files(body.input_extra or (), vocabulary), n_left - len(begin) - len(end))
    return [*others, *bos, special.prefix, *begin, *answer, special.suffix, *end, special.middle]


def _other_files(chunks: Sequence[InfillChunk], vocabulary: Vocabulary) -> list[int]:
    """Pieces of other files, each after its name, and the name of the one with the gap."""
    special = vocabulary.infill

    def tokens(text: str) -> list[int]:
        return vocabulary.tokenize(text, is_start=False, parse_special=False)

    found = [special.repository, *tokens("myproject\n")] if special.repository >= 0 else []
    for chunk in chunks:
        head = [special.file, *tokens(f"{chunk.filename}\n")] if special.file >= 0 else tokens(_SEPARATOR)
        found += [*head, *tokens(chunk.text)]
    return [*found, special.file, *tokens("filename\n")] if special.file >= 0 else found


def _last(tokens: list[int], n: int) -> list[int]:
    return tokens[max(len(tokens) - n, 0) :]


async def tokenize(request: Request) -> Response:
    served, body = served_by(request), await read(request, TokenizeBody)
    return json_response({"tokens": await apart(request, lambda: _tokens(body, served.vocabulary))})


def _tokens(body: TokenizeBody, vocabulary: Vocabulary) -> list[Any]:
    if body.content is None:
        return []
    parses = body.parse_special is not False
    tokens = mixed_tokens(body.content, vocabulary, add_special=bool(body.add_special), parse_special=parses)
    if body.with_pieces:
        return [{"id": token, "piece": _piece(vocabulary.special_piece(token))} for token in tokens]
    return tokens


async def detokenize(request: Request) -> Response:
    served, body = served_by(request), await read(request, DetokenizeBody)
    text = await apart(request, lambda: served.vocabulary.detokenize(body.tokens or [], special=True))
    return json_response({"content": text})


async def apply_template(request: Request) -> Response:
    served, body = served_by(request), await read(request, ChatBody)
    prompt, _ = await prepared(request, body, render)
    return json_response({"prompt": prompt.text.replace(served.model.marker, IMAGE_MARKER)})


class LlamaServerReply(Reply):
    """Answers in the form of /completion. See respond.Reply."""

    def piece(self, answer: LiveAnswer, text: str) -> Iterable[bytes]:
        data = self._partial(answer, text, answer.new_tokens) | reports.timings_of_piece(answer)
        if logprobs := answer.generation.logprobs[len(answer.tokens) - len(answer.new_tokens) :]:
            data["completion_probabilities"] = reports.logprobs_of(self._served, answer, logprobs)
        yield event(data)

    def progress(self, answer: LiveAnswer, n_done: int) -> Iterable[bytes]:
        yield event(self._partial(answer, "", ()) | reports.progress(answer, n_done))

    def end(self, answer: LiveAnswer) -> Iterable[bytes]:
        yield event(reports.whole(self._served, answer))

    def whole(self, answers: Sequence[LiveAnswer]) -> Any:
        found = [reports.whole(self._served, answer) for answer in answers]
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
