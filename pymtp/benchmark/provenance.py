"""The provenance of figures: machine, devices, model. The sources are those of pymtp.version_text."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pymtp.gguf.facts import model_facts
from pymtp.placement.devices import devices


@cache
def backend(n_gpu_layers: int) -> str:
    """The backends that a model with `n_gpu_layers` layers on the GPU uses, such as "CUDA"."""
    kinds = ("GPU", "IGPU", "ACCEL") if n_gpu_layers else ("ACCEL",)
    names = dict.fromkeys(device.backend for device in devices() if device.kind in kinds)
    return ",".join(names) or "CPU"


@cache
def gpus() -> list[str]:
    """The GPUs that llama.cpp sees."""
    return [device.description for device in devices() if device.kind in ("GPU", "IGPU")]


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


@cache
def sha256(path: Path) -> str:
    """The hash of the whole file, 64 hex digits. Each file is read only once."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def cpu() -> str:
    """The processor's name."""
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
