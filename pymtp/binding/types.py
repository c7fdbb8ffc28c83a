"""The handles of models at the boundary to the native library."""

from typing import Any

from pymtp.binding.library import ffi
from pymtp.errors import InvalidParameter

_FIRST_ADDRESS = 4096
"""No system maps the first page: a smaller number is a mistake."""


def model_pointer(model: object | None) -> Any:
    """A handle of a model, a pointer or its address, as a pointer; None becomes NULL. Raises InvalidParameter."""
    try:
        if isinstance(model, int) and model < _FIRST_ADDRESS:
            raise TypeError
        return ffi.cast("struct llama_model *", ffi.NULL if model is None else model)
    except TypeError:
        raise InvalidParameter("model", "the handle of a loaded model", value=model) from None
