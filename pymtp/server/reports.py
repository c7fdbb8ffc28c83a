"""What answers say of themselves: counts, times, settings, probabilities. In llama-server's words.

Knows finished and running answers; sends nothing.
"""

import math
import time
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from pymtp.errors import FLOAT_MAX
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.logprobs import TokenLogprobs
from pymtp.serving.params import GenerationParams
from pymtp.version import __version__

from .answer import LiveAnswer
from .fields import DRAFTING, SAMPLING
from .parameters import RANDOM_SEED
from .served_model import ServedModel

_STOP_TYPES = {"eog": "eos", "stop": "word", "length": "limit", "context": "limit", "blocked": "blocked", None: "none"}
_MISSING = object()
BUILD = f"b{__version__}-pymtp"
"""Which pymtp this is. Clients of llama-server expect a build number: b, and digits."""
LEAST_LOGPROB = -FLOAT_MAX
"""Stands for minus infinity, which JSON cannot say."""


def head(served: ServedModel, kind: str) -> dict[str, Any]:
    """What each part of an answer of OpenAI's older APIs begins with; `kind` is that of its id."""
    asked = {"id": f"{kind}-{token_hex(16)}", "created": int(time.time()), "model": served.name}
    return asked | {"system_fingerprint": BUILD}


def timings(answer: LiveAnswer) -> dict[str, float]:
    """What the answer has cost so far."""
    stats, generation = answer.generation.stats, answer.generation
    prompt_ms, predicted_ms = stats.prompt_s * 1000, stats.generation_s * 1000
    n_steps = max(stats.generated_tokens - 1, 0)  # the first token comes with the prompt
    found = {
        "cache_n": generation.n_cached,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, stats.prompt_tokens),
        "prompt_per_second": _ratio(1000 * stats.prompt_tokens, prompt_ms),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, n_steps),
        "predicted_per_second": _ratio(1000 * n_steps, predicted_ms),
    }
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return found


def timings_of_piece(answer: LiveAnswer) -> dict[str, Any]:
    """The field with the times so far, if each piece is to have it."""
    return {"timings": timings(answer)} if answer.asked.timings_per_token else {}


def progress(answer: LiveAnswer, n_done: int) -> dict[str, Any]:
    """The fields that show how far the prompt is: `n_done` of its tokens are in the cache."""
    n_cached = answer.generation.n_cached
    spent_ms = round((time.monotonic() - answer.asked_at) * 1000)
    done = {"total": answer.generation.n_prompt, "cache": n_cached, "processed": n_done, "time_ms": spent_ms}
    found = timings_of_piece(answer)
    if found and n_done <= n_cached:  # nothing of it was computed yet
        found = {"timings": dict.fromkeys(found["timings"], 0.0) | {"cache_n": n_done}}
    return {"prompt_progress": done} | found


def only(names: Sequence[str], data: dict[str, Any]) -> dict[str, Any]:
    """The fields with these names; a/b stands for the field b of a."""
    found: dict[str, Any] = {}
    for name in names:
        value: Any = data
        for key in name.split("/"):
            value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found[name] = value
    return found


def stop_type(answer: LiveAnswer) -> str:
    """Why the text ended, in llama-server's words, and "blocked"."""
    return "limit" if answer.is_over_time else _STOP_TYPES[answer.generation.finish_reason]


def drafting(answer: LiveAnswer) -> dict[str, Any]:
    generation = answer.generation
    params, stats = generation.params, generation.stats
    asked = {name: getattr(params, name) for name in DRAFTING}
    return asked | {
        "acceptance": generation.acceptance,
        "rounds": stats.rounds,
        "mean_acceptance_length": stats.mean_acceptance_length,
    }


def usage(answers: Sequence[LiveAnswer]) -> dict[str, Any]:
    """The tokens of a request, in OpenAI's words. Several answers to one prompt share it."""
    prompts = {id(answer.prompt): answer for answer in answers}.values()
    n_prompt = sum(len(answer.prompt) for answer in prompts)
    n_text = sum(len(answer.tokens) for answer in answers)
    return {
        "completion_tokens": n_text,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_text,
        "prompt_tokens_details": {"cached_tokens": sum(answer.generation.n_cached for answer in prompts)},
    }


