"""The provenance of figures: machine, devices, model, and the library's sources."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pymtp import version_text
from pymtp.binding.library import ffi, lib
from pymtp.gguf.facts import inspect_gguf

_KINDS = ("CPU", "GPU", "IGPU", "ACCEL", "META")  # ggml_backend_dev_type


class Device(NamedTuple):
    """A device that llama.cpp can compute on."""

    name: str
    kind: str
    """CPU, GPU, IGPU (shares the host's memory), ACCEL (helps the CPU) or META."""
    backend: str
    description: str
    free_bytes: int
    total_bytes: int


def devices() -> list[Device]:
    """All devices."""
    lib.llama_backend_init()
    return [_device(lib.ggml_backend_dev_get(i)) for i in range(lib.ggml_backend_dev_count())]


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
    info = inspect_gguf(path)
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


def library() -> str:
    """pymtp, the pinned llama.cpp and the patch series."""
    return version_text()


def cpu() -> str:
    """The processor's name."""
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _device(handle: Any) -> Device:
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(handle, free, total)
    kind = lib.ggml_backend_dev_type(handle)
    return Device(
        _text(lib.ggml_backend_dev_name(handle)),
        _KINDS[kind] if kind < len(_KINDS) else "GPU",
        _text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle))),
        _text(lib.ggml_backend_dev_description(handle)),
        free[0],
        total[0],
    )


def _text(pointer: Any) -> str:
    text: bytes = ffi.string(pointer)
    return text.decode()
