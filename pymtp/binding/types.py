"""The handles of models at the boundary to the native library."""

from __future__ import annotations

from typing import Any

from pymtp.binding.library import ffi


def model_pointer(model: object | None) -> Any:
    """A handle of a model, a pointer or its address, as a pointer; None becomes NULL."""
    return ffi.cast("struct llama_model *", ffi.NULL if model is None else model)