def settings_of(params: GenerationParams, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The parameters of a generation. Tokens that may not come are among the biases if there is a vocabulary."""
    sampling = params.sampling
    added = dict(sampling.logit_bias).items()
    biases = [{"bias": bias if math.isfinite(bias) else None, "token": token} for token, bias in added]
    if params.ignore_eos and vocabulary:
        biases += [{"bias": None, "token": token} for token in sorted(vocabulary.end_of_generation)]
    return {
        **{name: getattr(sampling, name) for name in SAMPLING},
        "seed": RANDOM_SEED if sampling.seed is None else sampling.seed,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(params.stop),
        "max_tokens": params.max_tokens,
        "n_predict": params.max_tokens,
        "n_keep": params.n_keep,
        "ignore_eos": params.ignore_eos,
        "logit_bias": biases,
        "n_probs": params.logprobs or 0,
        "grammar": params.grammar or "",
        "samplers": list(sampling.samplers),
        **{name: getattr(params, name) for name in DRAFTING},
    }


def logprobs_of(served: ServedModel, answer: LiveAnswer, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """Log probabilities before the sampler chain, or probabilities after it."""
    vocabulary, of_chain = served.vocabulary, answer.asked.post_sampling_probs

    def shown(token: int, logprob: float) -> dict[str, Any]:
        data = vocabulary.piece(token)
        value = {"prob": math.exp(logprob)} if of_chain else {"logprob": max(logprob, LEAST_LOGPROB)}
        return {"id": token, "token": data.decode("utf-8", errors="ignore"), "bytes": list(data), **value}

    def entry(each: TokenLogprobs) -> dict[str, Any]:
        if not of_chain:
            return {**shown(each.token, each.logprob), "top_logprobs": [shown(*one) for one in each.top]}
        others = [other for other in (shown(*one) for one in each.chain_top) if other["prob"] > 0]
        return {**shown(each.token, each.chain_logprob), "top_probs": others}

    return [entry(each) for each in entries]


def finish_reason(answer: LiveAnswer) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "stop" if answer.is_complete else "length"


def whole(served: ServedModel, answer: LiveAnswer) -> dict[str, Any]:
    """All about an answer that is complete."""
    generation, asked, vocabulary = answer.generation, answer.asked, served.vocabulary
    data = {
        "index": answer.index,
        "content": "" if asked.stream else answer.text,
        "tokens": list(answer.tokens) if asked.return_tokens and not asked.stream else [],
        "id_slot": generation.slot,
        "stop": True,
        "model": served.name,
        "tokens_predicted": len(answer.tokens),
        "tokens_evaluated": len(answer.prompt),
        "generation_settings": settings_of(generation.params, vocabulary)
        | {"stream": bool(asked.stream), "timings_per_token": bool(asked.timings_per_token)},
        "prompt": vocabulary.detokenize(answer.prompt, special=True),
        "has_new_line": "\n" in answer.text,
        "truncated": generation.is_truncated,
        "stop_type": stop_type(answer),
        "stopping_word": generation.stop_text or "",
        "tokens_cached": generation.n_cached,
        "timings": timings(answer),
        "drafting": drafting(answer),
    }
    if answer.logprobs and not asked.stream:
        data["completion_probabilities"] = logprobs_of(served, answer, answer.logprobs)
    return only(asked.response_fields, data) if asked.response_fields else data


def extras(served: ServedModel, answer: LiveAnswer) -> dict[str, Any]:
    """Fields of answers that only pymtp and llama-server have."""
    found = {"timings": timings(answer), "drafting": drafting(answer), "stop_type": stop_type(answer)}
    if served.settings.is_verbose if answer.asked.verbose is None else answer.asked.verbose:
        found["__verbose"] = whole(served, answer)
    return found


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
