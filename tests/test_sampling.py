"""Sampling parameters: names, ranges, contradictions, and what they mean for drafts."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields

import pytest

from pymtp.errors import InvalidParameter
from pymtp.sampling.params import DEFAULT_SAMPLERS, SAMPLERS, SamplingParams, samplers_from_letters

NUMBER = [math.nan, math.inf, -math.inf, "1", None, 1e39]
INTEGER = [1.0, 0.5, "1", None, 2**31]

# by field: what its message names as allowed, and values that it refuses
REFUSED: dict[str, tuple[str, list[object]]] = {
    "temperature": ("0 or more", [-0.1, *NUMBER]),
    "dynatemp_range": ("0 or more", [-0.1, *NUMBER]),
    "dynatemp_exponent": ("0 or more", [-0.1, *NUMBER]),
    "dry_multiplier": ("0 or more", [-0.1, *NUMBER]),
    "top_p": ("between 0 and 1", [-0.1, 1.1, *NUMBER]),
    "min_p": ("between 0 and 1", [-0.1, 1.1, *NUMBER]),
    "typical_p": ("between 0 and 1", [-0.1, 1.1, *NUMBER]),
    "xtc_probability": ("between 0 and 1", [-0.1, 1.1, *NUMBER]),
    "xtc_threshold": ("between 0 and 1", [-0.1, 1.1, *NUMBER]),
    "top_n_sigma": ("a finite number", NUMBER),
    "presence_penalty": ("a finite number", NUMBER),
    "frequency_penalty": ("a finite number", NUMBER),
    "repeat_penalty": ("above 0", [0, -1, 1e-39, *NUMBER]),
    "mirostat_tau": ("above 0", [0, -1, *NUMBER]),
    "mirostat_eta": ("above 0", [0, -1, *NUMBER]),
    "dry_base": ("1 or more", [0.9, *NUMBER]),
    "adaptive_target": ("at most 1 (below 0: off)", [1.1, *NUMBER]),
    "adaptive_decay": ("between 0 and 0.99", [-0.1, 1, *NUMBER]),
    "top_k": ("an integer, 0 (off) or more", [-1, *INTEGER]),
    "min_keep": ("an integer, 0 or more", [-1, *INTEGER]),
    "dry_allowed_length": ("an integer, 0 or more", [-1, *INTEGER]),
    "repeat_last_n": ("an integer, -1 (all tokens), 0 (off) or more", [-2, *INTEGER]),
    "dry_penalty_last_n": ("an integer, -1 (all tokens), 0 (off) or more", [-2, *INTEGER]),
    "mirostat": ("0 (off), 1 or 2", [-1, 3, *INTEGER]),
    "seed": ("an integer between 0 and 4294967295", [-1, 2**32, 1.0, "1"]),
    "samplers": (
        "different names out of penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, infill, "
        "adaptive_p",
        [["top_q"], ["top_k", "top_k"], ["temp", "temperature"], "top_k;top_p", [""]],
    ),
    "dry_sequence_breakers": ("strings that are not empty", [[""], ["a", ""], "", [1], ["\udcff"]]),
    "logit_bias": (
        "token ids with numbers below infinity",
        [{-1: 1.0}, {1: math.inf}, {1: math.nan}, {"1": 1.0}, {1: "1"}, [(0.5, 1.0)]],
    ),
}

ACCEPTED: dict[str, list[object]] = {
    "temperature": [0, 1, 100.0],
    "dynatemp_range": [0, 5],
    "dynatemp_exponent": [0, 3],
    "dry_multiplier": [0, 5],
    "top_p": [0, 1],
    "min_p": [0, 1],
    "typical_p": [0, 1],
    "xtc_probability": [0, 1],
    "xtc_threshold": [0, 0.5, 1],
    "top_n_sigma": [-1, 0, 3],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "repeat_penalty": [0.1, 1, 10],
    "mirostat_tau": [0.1, 10],
    "mirostat_eta": [0.1, 1],
    "dry_base": [1, 1.75, 1000],
    "adaptive_target": [-1, -0.1],
    "adaptive_decay": [0, 0.99],
    "top_k": [0, 1, 2**31 - 1],
    "min_keep": [0, 2**31 - 1],
    "dry_allowed_length": [0, 2**31 - 1],
    "repeat_last_n": [-1, 0, 2**31 - 1],
    "dry_penalty_last_n": [-1, 0, 2**31 - 1],
    "mirostat": [0, 1, 2],
    "seed": [None, 0, 2**32 - 1],
    "samplers": [(), tuple(SAMPLERS), ("temperature",)],
    "dry_sequence_breakers": [(), ("\n", "long")],
    "logit_bias": [(), {0: -math.inf, 7: 5.0}, [(3, -1)]],
}


def test_every_field_has_cases_here() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert names == set(REFUSED) == set(ACCEPTED)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, values) in REFUSED.items() for value in values]
)
def test_a_value_out_of_range_is_refused_with_name_and_range(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter) as error:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{name} must be {REFUSED[name][0]}")


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ACCEPTED.items() for value in values])
def test_the_ends_of_a_range_are_allowed(name: str, value: object) -> None:
    SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_the_message_shows_the_value() -> None:
    with pytest.raises(InvalidParameter, match=r"^top_k must be an integer, 0 \(off\) or more, not -3$"):
        SamplingParams(top_k=-3)
    with pytest.raises(InvalidParameter, match=r"^samplers must be .*, not 'top_k;topp'$"):
        SamplingParams(samplers=("top_k", "topp"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mirostat": 1, "samplers": ("temperature", "adaptive_p")}, "mirostat must be 0 where adaptive_p is among"),
        ({"adaptive_target": 0.5}, "adaptive_target must be below 0 unless adaptive_p is among the samplers"),
        ({"logit_bias": [(1, 2.0), (1, 3.0)]}, "logit_bias must be one number per token id"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        SamplingParams(**options)  # type: ignore[arg-type]


def test_parameters_are_frozen_and_can_be_compared() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().top_k = 1  # type: ignore[misc]
    given = SamplingParams(samplers=["temp"], dry_sequence_breakers=["x"], logit_bias={5: 1.0})  # type: ignore[arg-type]
    assert hash(given) == hash(
        SamplingParams(samplers=("temperature",), dry_sequence_breakers=("x",), logit_bias=((5, 1.0),))
    )


def test_the_defaults_are_those_of_llama_cpp() -> None:
    """Those of common_params_sampling; adaptive_p and infill are not among its default samplers either."""
    defaults = SamplingParams()
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p) == (0.8, 40, 0.95, 0.05)
    assert (defaults.repeat_last_n, defaults.repeat_penalty) == (64, 1.0)
    assert (defaults.dry_multiplier, defaults.dry_base, defaults.dry_allowed_length) == (0.0, 1.75, 2)
    assert defaults.dry_sequence_breakers == ("\n", ":", '"', "*")
    assert "".join(SAMPLERS[name] for name in defaults.samplers) == "edskypmxt"
    assert defaults.samplers == DEFAULT_SAMPLERS


def test_samplers_accept_llama_cpps_aliases_and_letters() -> None:
    names = ("temp", "typical-p", "nucleus", "top-k", "min_p")
    assert SamplingParams(samplers=names).samplers == ("temperature", "typ_p", "top_p", "top_k", "min_p")
    assert SamplingParams(samplers=("typical",)).samplers == ("typ_p",)
    assert SamplingParams(samplers="top_k").samplers == ("top_k",)  # type: ignore[arg-type]
    assert samplers_from_letters("kpt") == ("top_k", "top_p", "temperature")
    assert samplers_from_letters("") == ()
    with pytest.raises(InvalidParameter, match="sampler_seq must be made of the letters edskypmxtia, not 'kz'"):
        samplers_from_letters("kz")


@pytest.mark.parametrize(
    ("options", "stateful_sampler", "is_greedy"),
    [
        ({}, None, False),
        ({"temperature": 0}, None, True),
        ({"temperature": 0, "dynatemp_range": 0.5}, None, False),
        ({"temperature": 0, "samplers": ("top_k",)}, None, False),
        ({"temperature": 0, "mirostat": 2}, "mirostat 2", False),
        ({"mirostat": 1}, "mirostat 1", False),
        ({"samplers": ("adaptive_p", "temperature"), "adaptive_target": 0.5}, "adaptive_p", False),
        ({"temperature": 0, "samplers": ("adaptive_p", "temperature")}, "adaptive_p", False),
    ],
)
def test_a_sampler_that_picks_tokens_itself_is_named(
    options: dict[str, object], stateful_sampler: str | None, is_greedy: bool
) -> None:
    params = SamplingParams(**options)  # type: ignore[arg-type]
    assert params.stateful_sampler == stateful_sampler
    assert params.is_greedy == is_greedy


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({}, True),
        ({"top_n_sigma": 1.0, "dynatemp_range": 0.5, "top_k": 1, "min_p": 0.9, "top_p": 0.1}, True),
        ({"typical_p": 0.9}, False),
        ({"typical_p": 0.9, "samplers": ("top_k",)}, True),
        ({"xtc_probability": 0.5}, False),
        ({"logit_bias": {1: 0.5}}, False),
        ({"mirostat": 1}, False),
        ({"samplers": ("infill",)}, False),
        ({"samplers": ("adaptive_p",)}, False),
        ({"dry_multiplier": 0.5}, False),
        ({"dry_multiplier": 0.5, "dry_penalty_last_n": 0}, True),
        ({"repeat_penalty": 1.1}, False),
        ({"presence_penalty": -0.1}, False),
        ({"frequency_penalty": 0.1}, False),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, True),
        ({"repeat_penalty": 1.1, "samplers": ("temperature",)}, True),
    ],
)
def test_keeps_argmax_is_false_if_a_sampler_may_change_the_top_token(options: dict[str, object], keeps: bool) -> None:
    assert SamplingParams(**options).keeps_argmax == keeps  # type: ignore[arg-type]
