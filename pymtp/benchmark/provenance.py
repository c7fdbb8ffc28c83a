"""The provenance of figures: machine, devices, model. The sources are those of pymtp.version_text."""

from functools import cache

from pymtp.placement.devices import devices
from pymtp.text.files import sha256_of


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


sha256 = cache(sha256_of)
"""The hash of a file, which is read only once."""


@cache
def cpu() -> str:
    """The processor's name."""
    return next(device.description for device in devices() if device.kind == "CPU")
