"""Fuzzers: random damage to all that pymtp reads, in a process of its own.

    PYTHONPATH=tests python -m fuzz [NAME ...] [--time 600] [--cases N] [--seed 0]     (make fuzz TIME=600)
    PYTHONPATH=tests python -m fuzz NAME --seed 0 --case 123                           one case again, in this process

A case follows from fuzzer, seed and number alone. A fault is a signal, a hang, memory beyond the fuzzer's limit, or an
exception that is not pymtp's own. `runner` finds faults, a fuzzer says what a case is and what is done with it.
"""

from __future__ import annotations

from .bodies import Bodies
from .calls import Calls
from .files import Files
from .flags import Flags
from .fuzzer import Fuzzer
from .headers import Headers, Loads
from .schemas import Grammars, Schemas
from .states import States
from .templates import Templates

FUZZERS: dict[str, type[Fuzzer]] = {
    each.name: each for each in (Headers, Loads, States, Calls, Files, Flags, Templates, Schemas, Grammars, Bodies)
}
