"""Checks what devices compute in the passes of a session, products and attention, beside llama.cpp's CPU in F32."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import check
from pymtp.errors import BackendError, PymtpError
from pymtp.gguf.types import TENSOR_TYPES

_WEIGHTS = ("F16", "BF16", "Q8_0", "Q5_0", "Q4_0", "IQ4_NL", "MXFP4", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
_CACHES = ("F16", "Q8_0", "Q4_0")
_ROWS = (1, 2, 4, 8, 16)  # Vulkan compiles a kernel for each, which takes seconds on a CPU
_PRODUCT_ERROR, _ATTENTION_ERROR = 0.03, 0.05  # rounding to 8 bits makes 0.002 and 0.02, sums in F16 0.011


class Operation(NamedTuple):
    """A product with a matrix of a type, or attention to a cache of it, as one device computes it."""

    name: str
    error: float
    """The largest difference to sums of floats, of the largest value."""
    company: float
    """The largest difference between rows alone and together, likewise."""
    is_right: bool


def check_operations(device: Any) -> list[Operation]:
    """Compute each operation that a device has, for 1 to 16 rows. `device`: llama.cpp's handle.

    Raises BackendError if memory runs out.
    """
    numbers = {each.name: number for number, each in TENSOR_TYPES.items()}
    found = []
    for kind, types in (("product", _WEIGHTS), ("attention", _CACHES)):
        for name in types:
            try:
                error, company = _differences(device, numbers[name], kind == "attention", _ROWS)
            except BackendError:
                raise
            except PymtpError:
                continue  # not on this device
            limit = _ATTENTION_ERROR if kind == "attention" else _PRODUCT_ERROR
            found.append(Operation(f"{name} {kind}", error, company, error <= limit))
    return found


def _differences(device: Any, ggml_type: int, is_attention: bool, n_rows: Sequence[int]) -> tuple[float, float]:
    error, company = ffi.new("double *"), ffi.new("double *")
    check(lib.pymtp_check_operation(device, ggml_type, is_attention, n_rows, len(n_rows), error, company))
    return error[0], company[0]
