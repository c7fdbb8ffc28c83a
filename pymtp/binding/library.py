"""Loads the native library once per process, before anything else can load another one.

llama-cpp-python's Python side and pymtp's extension module must share one libllama: the patched one that was
built with this package. Knows where it is and what it was built from; nothing about models.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from pymtp.errors import LibraryError

VERSION = "0.3.36"
PIN = f"llama-cpp-python {VERSION}"  # native/llama_cpp.pin

_INSTALL = f"CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install llama-cpp-python=={VERSION}"


def library_file() -> Path:
    """The patched libllama of this installation. Raises LibraryError if there is none."""
    # next to the extension module, which an editable install does not put next to the Python files
    spec = util.find_spec("pymtp._native")
    if spec is None or spec.origin is None:
        raise LibraryError("pymtp's native library was not built: run `make`, or `pip install .`")
    names = {"win32": "llama.dll", "darwin": "libllama.dylib"}
    path = Path(spec.origin).parent / "lib" / names.get(sys.platform, "libllama.so")
    if not path.is_file():
        raise LibraryError(f"{path} is missing: install pymtp again")
    return path


def check_version() -> None:
    """Raise LibraryError unless the installed llama-cpp-python is the pinned one."""
    from importlib import metadata

    try:
        found = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        raise LibraryError(f"llama-cpp-python is not installed: {_INSTALL}") from None
    if found != VERSION:
        raise LibraryError(f"llama-cpp-python is {found}, pymtp needs {VERSION}: {_INSTALL}")


def import_llama_cpp() -> ModuleType:
    """Import llama_cpp with our libllama. Raises LibraryError if it already uses another one."""
    check_version()
    library = library_file()
    if "llama_cpp" not in sys.modules:
        # only for the import: child processes and other packages must not see it
        before = os.environ.get("LLAMA_CPP_LIB_PATH")
        os.environ["LLAMA_CPP_LIB_PATH"] = str(library.parent)
        try:
            import_module("llama_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise LibraryError(f"cannot load {library}: {error}") from error
        finally:
            if before is None:
                del os.environ["LLAMA_CPP_LIB_PATH"]
            else:
                os.environ["LLAMA_CPP_LIB_PATH"] = before
        log = import_module("pymtp.binding.log")  # llama_cpp has taken it over
        log.set_log_level(log.level)
    loaded = Path(import_module("llama_cpp.llama_cpp")._lib._name)
    if not loaded.exists() or not loaded.samefile(library):
        raise LibraryError(f"llama_cpp already runs on {loaded}: import pymtp before llama_cpp")
    return sys.modules["llama_cpp"]


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
    """Raise LibraryError unless library and extension module were built from the same sources, those of the pin."""
    if library != module or not library.startswith(PIN + " "):
        raise LibraryError(
            f"libllama is '{library}', the extension module was built for '{module}', this package for '{PIN}': "
            "install pymtp again"
        )


def abi_id() -> str:
    """The sources of the loaded library: "llama-cpp-python 0.3.36 + <hash of patches and engine>"."""
    return _string(lib.pymtp_abi_id())


def _string(pointer: Any) -> str:
    text: bytes = ffi.string(pointer)
    return text.decode()


ffi, lib = import_native(library_file())
check_abi_id(abi_id(), _string(lib.PYMTP_BUILT_FOR))

SERIES = abi_id().rpartition(" ")[2]  # 12 hex digits over the pin, the patches and the engine
