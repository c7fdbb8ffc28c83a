"""Which processors the process may use, and how many cores these are. Knows nothing of the engine."""

import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

_LINUX = Path("/sys/devices/system/cpu")


def usable_processors() -> frozenset[int]:
    """The numbers of the processors that the calling thread may run on; where the system does not say, of all."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def n_cores(cpus: Path = _LINUX, among: Set[int] | None = None) -> int:
    """Physical cores among these processors; None: among those that the process may run on."""
    allowed = usable_processors() if among is None else among
    with suppress(OSError):  # another system than Linux
        # processors of one core list each other
        return len({(cpus / f"cpu{i}" / "topology" / "thread_siblings_list").read_bytes() for i in allowed})
    if among is not None or hasattr(os, "sched_getaffinity"):
        return len(allowed)
    import psutil  # takes as long as loading a small model

    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
