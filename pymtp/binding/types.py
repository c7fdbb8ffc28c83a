"""The types at the boundary to the native library: arrays, and pointers from llama-cpp-python's handles."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from pymtp.binding.library import ffi

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
Probs = npt.NDArray[np.float64]


def model_pointer(model: object | None) -> Any:
    """llama-cpp-python's handle of a model, as a pointer for the native library; None becomes NULL."""
    if model is None:
        return ffi.NULL
    return ffi.cast("struct llama_model *", ctypes.cast(model, ctypes.c_void_p).value)  # type: ignore[arg-type]
