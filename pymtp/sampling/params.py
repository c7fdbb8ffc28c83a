"""The sampling parameters: llama.cpp's, under its names, with its defaults, checked.

Knows values and their ranges; never tokens or logits.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymtp.errors import FLOAT_MAX, INT_MAX, InvalidParameter, require

DEFAULT_SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
SAMPLERS = dict(zip((*DEFAULT_SAMPLERS, "infill", "adaptive_p"), "edskypmxtia", strict=True))
"""Every sampler that a chain can have, and llama.cpp's letter for it."""

_ALIASES = {"temp": "temperature", "typical_p": "typ_p", "typical": "typ_p", "nucleus": "top_p"}


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters. Names and defaults are those of llama.cpp.

    Raises InvalidParameter for a value outside its range.
    """

    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    """The chain, in its order: names of SAMPLERS, each at most once."""
    seed: int | None = None
    """None: a new one for each generation."""

    temperature: float = 0.8
    """0: always the most likely token."""
    dynatemp_range: float = 0.0
    """The temperature varies with the entropy by up to this much; 0: off."""
    dynatemp_exponent: float = 1.0

    top_k: int = 40
    """0: off."""
    top_p: float = 0.95
    """1: off."""
    min_p: float = 0.05
    """0: off."""
    typical_p: float = 1.0
    """1: off."""
    top_n_sigma: float = -1.0
    """0 or less: off."""
    xtc_probability: float = 0.0
    """0: off."""
    xtc_threshold: float = 0.1
    """Above 0.5: off."""
    min_keep: int = 0
    """The fewest tokens that top_p, min_p, typical_p and xtc leave."""

    repeat_last_n: int = 64
    """Last tokens that the three penalties look at; 0: none, -1: all (at most 131,072)."""
    repeat_penalty: float = 1.0
    """1: off."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    dry_multiplier: float = 0.0
    """0: off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """Last tokens in which DRY looks for repetitions; 0: none, -1: all (at most 131,072)."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")

    mirostat: int = 0
    """1 or 2: this version of mirostat, after the temperature, instead of the chain. Turns drafting off."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    adaptive_target: float = -1.0
    """The probability of tokens that adaptive_p prefers, if it is among the samplers. Turns drafting off."""
    adaptive_decay: float = 0.9

    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    """What is added to logits, by token id; -inf: never that token. Kept as pairs."""

    def __post_init__(self) -> None:
        given = as_tuple("samplers", self.samplers)
        chain, unknown = known_samplers(given)
        require(not unknown, "samplers", f"different names out of {', '.join(SAMPLERS)}", ";".join(map(str, given)))
        object.__setattr__(self, "samplers", chain)
        object.__setattr__(self, "dry_sequence_breakers", as_texts("dry_sequence_breakers", self.dry_sequence_breakers))
        object.__setattr__(self, "logit_bias", _checked_biases(self.logit_bias))

        for names, least, most, allowed in _RANGES:
            for name in names.split():
                value, kind = getattr(self, name), type(getattr(SamplingParams, name))
                is_number = isinstance(value, (int, float) if kind is float else int)
                # llama.cpp's floats overflow to infinity above the limit
                require(is_number and least <= value <= most and abs(value) <= FLOAT_MAX, name, allowed, value)
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**32):
            raise InvalidParameter("seed", "an integer between 0 and 4294967295", value=self.seed)
        adapts = "adaptive_p" in self.samplers
        require(not (self.mirostat and adapts), "mirostat", "0 where adaptive_p is among the samplers", self.mirostat)
        allowed = "below 0 unless adaptive_p is among the samplers"
        require(self.adaptive_target < 0 or adapts, "adaptive_target", allowed)

    @property
    def stateful_sampler(self) -> str | None:
        """The sampler that picks tokens by its own state, which drafts cannot share; None: there is none."""
        if self.mirostat:
            return f"mirostat {self.mirostat}"
        return "adaptive_p" if "adaptive_p" in self.samplers else None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely of the tokens that the chain leaves is always taken."""
        is_cold = self.temperature == 0 and self.dynatemp_range == 0 and "temperature" in self.samplers
        return is_cold and not self.stateful_sampler

    @property
    def has_dry(self) -> bool:
        """Whether DRY lowers what would repeat the text."""
        is_on = self.dry_multiplier > 2**-150  # what is smaller is 0 as llama.cpp's float
        return "dry" in self.samplers and is_on and self.dry_penalty_last_n != 0 and not self.mirostat

    @property
    def keeps_argmax(self) -> bool:
        """Whether no sampler changes which token is most likely."""
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        changes = {
            "infill": True,
            "adaptive_p": True,
            "typ_p": self.typical_p < 1,
            "xtc": self.xtc_probability > 0,
            "penalties": self.repeat_last_n and penalties != (1, 0, 0),
        }
        return not (self.logit_bias or self.mirostat or self.has_dry or any(map(changes.get, self.samplers)))


_RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("temperature dynatemp_range dynatemp_exponent dry_multiplier", 0, math.inf, "0 or more"),
    ("top_p min_p typical_p xtc_probability xtc_threshold", 0, 1, "between 0 and 1"),
    ("top_n_sigma presence_penalty frequency_penalty", -math.inf, math.inf, "a finite number"),
    ("repeat_penalty mirostat_tau mirostat_eta", 1 / FLOAT_MAX, math.inf, "above 0"),
    ("dry_base", 1, math.inf, "1 or more"),
    ("adaptive_target", -math.inf, 1, "at most 1 (below 0: off)"),
    ("adaptive_decay", 0, 0.99, "between 0 and 0.99"),
    ("top_k", 0, INT_MAX, "an integer, 0 (off) or more"),
    ("min_keep dry_allowed_length", 0, INT_MAX, "an integer, 0 or more"),
    ("repeat_last_n dry_penalty_last_n", -1, INT_MAX, "an integer, -1 (all tokens), 0 (off) or more"),
    ("mirostat", 0, 2, "0 (off), 1 or 2"),
)
"""Names, least and greatest values, and what to say of others."""


def samplers_from_letters(letters: str) -> tuple[str, ...]:
    """The samplers for the letters of llama.cpp's `--sampler-seq`. Raises InvalidParameter."""
    known, unknown = known_samplers(letters)
    require(not unknown, "sampler_seq", f"made of the letters {''.join(SAMPLERS.values())}", letters)
    return known


def known_samplers(given: str | Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The samplers of a list of names or a string of letters, and what of it is none, or is there twice."""
    by_letter = {letter: name for name, letter in SAMPLERS.items()}
    known: dict[str, None] = {}
    unknown = []
    for each in given:
        plain = str(each).replace("-", "_")
        name = by_letter.get(each, each) if isinstance(given, str) else _ALIASES.get(plain, plain)
        if name in SAMPLERS and name not in known:
            known[name] = None
        else:
            unknown.append(each)
    return tuple(known), unknown


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """The values of the parameter `name`, or a text alone. Raises InvalidParameter if they are not a sequence."""
    try:
        return (values,) if isinstance(values, str) else tuple(values)
    except TypeError:
        allowed = "token ids with numbers: {15043: 1.5}" if name == "logit_bias" else "a sequence of strings"
        raise InvalidParameter(name, allowed, value=values) from None


def is_text(value: object) -> bool:
    """Whether `value` is a string that is not empty and that UTF-8 can encode: a lone surrogate cannot be."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def as_texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    """The texts of the parameter `name`. Raises InvalidParameter."""
    given = as_tuple(name, values)
    require(all(map(is_text, given)), name, "strings that are not empty, in valid Unicode", given)
    return given


def _checked_biases(biases: Mapping[int, float] | Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    pairs = as_tuple("logit_bias", biases.items() if isinstance(biases, Mapping) else biases)
    are_pairs = all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs)
    require(are_pairs, "logit_bias", "token ids with numbers: {15043: 1.5}", biases)
    for token, bias in pairs:
        is_bias = isinstance(token, int) and token >= 0 and isinstance(bias, (int, float)) and bias < math.inf
        require(is_bias, "logit_bias", "token ids with numbers below infinity", (token, bias))
    require(len({token for token, _ in pairs}) == len(pairs), "logit_bias", "one number per token id")
    return pairs
