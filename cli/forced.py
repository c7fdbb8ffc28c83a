"""Forced acceptance at given rates, for benchmarks: what flags ask for.

The text is not valid output then, and the command warns about it.
"""

from random import Random

from pymtp import DraftParams, InvalidParameter
from pymtp.acceptance.forced import Forced
from pymtp.drafting.choice import longest_draft
from pymtp.errors import require

from .flags import Values


def forced_by_flags(own: Values, seed: int | None = None) -> Forced | None:
    """What --spec-synth-rates or --spec-synth-len force; None: nothing. Raises InvalidParameter."""
    rates, length = own.spec_synth_rates, own.spec_synth_len
    require(rates is None or length is None, "spec_synth_len", "given without --spec-synth-rates")
    n_draft = longest_draft(DraftParams(draft=own.draft, draft_max=own.draft_max))
    if n_draft == 0 or (rates is None and length is None):
        return None
    random = Random(seed or 0).random
    try:
        return Forced(rates[:n_draft], random) if rates else Forced.of_length(length, n_draft, random)
    except InvalidParameter as error:
        name = "spec_synth_rates" if rates else "spec_synth_len"
        raise InvalidParameter(name, error.allowed, value=error.value) from None
