"""Prompts as requests write them: text, token ids, both mixed, a text with images, or a list of those.

Knows text, token ids and files of images; no form of an answer.
"""

from base64 import b64decode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.loading.vocabulary import Vocabulary
from pymtp.model import Model

from .bodies import apart, read
from .errors import invalid
from .fields import CompletionBody
from .respond import Reply, respond
from .served_model import ServedModel, n_image_rows, served_by


async def answer_prompts(reply: Callable[[ServedModel], Reply], request: Request) -> Response:
    """The response to a request of /completion or /v1/completions, in the words of `reply`. Raises ApiError."""
    served, body = served_by(request), await read(request, CompletionBody)
    value, work = body.prompt, partial(prompts_of, body.prompt, served)
    has_images = any(map(_has_images, value if isinstance(value, list) else [value]))
    prompts = await (served.decode(work) if has_images else apart(request, work))
    body.prompt = None
    answers = served.submit(prompts, body, n_probs=body.n_probs or body.logprobs)
    return await respond(request, answers, reply(served))


def prompts_of(value: Any, served: ServedModel) -> list[Sequence[int]]:
    """The token ids of each prompt. Raises ApiError."""
    if value is None:
        raise invalid('"prompt" is required')
    parts = value if isinstance(value, list) else []
    # texts and ids together are parts of one prompt; texts alone are several prompts
    is_one = any(isinstance(part, int) for part in parts) and all(isinstance(part, (int, str)) for part in parts)
    values = parts if parts and not is_one else [value]
    served.check_number(len(values))
    prompts: list[Sequence[int]] = []
    n_rows, n_rows_max = 0, served.settings.image_rows_max
    for each in values:
        prompts.append(_tokens(each, served.model))
        n_more = n_image_rows(prompts[-1:])
        if n_rows and n_more and n_rows + n_more > n_rows_max:  # before the rest of the images is decoded
            raise invalid(f"the images of all prompts have more than {n_rows_max} tokens together")
        n_rows += n_more
    return prompts


def mixed_tokens(value: Any, vocabulary: Vocabulary, *, add_special: bool, parse_special: bool = True) -> list[int]:
    """The token ids of a text, or of a list of texts and ids. Raises ApiError."""
    parts = value if isinstance(value, list) else [value]
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            is_start = add_special and i == 0
            tokens += vocabulary.tokenize(part, is_start=is_start, parse_special=parse_special)
        elif isinstance(part, int) and not isinstance(part, bool):
            if not 0 <= part < vocabulary.size:
                raise invalid(f"token ids in a prompt must be below {vocabulary.size}")
            tokens.append(part)
        else:
            raise invalid("a prompt must be a string, token ids, or a list of both")
    return tokens


def _has_images(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("multimodal_data"))


def _tokens(value: Any, model: Model) -> Sequence[int]:
    if _has_images(value):
        return _with_images(value.get("prompt_string"), value["multimodal_data"], model)
    if isinstance(value, dict):
        value = value.get("prompt_string")
    tokens = mixed_tokens(value, model.vocabulary, add_special=True)
    if not tokens:
        raise invalid("the prompt is empty: it needs at least one token")
    return tokens


def _with_images(text: Any, files: Any, model: Model) -> Sequence[int]:
    """The prompt of a text that has a marker for each image. Raises ApiError, and what Model.image_prompt raises."""
    if model.projector is None:
        raise invalid("multimodal_data is not supported: the server was started without --mmproj")
    if not isinstance(text, str):
        raise invalid("prompt_string must be a string, where there is multimodal_data")
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise invalid("multimodal_data must be a list of images in base64")
    try:
        images = [b64decode(file, validate=True) for file in files]
    except ValueError as error:
        raise invalid(f"multimodal_data must be images in base64 ({error})") from None
    return model.image_prompt(text, images)
