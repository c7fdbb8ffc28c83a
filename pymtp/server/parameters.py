"""From the fields of a request to the parameters of a generation.

Owns what names mean and which values are out of the question. Knows the vocabulary; generates nothing.
"""

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pymtp.acceptance.forced import Forced
from pymtp.chat.schema import refuse_ignored, schema_grammar
from pymtp.errors import INT_MAX
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.params import known_samplers
from pymtp.serving.params import GenerationParams, with_options

from .bodies import refuse
from .errors import invalid
from .fields import SAME, UNSUPPORTED, Bias, ChatBody, GenerationFields, LoraScale
from .logs import ignore
from .settings import ServerSettings

RANDOM_SEED = 2**32 - 1
"""What llama.cpp takes for no seed."""

_N_DIGITS = 20  # more than the ids of tokens have
# values beyond these count as the nearest one, as llama-server has it: clients send -1 for "off"
_CLAMPED = {
    "top_k": (0, INT_MAX),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "temperature": (0, math.inf),
}


def params_of(
    fields: GenerationFields, settings: ServerSettings, vocabulary: Vocabulary, n_probs: int | None
) -> GenerationParams:
    """The parameters of the generation. Raises ApiError, and InvalidParameter for a value out of range."""
    refuse(fields, UNSUPPORTED)
    if fields.best_of not in (None, 1):
        raise invalid("best_of is not supported: use n")
    if isinstance(fields, ChatBody) and any(each != "text" for each in fields.modalities or ()):
        raise invalid("modalities is not supported: answers are texts")
    asked: dict[str, Any] = {name: getattr(fields, name) for name in SAME}
    for name, (least, most) in _CLAMPED.items():
        if asked[name] is not None:
            asked[name] = min(max(asked[name], least), most)
    if (asked["dry_base"] or 0) < 1:  # out of range counts as left out, as in llama-server
        del asked["dry_base"]
    asked["max_tokens"] = _first(fields.n_predict, fields.max_completion_tokens, fields.max_tokens, None)
    asked["draft_max"] = _first(asked["draft_max"], fields.speculative_n_max)
    asked["draft_min"] = _first(asked["draft_min"], fields.speculative_n_min)
    asked["draft_p_min"] = _first(asked["draft_p_min"], fields.speculative_p_min)
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or ()
    asked["stop"] = tuple(filter(None, stop)) or None  # where there are none, the server's, as in llama-server
    asked["logprobs"] = n_probs
    asked["lora"] = None if fields.lora is None else scales_of(fields.lora)
    asked["logit_bias"] = None if fields.logit_bias is None else _biases(fields.logit_bias, vocabulary)
    if fields.dry_sequence_breakers is not None:
        asked["dry_sequence_breakers"] = tuple(fields.dry_sequence_breakers)
    if fields.samplers is not None:
        asked["samplers"], unknown = known_samplers(fields.samplers)
        for name in unknown:
            ignore(f"the sampler {name!r}, which there is not")
    asked["slot"] = fields.id_slot if _first(fields.id_slot, -1) >= 0 else None
    if settings.has_context_shift:
        asked["n_keep"] = max(_first(fields.n_keep, settings.n_keep), -1)
    options = {name: value for name, value in asked.items() if value is not None}
    if options.get("seed") in (-1, RANDOM_SEED):
        options["seed"] = None
    defaults = settings.params
    if isinstance(n_max := options.get("draft_max"), int):  # the server's own may be longer
        options.setdefault("draft_min", min(defaults.draft_min, n_max))
    if isinstance(defaults.forced, Forced):  # drawn for each request: the same seed, the same answer
        options["forced"] = Forced(defaults.forced.rates, Random(options.get("seed")).random)
    options |= _constraint(fields)
    return with_options(defaults, options)


def scales_of(adapters: list[LoraScale]) -> dict[int, float]:
    """The scales of adapters by their numbers, as llama-server takes them: the last of a number counts."""
    return {one.id: one.scale for one in adapters}


def _first(*values: Any) -> Any:
    """The first that was given, else the last."""
    return next((value for value in values if value is not None), values[-1])


def _constraint(fields: GenerationFields) -> dict[str, Any]:
    """The grammar or schema that the text has to follow."""
    if fields.json_schema is None:
        return {} if fields.grammar is None else {"grammar": fields.grammar or None}
    if fields.grammar:
        raise invalid("Cannot use both json_schema and grammar")
    _, gbnf, ignored = schema_grammar(fields.json_schema or {"type": "object"})  # an empty one means any object
    if fields.strict_schemas:
        refuse_ignored("json_schema", ignored)
    for what in ignored:
        ignore(what)
    return {"grammar": gbnf}


def _biases(value: Sequence[tuple[int | str, Bias]] | Mapping[str, Bias], vocabulary: Vocabulary) -> dict[int, float]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if len(pairs) > vocabulary.size:
        raise invalid(f"Field 'logit_bias': at most {vocabulary.size} biases, one for each token, not {len(pairs)}")
    found: dict[int, float] = {}
    for what, bias in pairs:
        if bias is True:
            raise invalid("Field 'logit_bias': a bias must be a number, or false to ban the token")
        found |= dict.fromkeys(_biased(what, vocabulary), -math.inf if bias is False else bias)
    return found


def _biased(what: int | str, vocabulary: Vocabulary) -> list[int]:
    if isinstance(what, str):
        if not what.removeprefix("-").isdecimal():
            return vocabulary.tokenize(what, is_start=False)
        what = int(what) if len(what) <= _N_DIGITS else -1
    return [what] if 0 <= what < vocabulary.size else []
