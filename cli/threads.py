"""The flags that say which processors compute, and how eagerly, under llama.cpp's names.

Owns names, types and help texts; which processors there are, pymtp checks.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .flags import Command, with_flags
from .parsers import integer

MAX_THREADS = 512  # ggml takes no more


def _flag(*names: str, kind: Any = str, parser: Any = None, metavar: str, text: str) -> Any:
    return Annotated[kind, typer.Option(*names, parser=parser, metavar=metavar, help=text)]


_priority, _polling, _switch = integer(-1, 3), integer(0, 100), integer(0, 1)

THREADS: dict[str, tuple[Any, Any]] = {
    "n_threads_batch": (
        _flag(
            *("-tb", "--threads-batch"),
            kind=int | None,
            parser=integer(1, MAX_THREADS),
            metavar="N",
            text="CPU threads for prompts.  [default: as -t]",
        ),
        None,
    ),
    "cpu_mask": (
        _flag(
            *("-C", "--cpu-mask"),
            kind=str | None,
            metavar="HEX",
            text="Processors that threads run on, as a hexadecimal number: bit 0 is processor 0.  [default: any]",
        ),
        None,
    ),
    "cpu_range": (
        _flag(
            *("-Cr", "--cpu-range"),
            kind=str | None,
            metavar="FIRST-LAST",
            text="Same, as a range (0-3); combined with -C.",
        ),
        None,
    ),
    "cpu_strict": (
        _flag(
            "--cpu-strict", kind=int, parser=_switch, metavar="0|1", text="1: each thread has one of them to itself."
        ),
        0,
    ),
    "prio": (
        _flag(
            "--prio",
            kind=int,
            parser=_priority,
            metavar="N",
            text="Priority of the threads: -1 low, 0 normal, 1 medium, 2 high, 3 real-time.",
        ),
        0,
    ),
    "poll": (
        _flag(
            "--poll",
            kind=int,
            parser=_polling,
            metavar="0...100",
            text="How long threads look for work before they sleep; only for builds without OpenMP.",
        ),
        50,
    ),
    "cpu_mask_batch": (
        _flag(
            *("-Cb", "--cpu-mask-batch"),
            kind=str | None,
            metavar="HEX",
            text="Processors for prompts; this and the flags that follow: by default as for drafts and rounds.",
        ),
        None,
    ),
    "cpu_range_batch": (
        _flag(
            *("-Crb", "--cpu-range-batch"),
            kind=str | None,
            metavar="FIRST-LAST",
            text="Same, as a range; combined with -Cb.",
        ),
        None,
    ),
    "cpu_strict_batch": (
        _flag(
            "--cpu-strict-batch", kind=int | None, parser=_switch, metavar="0|1", text="As --cpu-strict, for prompts."
        ),
        None,
    ),
    "prio_batch": (
        _flag("--prio-batch", kind=int | None, parser=_priority, metavar="N", text="As --prio, for prompts."),
        None,
    ),
    "poll_batch": (
        _flag("--poll-batch", kind=int | None, parser=_polling, metavar="0...100", text="As --poll, for prompts."),
        None,
    ),
}
"""Flags by the names of ContextParams' fields."""
_SWITCHES = {"cpu_strict", "cpu_strict_batch"}


def threads_given(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords for ContextParams, from the values of THREADS' flags: of those that were given."""
    given = {name: values[name] for name, (_, default) in THREADS.items() if values[name] != default}
    return {name: bool(value) if name in _SWITCHES else value for name, value in given.items()}


def with_threads(command: Command) -> Command:
    """Replace a command's parameter `threads` (a dict of keywords for pymtp.ContextParams) by the flags."""
    return with_flags(command, "threads", THREADS, threads_given)
