"""What the flags of a command ask for, as pymtp's parameters: of a model, of a generation, of a chat.

Defaults of sampling are the model's own or pymtp's, ranges pymtp's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import typer

import pymtp
from pymtp import ContextParams, DraftParams, InvalidParameter, ModelParams
from pymtp.acceptance.forced import Forced
from pymtp.drafting.choice import longest_draft
from pymtp.errors import explained, require
from pymtp.options import Params
from pymtp.sampling.params import SamplingParams, samplers_from_letters
from pymtp.sampling.recommended import recommended_sampling
from pymtp.text.files import read_text

from . import parsers
from .flags import Values
from .table import TABLE


def given_for(params: type[Any], flags: Values) -> dict[str, Any]:
    """The fields of `params` that the flags have a value for; None: what `params` has by default."""
    values = vars(flags)
    return {one.name: values[one.name] for one in fields(params) if values.get(one.name) is not None}


def context_of(flags: Values) -> dict[str, Any]:
    """Keywords for ContextParams."""
    given = given_for(ContextParams, flags)
    scale = vars(flags).get("rope_scale")
    if scale is not None:
        if "rope_freq_scale" in given:
            raise typer.BadParameter("--rope-scale and --rope-freq-scale say the same: leave one out")
        require(isinstance(scale, float) and scale > 0, "rope_scale", "a number above 0", scale)
        given["rope_freq_scale"] = 1 / scale
    return given


def params_of(flags: Values) -> Params:
    """How a model is loaded and run. Raises InvalidParameter and PymtpError."""
    lora = [one for name in ("lora", "lora_scaled") for group in vars(flags).get(name, ()) for one in group]
    model = {**given_for(ModelParams, flags), "lora": tuple(lora), "override_kv": tuple(flags.override_kv)}
    model["fit"] = flags.fit == "on"
    if hasattr(flags, "chat_template"):
        model["chat_template"] = text_of(flags.chat_template, flags.chat_template_file, "chat_template")
        is_empty = model["chat_template"] is not None and not model["chat_template"].strip()
        require(not is_empty, "chat_template", "a Jinja template, or the name of one of llama.cpp's")
    drafting = given_for(DraftParams, flags)
    if drafting.get("draft_max") == 0:
        if flags.draft in ("mtp", "lookup"):
            raise typer.BadParameter(f"--draft {flags.draft} and --draft-max 0 contradict each other: leave one out")
        drafting["draft"] = "none"
    return Params(ModelParams(**model), ContextParams(**context_of(flags)), DraftParams(**drafting))


_GENERATION = (
    *("max_tokens", "ignore_eos", "logprobs", "cache_prompt", "reasoning_budget", "draft_min", "draft_p_min"),
    *("draft_pick", "accept"),
)
"""Flags that are fields of GenerationParams as they are."""


def asked_of(flags: Values, **others: Any) -> Callable[[Mapping[str, object]], "pymtp.GenerationParams"]:
    """Makes what the flags ask for, of the sampling that a model's GGUF recommends (see GgufInfo).

    `others`: fields of GenerationParams. Raises InvalidParameter, as what it returns does.
    """
    sampling = {name: value for name, value in given_for(SamplingParams, flags).items() if value != []}
    if flags.seed == -1:
        sampling["seed"] = None
    require(flags.samplers is None or flags.sampler_seq is None, "sampler_seq", "given without --samplers")
    if flags.samplers is not None:
        sampling["samplers"] = tuple(filter(None, flags.samplers.split(";")))
    elif flags.sampler_seq is not None:
        sampling["samplers"] = samplers_from_letters(flags.sampler_seq)
    if flags.dry_sequence_breakers:
        sampling["dry_sequence_breakers"] = [unescaped(text) for text in flags.dry_sequence_breakers if text != "none"]
    values = vars(flags)
    others = {
        **{name: values[name] for name in _GENERATION if values.get(name) is not None},
        "grammar": text_of(flags.grammar, flags.grammar_file, "grammar"),
        "json_schema": text_of(flags.json_schema, flags.json_schema_file, "json_schema"),
        "stop": tuple(map(unescaped, flags.stop)),
        "thinking_tags": flags.thinking_tags and tuple(map(parsers.text, flags.thinking_tags)),
        "forced": _forced(flags) if hasattr(flags, "rates") else None,
        **others,
    }

    def params(recommended: Mapping[str, object], **more: Any) -> pymtp.GenerationParams:
        sampler = SamplingParams(**recommended_sampling(recommended) | sampling)
        return pymtp.GenerationParams(sampling=sampler, **others, **more)

    params({}, draft_max=flags.draft_max)  # what is wrong with the flags shows before the model is looked for
    return params


def _forced(flags: Values) -> Forced | None:
    """What --spec-synth-rates or --spec-synth-len force, for benchmarks; None: nothing. Raises InvalidParameter."""
    rates, length = flags.rates, flags.length
    require(rates is None or length is None, "length", "given without --spec-synth-rates")
    n_draft = longest_draft(DraftParams(draft=flags.draft, draft_max=flags.draft_max))
    if n_draft == 0 or (rates is None and length is None):
        return None
    random = Random(max(flags.seed or 0, 0)).random
    return Forced(rates[:n_draft], random) if rates else Forced.of_length(length, n_draft, random)


def parameter_of_flag() -> dict[str, str]:
    """The fields of SamplingParams by the names of their flags, without dashes: top_k for top-k."""
    flags = [flag for group in TABLE.values() for flag in group if hasattr(SamplingParams, flag.name)]
    return {name.lstrip("-"): flag.name for flag in flags for name in flag.flags}


def escaped(text: str) -> str:
    """The opposite of `unescaped`."""
    return "".join({"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}.get(char, char) for char in text)


def unescaped(text: str) -> str:
    """The text that was meant by one typed in a shell: \\n for a new line, \\\\n for a backslash and an n."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)


def text_of(text: str | None, file: Path | None, name: str) -> str | None:
    """A text that is given itself or in a file. Raises InvalidParameter and PymtpError."""
    require(text is None or file is None, name, "given as a text or in a file, not both")
    if file is None:
        return text
    with explained(f"read {file}", "check the path"):
        return read_text(file)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}


def chat_of(flags: Values) -> "pymtp.ChatParams":
    """A chat's parameters. Raises InvalidParameter."""
    text = "{}" if flags.chat_template_kwargs is None else flags.chat_template_kwargs
    try:
        kwargs = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidParameter("chat_template_kwargs", f"a JSON object ({error})") from None
    return pymtp.ChatParams(reasoning=flags.reasoning, template_kwargs=kwargs)
