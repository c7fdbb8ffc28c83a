"""Forced acceptance at given rates, for benchmarks: from flags, or from the environment.

Owns the format of the values. The text is not valid output then, and the command warns about it.
"""

import os
from collections.abc import Mapping
from random import Random

from pymtp import DraftParams, InvalidParameter
from pymtp.acceptance.forced import Forced
from pymtp.drafting.choice import longest_draft

from .flags import Values
from .output import print_stderr

VARIABLE = "PYMTP_FORCED_ACCEPTANCE"
"""count=N, rates=P,P,... or length=L: for runs whose flags cannot be changed."""


def forced_by_flags(own: Values, seed: int | None = None) -> Forced | None:
    """`forced_acceptance` by the flags of a command."""
    n_draft = longest_draft(DraftParams(draft=own.draft, draft_max=own.draft_max))
    return forced_acceptance(own.spec_synth_rates, own.spec_synth_len, n_draft, seed)


def forced_acceptance(
    rates: str | None, length: float | None, n_draft: int, seed: int | None, environ: Mapping[str, str] = os.environ
) -> Forced | None:
    """What the flags ask for, else the environment; None if nothing is forced. `n_draft`: drafts of a round.

    Raises InvalidParameter for an invalid flag. An invalid variable is ignored with a warning.
    """
    if n_draft == 0:
        return None
    if rates is not None and length is not None:
        raise InvalidParameter("spec_synth_len", "given without --spec-synth-rates")
    if rates is not None:
        return _read("rates", rates, n_draft, seed, "spec_synth_rates")
    if length is not None:
        return _read("length", str(length), n_draft, seed, "spec_synth_len")
    if not (value := environ.get(VARIABLE)):
        return None
    kind, _, text = value.partition("=")
    try:
        return _read(kind, text, n_draft, seed, VARIABLE)
    except InvalidParameter as error:
        print_stderr(f"pymtp: ignoring the environment: {error}")
        return None


def _read(kind: str, text: str, n_draft: int, seed: int | None, name: str) -> Forced:
    random = Random(seed or 0).random
    try:
        if kind == "count" and int(text) <= n_draft:
            return Forced([float(i < int(text)) for i in range(n_draft)], random)
        if kind == "rates":
            return Forced([float(part) for part in text.split(",")][:n_draft], random)
        if kind == "length":
            return Forced.of_length(float(text), n_draft, random)
    except ValueError:  # also InvalidParameter
        pass
    allowed = {
        "rates": "numbers between 0 and 1 that never increase (0.8,0.5,0.3)",
        "length": f"a mean length between 1 and {n_draft + 1}",
    }.get(kind if name != VARIABLE else "", f"count=N, rates=P,P,... or length=L, up to {n_draft} drafts")
    raise InvalidParameter(name, allowed, value=text if name != VARIABLE else f"{kind}={text}")
