"""The provenance of figures: machine, devices, model. The sources are those of pymtp.version_text."""

import hashlib
import platform
import re
from functools import cache
from pathlib import Path

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
