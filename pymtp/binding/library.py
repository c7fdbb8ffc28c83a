"""Loads the native library once per process, and turns its status codes into exceptions.

Its files have names of their own (libpymtp-llama, ...), so that another llama.cpp in the process, llama-cpp-python's
for example, is neither taken for it nor disturbed. Knows where it is, what it was built from, and the forms in which
calls take and return handles, texts and JSON; nothing about what they mean.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from typing import Any, TypeVar

from pymtp import errors
from pymtp.errors import InvalidParameter, LibraryError, PymtpError

T = TypeVar("T")

SILENT = 5
"""The level from which pymtp_log_show shows nothing: above those of ggml.h."""
_FIRST_ADDRESS = 4096
"""No system maps the first page: a smaller number is a mistake."""


def library_file() -> Path:
    """The patched libllama of this installation. Raises LibraryError if there is none."""
    # next to the extension module, which an editable install does not put next to the Python files
    spec = util.find_spec("pymtp._native")
    if spec is None or spec.origin is None:
        raise LibraryError("pymtp's native library was not built: run `make`, or `pip install .`")
    names = {"win32": "pymtp-llama.dll", "darwin": "libpymtp-llama.dylib"}
    path = Path(spec.origin).parent / "lib" / names.get(sys.platform, "libpymtp-llama.so")
    if not path.is_file():
        raise LibraryError(f"{path} is missing: install pymtp again")
    return path


def import_native(library: Path) -> tuple[Any, Any]:
    """The extension module's ffi and lib."""
    if sys.platform == "win32":
        os.add_dll_directory(str(library.parent))
    try:
        native = import_module("pymtp._native")
    except ImportError as error:
        raise LibraryError(f"cannot load pymtp's extension module: {error}; install pymtp again") from error
    return native.ffi, native.lib


def check_abi_id(library: str, module: str) -> None:
    """Raise LibraryError unless library and extension module were built from the same sources."""
    if library != module:
        what = f"libllama is '{library}', the extension module was built for '{module}'"
        raise LibraryError(f"{what}: install pymtp again")


def load_backends(folder: Path) -> None:
    """Load the backends that are files of their own, as in wheels; nothing to do where they are linked in.

    Of the CPU's there is one for each kind of processor, of which llama.cpp takes the best that this one is.
    Raises LibraryError if there is none for it.
    """
    if lib.ggml_backend_reg_count() > 0:
        return
    lib.ggml_backend_load_all_from_path(os.fsencode(folder))
    if lib.ggml_backend_dev_by_type(lib.GGML_BACKEND_DEVICE_TYPE_CPU) == ffi.NULL:
        raise LibraryError(f"{folder} has no backend for this processor: build pymtp on this machine (pip install .)")


def abi_id() -> str:
    """The sources of the loaded library: "llama.cpp b11549 + <hash of patches and engine>"."""
    return text_of(lib.pymtp_abi_id())


def text_of(pointer: Any) -> str:
    """A string of the library's. What is not UTF-8 in it, as where it was cut amid a character, becomes U+FFFD."""
    text: bytes = ffi.string(pointer)
    return text.decode(errors="replace")


def check(status: int) -> None:
    """Raise the exception for `status`, with the library's message; do nothing if the call succeeded."""
    if status != lib.PYMTP_OK:
        raise _ERRORS.get(status, errors.BackendError)(error_message())


def json_of(kind: type[T], function: Callable[..., int], *arguments: Any) -> T:
    """What a function of chats leaves as JSON in its last argument, as a `kind`.

    Raises BackendError if it could not do what was asked, PymtpError if it takes the arguments for malformed.
    """
    import msgspec  # which those who only list devices need not wait for

    result = ffi.new("char **")
    check(function(*arguments, result))
    try:
        return msgspec.json.decode(ffi.string(result[0]), type=kind)
    finally:
        lib.pymtp_json_free(result[0])


def made(kind: str, init: Callable[..., int], *args: object) -> Any:
    """The `struct pymtp_<kind>` that `init` makes of `args`, freed with the last reference. Raises as `check`."""
    handle = ffi.new(f"struct pymtp_{kind} **")
    check(init(*args, handle))
    return ffi.gc(handle[0], lib.pymtp_free)


def model_pointer(model: object | None) -> Any:
    """A handle of a model, a pointer or its address, as a pointer; None becomes NULL. Raises InvalidParameter."""
    try:
        if isinstance(model, int) and model < _FIRST_ADDRESS:
            raise TypeError
        return ffi.cast("struct llama_model *", ffi.NULL if model is None else model)
    except TypeError:
        raise InvalidParameter("model", "the handle of a loaded model", value=model) from None


def error_message() -> str:
    """Why the last call of this thread failed, in one line."""
    return " ".join(text_of(lib.pymtp_error_message()).split())


ffi, lib = import_native(library_file())
check_abi_id(abi_id(), text_of(lib.PYMTP_BUILT_FOR))
lib.pymtp_log_show(SILENT)  # backends speak as soon as they are there
load_backends(library_file().parent)

PIN, _, SERIES = abi_id().rpartition(" + ")
"""What the pin calls its llama.cpp, and 12 hex digits over the pin, the patches and the engine."""

_ERRORS: dict[int, type[PymtpError]] = {
    lib.PYMTP_FULL: errors.ContextFull,
    lib.PYMTP_INVALID: PymtpError,
    lib.PYMTP_FAILED: errors.BackendError,
    lib.PYMTP_LOST: errors.RemoteError,
    lib.PYMTP_NOT_FINITE: errors.NotFinite,
    lib.PYMTP_BLOCKED: errors.NothingAllowed,
}
