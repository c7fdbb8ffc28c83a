"""How pymtp finds its native library, and its errors when it cannot. Needs the built library, no model."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

from pymtp.binding import library as _library
from pymtp.errors import LibraryError

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, **env: str) -> str:
    """Runs code in a fresh interpreter and returns what it printed; its errors are the caller's."""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def error_of(code: str, **env: str) -> str:
    """The message of the LibraryError that the code must raise."""
    # by name: importing the class first may already load the library
    lines = ["try:", *(f"    {line}" for line in code.splitlines()), "except Exception as error:"]
    name, _, message = python("\n".join([*lines, "    print(type(error).__name__, error)"]), **env).partition(" ")
    assert name == "LibraryError"
    return message


def fake_distribution(folder: Path, version: str) -> str:
    """A folder for PYTHONPATH in which llama-cpp-python claims to be of this version."""
    metadata = folder / f"llama_cpp_python-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n")
    return str(folder)


def test_the_library_names_the_sources_it_was_built_from() -> None:
    assert re.fullmatch(re.escape(_library.PIN) + r" \+ [0-9a-f]{12}", _library.abi_id())
    assert _library.abi_id().endswith(_library.SERIES)


def test_the_pin_is_the_same_everywhere() -> None:
    pin = (ROOT / "native" / "llama_cpp.pin").read_text("utf-8")
    assert re.search(rf"^version = {re.escape(_library.VERSION)}$", pin, re.MULTILINE)
    assert f'"llama-cpp-python=={_library.VERSION}"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"llama_cpp_python-{_library.VERSION}.tar.gz" in (ROOT / "Makefile").read_text("utf-8")


def test_llama_cpp_and_the_extension_module_share_one_library() -> None:
    # ctypes and cffi hand out the same static string: there is one copy of the library in this process
    abi_id = llama_cpp.llama_cpp._lib.pymtp_abi_id
    abi_id.restype = ctypes.c_void_p
    assert abi_id() == int(_library.ffi.cast("uintptr_t", _library.lib.pymtp_abi_id()))


def test_importing_leaves_no_trace_in_the_environment() -> None:
    show = "import os, pymtp.binding.library; print(os.environ.get('LLAMA_CPP_LIB_PATH'))"
    assert python(show, LLAMA_CPP_LIB_PATH="/some/where") == "/some/where"
    without = {key: value for key, value in os.environ.items() if key != "LLAMA_CPP_LIB_PATH"}
    command = [sys.executable, "-c", show]
    assert subprocess.run(command, capture_output=True, text=True, env=without).stdout.strip() == "None"


def test_another_librarys_path_in_the_environment_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_bytes(b"not a library")
    show = "import pymtp.binding.library as library; print(library.abi_id())"
    assert python(show, LLAMA_CPP_LIB_PATH=str(tmp_path)) == _library.abi_id()


@pytest.mark.skipif(sys.platform != "linux", reason="LD_LIBRARY_PATH is Linux's")
def test_another_ggml_in_the_library_path_is_not_picked_up(tmp_path: Path) -> None:
    for file in _library.library_file().parent.glob("*.so"):
        (tmp_path / file.name).write_bytes(b"not a library")
    show = "import pymtp.binding.library as library; print(library.abi_id())"
    assert python(show, LD_LIBRARY_PATH=str(tmp_path)) == _library.abi_id()


def test_the_wheel_holds_each_library_once() -> None:
    names = sorted(file.name for file in _library.library_file().parent.iterdir())
    assert [name for name in names if not re.fullmatch(r"(lib)?(llama|ggml[a-z0-9-]*)\.(so|dylib|dll)", name)] == []
    assert len({name.split(".")[0] for name in names}) == len(names)


# --- the errors: one line each, naming the fix ---


def test_a_missing_llama_cpp_python_is_named() -> None:
    hide = (
        "from importlib import metadata\n"
        "def hidden(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = hidden\n"
        "import pymtp.binding.library as library; library.import_llama_cpp()"
    )
    assert error_of(hide) == (
        f"llama-cpp-python is not installed: CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install "
        f"llama-cpp-python=={_library.VERSION}"
    )


def test_another_version_of_llama_cpp_python_is_named(tmp_path: Path) -> None:
    path = fake_distribution(tmp_path, "0.1.2")
    message = error_of("from pymtp.binding import library\nlibrary.import_llama_cpp()", PYTHONPATH=path)
    assert message.startswith(f"llama-cpp-python is 0.1.2, pymtp needs {_library.VERSION}: ")


def test_a_llama_cpp_that_uses_another_library_is_named(tmp_path: Path) -> None:
    # looks to Python like a full llama-cpp-python that was imported first
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("from . import llama_cpp\n")
    (package / "llama_cpp.py").write_text("class _lib:\n    _name = '/usr/lib/another/libllama.so'\n")
    message = error_of(
        "import llama_cpp\nfrom pymtp.binding import library\nlibrary.import_llama_cpp()", PYTHONPATH=str(tmp_path)
    )
    assert message == "llama_cpp already runs on /usr/lib/another/libllama.so: import pymtp before llama_cpp"


def test_a_llama_cpp_that_was_imported_with_our_library_is_fine() -> None:
    code = "import llama_cpp, pymtp.binding.library as library; print(library.abi_id())"
    folder = str(_library.library_file().parent)
    assert python(code, LLAMA_CPP_LIB_PATH=folder) == _library.abi_id()


def test_a_missing_extension_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LibraryError, match="was not built: run `make`"):
        _library.library_file()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("pymtp._native", tmp_path / "_native.so")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(LibraryError, match="lib.* is missing: install pymtp again"):
        _library.library_file()


@pytest.mark.parametrize(
    ("library", "module"),
    [
        (f"{_library.PIN} + 0123456789ab", f"{_library.PIN} + ba9876543210"),
        ("llama-cpp-python 0.1.2 + 0123456789ab", "llama-cpp-python 0.1.2 + 0123456789ab"),
        (_library.PIN + "1 + 0123456789ab", _library.PIN + "1 + 0123456789ab"),
    ],
    ids=["other-sources", "other-pin", "longer-version"],
)
def test_library_and_module_of_different_sources_are_refused(library: str, module: str) -> None:
    with pytest.raises(LibraryError, match="install pymtp again") as raised:
        _library.check_abi_id(library, module)
    assert library in str(raised.value)
    assert "\n" not in str(raised.value)
