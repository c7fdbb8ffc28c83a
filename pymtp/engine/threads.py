"""Threads of the CPU: how many, and on which cores.

Owns llama.cpp's masks and ranges of cores, and what is refused of them. Knows the operating system; no context.
"""

import re
import sys
from collections.abc import Set
from typing import Any, NamedTuple

from pymtp.binding.library import ffi
from pymtp.engine.cores import n_cores, usable_processors
from pymtp.errors import InvalidParameter, require
from pymtp.text.spans import spans

MAX_THREADS = 512
"""The most that ggml takes; its masks have as many bits."""


class Threads(NamedTuple):
    """The threads of a pass."""

    n_threads: int
    processors: frozenset[int]
    """Where they may run, by their numbers in the system; none: anywhere."""

    def native(self, *, is_strict: bool) -> Any:
        """The threads as a `ggml_threadpool_params *`. `is_strict`: each has a processor of its own."""
        native = ffi.new("struct ggml_threadpool_params *")
        for processor in self.processors:
            native.cpumask[processor] = True
        native.n_threads, native.strict_cpu = self.n_threads, is_strict
        native.poll = 50  # ggml's default
        return native


def threads_of(params: Any) -> tuple[Threads, Threads]:
    """The threads of rounds, and of prompts: what is not said of the second is as for the first.

    `params` has the fields of ContextParams. Raises InvalidParameter for processors that there are not, and fewer of
    them than threads.
    """
    rounds = _threads(params, "", Threads(0, frozenset()))
    return rounds, _threads(params, "_batch", rounds)


def _threads(params: Any, suffix: str, default: Threads) -> Threads:
    mask, span, n_threads = (getattr(params, name + suffix) for name in ("cpu_mask", "cpu_range", "n_threads"))
    has_own = mask is not None or span is not None
    processors = _processors(mask, span, suffix) if has_own else default.processors
    if n_threads is None:
        is_as_default = default.n_threads and processors == default.processors
        n_threads = default.n_threads if is_as_default else n_cores(among=processors or None)
    where = suffix if has_own else ""
    allowed = f"at most {len(processors)}, as many as cpu_mask{where} and cpu_range{where} have processors"
    require(not processors or n_threads <= len(processors), "n_threads" + suffix, allowed, n_threads)
    return Threads(n_threads, processors)


def _processors(mask: str | None, span: str | None, suffix: str) -> frozenset[int]:
    """The processors of a mask and of a range together."""
    require(sys.platform != "darwin", "cpu_mask" + suffix, "left out on macOS, which binds no threads")
    usable = usable_processors()
    asked = {"cpu_mask": _of_mask(mask, suffix), "cpu_range": _of_range(span, suffix, usable)}
    for name, wanted in asked.items():
        if missing := wanted - usable:
            there, not_there = (spans(each, "-", ",") for each in (usable, missing))
            allowed = f"of processors that the process may use ({there}), without {not_there}"
            raise InvalidParameter(name + suffix, allowed)
    found = asked["cpu_mask"] | asked["cpu_range"]
    require(found, "cpu_mask" + suffix, "of one processor at least", mask)
    return found


def _of_mask(mask: str | None, suffix: str) -> frozenset[int]:
    if mask is None:
        return frozenset()
    if not isinstance(mask, str) or not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,128}", mask):
        allowed = "a hexadecimal number of up to 128 digits, such as 0xf: bit 0 is processor 0"
        raise InvalidParameter("cpu_mask" + suffix, allowed, value=mask)
    bits = int(mask, 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


def _of_range(span: str | None, suffix: str, usable: Set[int]) -> frozenset[int]:
    if span is None:
        return frozenset()
    match = re.fullmatch(r"(\d*)-(\d*)", span) if isinstance(span, str) else None
    first, last = (int(match[1] or 0), int(match[2] or max(usable))) if match else (1, 0)
    allowed = "two processors, such as 0-3, or only the first or the last: 4- or -3"
    require(0 <= first <= last < MAX_THREADS, "cpu_range" + suffix, allowed, span)
    return frozenset(range(first, last + 1))
