"""What a figure was measured with: machine, model, and what the library was built from."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from pymtp import version_text
from pymtp.gguf_file import inspect_gguf


def gpus_in(load_log: str) -> list[str]:
    """The GPUs that llama.cpp named when it loaded a model."""
    return re.findall(r"using device \S+ \((.+?)\)", load_log)


def machine(n_threads: int, gpus: Sequence[str]) -> str:
    """Processor, threads, GPUs, and how busy the machine is."""
    parts = [f"{_cpu()}, {os.cpu_count()} cores", f"{n_threads} threads", *gpus]
    if hasattr(os, "getloadavg"):
        parts.append(f"load {os.getloadavg()[0]:.1f} at the start")
    return ", ".join(parts)


def model_text(path: Path) -> str:
    """Name, size, quantisation and hash of a model file."""
    info = inspect_gguf(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
    return (
        f"{path.name} ({info.architecture}, {info.n_parameters / 1e6:.1f} million parameters, {info.quantization}, "
        f"{info.n_layer} layers, {info.n_heads} MTP heads, sha256 {digest.hexdigest()[:12]})"
    )


def library() -> str:
    """pymtp, the pinned llama.cpp and the patch series."""
    return version_text()


def _cpu() -> str:
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
