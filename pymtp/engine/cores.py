"""How many cores the process may use. Knows the operating system, nothing of the engine."""

from __future__ import annotations

import os
from pathlib import Path

_LINUX = Path("/sys/devices/system/cpu")


def n_cores(cpus: Path = _LINUX) -> int:
    """Physical cores among the processors that the process may run on."""
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        try:
            # processors of one core list each other
            return len({(cpus / f"cpu{i}" / "topology" / "thread_siblings_list").read_bytes() for i in allowed})
        except OSError:
            return len(allowed)
    import psutil  # takes as long as loading a small model

    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
