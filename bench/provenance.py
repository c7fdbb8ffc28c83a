"""The machine and the model of a measurement, in words."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pymtp.benchmark.provenance import cpu, sha256
from pymtp.gguf.facts import model_facts


def gpus_in(load_log: str) -> list[str]:
    """The GPUs in llama.cpp's log of loading a model."""
    return re.findall(r"using device \S+ \((.+?)\)", load_log)


def machine(n_threads: int, gpus: Sequence[str]) -> str:
    """Processor, threads, GPUs, and how busy the machine is."""
    parts = [f"{cpu()}, {os.cpu_count()} cores", f"{n_threads} threads", *gpus]
    if hasattr(os, "getloadavg"):
        parts.append(f"load {os.getloadavg()[0]:.1f} at the start")
    return ", ".join(parts)


def model_text(path: Path) -> str:
    """Name, size, quantisation and hash of a model file."""
    info = model_facts(path)
    return (
        f"{path.name} ({info.architecture}, {info.n_parameters / 1e6:.1f} million parameters, {info.quantization}, "
        f"{info.n_layer} layers, {info.n_heads} MTP heads, sha256 {sha256(path)[:12]})"
    )
