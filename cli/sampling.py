"""The flags for sampling, drafting and constraining the output, under llama.cpp's names.

Owns names and help texts, and turns values into pymtp's parameters. Defaults are the model's own or pymtp's, ranges
pymtp's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pymtp import InvalidParameter
from pymtp.sampling.params import SAMPLERS, SamplingParams, samplers_from_letters
from pymtp.text.files import read_text

from .errors import CommandError
from .flags import with_flags
from .parsers import completing
from .text import decoded_value

if TYPE_CHECKING:
    from pymtp import GenerationParams


@dataclass(frozen=True)
class Asked:
    """What the flags ask of a generation, where they ask for anything."""

    sampling: Mapping[str, Any]
    """Fields of pymtp.SamplingParams."""
    others: Mapping[str, Any]
    """Fields of pymtp.GenerationParams."""

    def params(self, recommended: Mapping[str, object] | None = None, **others: Any) -> GenerationParams:
        """The parameters of a model. `recommended`: the sampling that its GGUF recommends, see GgufInfo.

        Raises InvalidParameter.
        """
        import pymtp
        from pymtp.sampling.recommended import recommended_sampling

        sampling = SamplingParams(**{**recommended_sampling(recommended or {}), **self.sampling})
        return pymtp.GenerationParams(sampling=sampling, **self.others, **others)


def with_sampling(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `asked` (see Asked) by the flags of this module."""
    flags = {name: (kind, _default(name)) for name, kind in {**_SAMPLING, **_GENERATION}.items()}
    return with_flags(command, "asked", flags, asked_of)


def asked_of(values: Mapping[str, Any]) -> Asked:
    """What the values of the flags ask for. Raises InvalidParameter."""
    values = {**values, **_texts(values)}
    given = [name for name in _SAMPLING if name not in ("sampler_seq", "samplers") and values[name] not in (None, [])]
    sampling = {name: values[name] for name in given}
    if values["seed"] == -1:
        sampling["seed"] = None
    if values["logit_bias"]:
        sampling["logit_bias"] = [_bias(text) for text in values["logit_bias"]]
    if values["samplers"] is not None and values["sampler_seq"] is not None:
        raise InvalidParameter("sampler_seq", "given without --samplers")
    if values["samplers"] is not None:
        sampling["samplers"] = tuple(filter(None, values["samplers"].split(";")))
    elif values["sampler_seq"] is not None:
        sampling["samplers"] = samplers_from_letters(values["sampler_seq"])
    if breakers := values["dry_sequence_breakers"]:
        sampling["dry_sequence_breakers"] = [unescaped(text) for text in breakers if text != "none"]
    SamplingParams(**sampling)  # what is wrong with the flags shows before the model is looked for
    return Asked(
        sampling,
        {
            "grammar": _text_of(values["grammar"], values["grammar_file"], "grammar"),
            "json_schema": _text_of(values["json_schema"], values["json_schema_file"], "json_schema"),
            "stop": tuple(map(unescaped, values["stop"])),
            **{name: values[name] for name in (*_DEFAULTS, "thinking_tags")},
        },
    )


def parameter_of_flag() -> dict[str, str]:
    """The fields of SamplingParams by the names of their flags, without dashes: top_k for top-k."""
    found = {}
    for name, kind in _SAMPLING.items():
        option = kind.__metadata__[0]
        # of a flag in an annotation, typer has the first name in the place of the default
        names = [flag for flag in (option.default, *(option.param_decls or ())) if isinstance(flag, str)]
        found.update({flag.lstrip("-"): name for flag in names if name != "sampler_seq"})
    return found


