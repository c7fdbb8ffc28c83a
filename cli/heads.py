"""`pymtp heads`: MTP heads as files of their own.

Owns what its commands print.
"""

import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

from pymtp.heads import Change, HeadTypes, attach_heads, extract_heads, quantize_heads

from .flags import Values
from .interrupt import cleaning_up
from .output import print_note, print_stderr
from .progress import writing
from .text import printable, size_text


def extract(own: Values) -> None:
    _write(lambda show: extract_heads(own.model, own.output, bare=own.bare, force=own.force, on_write=show))


def attach(own: Values) -> None:
    _write(lambda show: attach_heads(own.model, own.heads, own.output, force=own.force, on_write=show))


def quantize(own: Values) -> None:
    types = HeadTypes(own.type, own.output_type, own.experts_type, tuple(own.tensor_type))
    changes: list[Change] = []

    def run(show: Any) -> Path:
        changes.extend(quantize_heads(own.model, own.output, types, force=own.force, on_write=show))
        return Path(own.output)

    _write(run)
    for change in changes:
        instead = f", as the blocks of {change.wanted} do not fit its rows" if change.wanted else ""
        print_stderr(f"{printable(change.name)}: {change.before} to {change.after}{instead}")


def train(own: Values) -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for PyTorch's threads, where others want the cores too
    from pymtp.training import TrainParams, train_head

    from .asked import given_for

    params = TrainParams(**given_for(TrainParams, own))
    with cleaning_up():
        path = train_head(own.model, own.output, params=params, force=own.force, on_progress=print_stderr)
    print_note(f"wrote {path}, {size_text(path.stat().st_size)}; what it gains:")
    print_stderr(f"pymtp bench {quote(str(own.model))} --draft-model {quote(str(path))} --draft-max 0-3,auto")


def _write(run: Callable[[Any], Path]) -> None:
    with cleaning_up(), writing() as show:
        path = run(show)
    print_note(f"wrote {path}, {size_text(path.stat().st_size)}")
