"""The sampling that a GGUF recommends (`general.sampling.*`), read as llama.cpp reads it.

Owns the names of the keys. Knows values; never files.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from pymtp.errors import InvalidParameter
from pymtp.gguf.types import SAMPLING_PREFIX
from pymtp.sampling.params import SamplingParams, known_samplers

_SAME = ["top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta"]
_FIELDS = {"sequence": "samplers", "temp": "temperature", **dict(zip(_SAME, _SAME, strict=True))} | {
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
}
"""The keys after the prefix, and the fields of SamplingParams that they set."""


def recommended_sampling(values: Mapping[str, object]) -> dict[str, Any]:
    """The fields of SamplingParams that a GGUF sets. `values`: by key, without the prefix.

    Warns of a value that SamplingParams does not take, and leaves it out.
    """
    found: dict[str, Any] = {}
    for key, field in _FIELDS.items():
        if key not in values:
            continue
        value: Any = _samplers(values[key]) if key == "sequence" else _number(field, values[key])
        try:
            SamplingParams(**{field: value})
        except InvalidParameter as error:
            warnings.warn(f"{SAMPLING_PREFIX}{key} of the GGUF is ignored: {error}", stacklevel=2)
        else:
            found[field] = value
    return found


def _number(field: str, value: object) -> Any:
    """llama.cpp writes metadata as text, floats with six decimals, and reads the number that the text begins with."""
    is_whole = isinstance(getattr(SamplingParams, field), int)
    text = f"{value:.6f}" if isinstance(value, float) else str(value)
    begins = re.match(r"\s*[-+]?\d+" if is_whole else r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text)
    if begins is None:
        return value
    number = int(begins[0]) if is_whole else float(begins[0])
    return max(number, 0) if field in ("top_k", "temperature") else number  # below 0 means 0 there


def _samplers(value: object) -> tuple[str, ...]:
    """The samplers of "top_k;temperature"; as in llama.cpp, names that are not known are left out."""
    known, unknown = known_samplers(str(value).lower().split(";"))
    for name in unknown:
        warnings.warn(f"{SAMPLING_PREFIX}sequence of the GGUF names {name!r}, which is no sampler", stacklevel=3)
    return known
