"""Threads on machines with several memories: llama.cpp's strategies, of which a process has one.

Owns which one that is.
"""

from __future__ import annotations

import threading

from pymtp.binding.library import lib
from pymtp.errors import InvalidParameter
from pymtp.loading.params import Numa

_STRATEGIES = {
    "distribute": lib.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": lib.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": lib.GGML_NUMA_STRATEGY_NUMACTL,
}
_lock = threading.Lock()
_chosen: list[Numa] = []


def use_numa(strategy: Numa) -> None:
    """Use a strategy from now on, unless it is off. Raises InvalidParameter if the process has another one."""
    if strategy == "off":
        return
    with _lock:
        if not _chosen:
            lib.llama_numa_init(_STRATEGIES[strategy])
            _chosen.append(strategy)
    if strategy not in _chosen:
        raise InvalidParameter("numa", f"{_chosen[0]}, as for the first model of the process", value=strategy)