def escaped(text: str) -> str:
    """The opposite of `unescaped`."""
    return "".join({"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}.get(char, char) for char in text)


def _default(name: str) -> Any:
    """None for sampling: a model may recommend other values than SamplingParams has."""
    return [] if name in ("logit_bias", "dry_sequence_breakers", "stop") else _DEFAULTS.get(name)


def _bias(text: str) -> tuple[int, float]:
    """Parse `15043+1` or `15043-inf`, as llama.cpp writes it."""
    sign = max(text.find("+"), text.find("-", 1))
    try:
        return int(text[:sign]) if sign > 0 else int(""), float(text[sign:])
    except ValueError:
        raise InvalidParameter("logit_bias", "TOKEN_ID+BIAS or TOKEN_ID-BIAS", value=text) from None


def _texts(values: Mapping[str, Any]) -> dict[str, Any]:
    """The texts among the values, decoded. Raises InvalidParameter for one that is not UTF-8."""

    def text_of(name: str, value: Any) -> Any:
        if isinstance(value, str):
            return decoded_value(name, value)
        return value and type(value)(decoded_value(name, each) for each in value)

    return {name: text_of(name, values[name]) for name in _TEXTS}


def unescaped(text: str) -> str:
    """The text that was meant by one typed in a shell: \\n for a new line, \\\\n for a backslash and an n."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)


def _text_of(text: str | None, file: Path | None, name: str) -> str | None:
    if text is not None and file is not None:
        raise InvalidParameter(name, "given as a text or in a file, not both")
    if file is None:
        return text
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"cannot read {file}: {reason}; check the path") from error


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}


def _number(what: type[float] | type[int]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return what(text)
        except ValueError:
            return text  # pymtp rejects it, with the range in the message

    return parse


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = None
    if seed is None or not -1 <= seed < 2**32:
        raise typer.BadParameter(f"must be an integer between 0 and {2**32 - 1}, or -1 for a random one, not {text!r}")
    return seed


def _float(*names: str, help: str, metavar: str = "N") -> Any:
    return Annotated[float | None, typer.Option(*names, parser=_number(float), metavar=metavar, help=help)]


def _int(*names: str, help: str, metavar: str = "N") -> Any:
    return Annotated[int | None, typer.Option(*names, parser=_number(int), metavar=metavar, help=help)]


def _with_defaults(flags: Mapping[str, Any]) -> dict[str, Any]:
    """`flags` with the defaults of SamplingParams in their help texts."""
    for name, kind in flags.items():
        default = getattr(SamplingParams, name, None)
        if isinstance(default, (int, float)):
            kind.__metadata__[0].help += f"  [default: {default}]"
    return dict(flags)


def _text(kind: Any, *names: str, help: str, metavar: str) -> Any:
    return Annotated[kind, typer.Option(*names, metavar=metavar, help=help)]


def _choice(*names: str, help: str, metavar: str) -> Any:
    complete = completing(metavar.split("|"))
    return Annotated[str, typer.Option(*names, metavar=metavar, help=help, autocompletion=complete)]


_SAMPLING: dict[str, Any] = _with_defaults(
    {
        "samplers": _text(
            str | None,
            "--samplers",
            metavar="NAMES",
            help=f"The sampler chain, separated by ';', from {', '.join(SAMPLERS)}.  [default: as llama.cpp]",
        ),
        "sampler_seq": _text(
            str | None,
            "--sampler-seq",
            "--sampling-seq",
            metavar="LETTERS",
            help=f"The sampler chain as letters: {', '.join(f'{letter} {name}' for name, letter in SAMPLERS.items())}.",
        ),
        "seed": Annotated[
            int | None,
            typer.Option("-s", "--seed", parser=_seed, metavar="N", help="Seed; -1: random.  [default: random]"),
        ],
        "temperature": _float("--temp", "--temperature", help="Temperature; 0: greedy.", metavar="T"),
        "top_k": _int("--top-k", help="Keep the N most likely tokens; 0: all."),
        "top_p": _float("--top-p", help="Keep the top tokens whose probabilities sum to P; 1: all.", metavar="P"),
        "min_p": _float("--min-p", help="Drop tokens less likely than P times the top one; 0: none.", metavar="P"),
        "typical_p": _float("--typical", "--typical-p", help="Locally typical sampling; 1: off.", metavar="P"),
        "top_n_sigma": _float(
            "--top-nsigma", "--top-n-sigma", help="Keep logits within N standard deviations of the highest; -1: off."
        ),
        "xtc_probability": _float("--xtc-probability", help="Probability that XTC is applied; 0: off.", metavar="P"),
        "xtc_threshold": _float(
            "--xtc-threshold",
            help="XTC drops all tokens more likely than P except the least likely of them.",
            metavar="P",
        ),
        "repeat_last_n": _int("--repeat-last-n", help="Last tokens that penalties look at; 0: off, -1: all."),
        "repeat_penalty": _float("--repeat-penalty", help="Penalty for repeated tokens; 1: off."),
        "presence_penalty": _float("--presence-penalty", help="Subtracted from the logits of repeated tokens; 0: off."),
        "frequency_penalty": _float("--frequency-penalty", help="Subtracted once per occurrence; 0: off."),
        "dry_multiplier": _float("--dry-multiplier", help="DRY: penalty for continuing a repetition; 0: off."),
        "dry_base": _float("--dry-base", help="DRY: growth of the penalty per token."),
        "dry_allowed_length": _int("--dry-allowed-length", help="DRY: no penalty for repetitions of up to N tokens."),
        "dry_penalty_last_n": _int("--dry-penalty-last-n", help="DRY: last tokens that it looks at; 0: off, -1: all."),
        "dry_sequence_breakers": _text(
            list[str],
            "--dry-sequence-breaker",
            metavar="TEXT",
            help="DRY: repetitions end at TEXT; may be given several times; none: no breakers.",
        ),
        "dynatemp_range": _float(
            "--dynatemp-range", help="Vary the temperature by up to N, depending on the entropy; 0: off."
        ),
        "dynatemp_exponent": _float("--dynatemp-exp", help="Exponent of the entropy in dynamic temperature."),
        "mirostat": _int("--mirostat", help="1 or 2: mirostat instead of the chain, without drafts; 0: off."),
        "mirostat_eta": _float("--mirostat-lr", help="Mirostat's learning rate, eta."),
        "mirostat_tau": _float("--mirostat-ent", help="Mirostat's target entropy, tau."),
        "adaptive_target": _float(
            "--adaptive-target", help="Probability of the tokens that adaptive_p prefers, without drafts.", metavar="P"
        ),
        "adaptive_decay": _float("--adaptive-decay", help="How slowly adaptive_p adapts."),
        "logit_bias": _text(
            list[str],
            "-l",
            "--logit-bias",
            metavar="TOKEN(+/-)BIAS",
            help="Add BIAS to the logit of a token id; may be given several times.",
        ),
    }
)

_GENERATION: dict[str, Any] = {
    "grammar": _text(str | None, "--grammar", metavar="GBNF", help="Constrain the output to this grammar."),
    "grammar_file": _text(Path | None, "--grammar-file", metavar="FILE", help="Grammar from FILE."),
    "json_schema": _text(
        str | None, "-j", "--json-schema", metavar="JSON", help="Constrain the output to this JSON schema."
    ),
    "json_schema_file": _text(Path | None, "-jf", "--json-schema-file", metavar="FILE", help="JSON schema from FILE."),
    "stop": _text(
        list[str],
        "-r",
        "--stop",
        "--reverse-prompt",
        metavar="TEXT",
        help="Stop before TEXT; may be given several times.",
    ),
    "draft_min": _int("--spec-draft-n-min", "--draft-min", help="Drop drafts of fewer than N tokens."),
    "draft_p_min": _float(
        "--spec-draft-p-min",
        "--draft-p-min",
        help="End a draft where no token has a probability of P or more.",
        metavar="P",
    ),
    "draft_pick": _choice(
        "--draft-pick",
        metavar="greedy|sample|auto",
        help="Draft the most likely tokens (greedy) or draw them (sample); auto: what is accepted more often.",
    ),
    "accept": _choice(
        "--accept",
        metavar="auto|match|rejection|rejection-tokenwise|relaxed",
        help="Acceptance method; only relaxed changes the output, and only while the model thinks.",
    ),
    "relaxed_top_n": _int("--relaxed-top-n", help="Relaxed: accept drafts among the target's top N tokens."),
    "relaxed_delta": _float(
        "--relaxed-delta",
        help="Relaxed: accept no draft that is more than P less probable than the top token.",
        metavar="P",
    ),
    "thinking_tags": _text(
        tuple[str, str],
        "--thinking-tags",
        metavar="BEGIN END",
        help="Tags around the model's thinking.  [default: the model's own]",
    ),
}

_TEXTS = ("grammar", "json_schema", "stop", "dry_sequence_breakers", "thinking_tags")

_DEFAULTS: dict[str, Any] = {
    "draft_min": 0,
    "draft_p_min": 0.0,
    "draft_pick": "auto",
    "accept": "auto",
    "relaxed_top_n": 10,
    "relaxed_delta": 0.6,
}
