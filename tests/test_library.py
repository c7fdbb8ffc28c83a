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

from llama_cpp_source import Pin
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


def test_the_library_names_the_sources_it_was_built_from() -> None:
    assert re.fullmatch(re.escape(_library.PIN) + r" \+ [0-9a-f]{12}", _library.abi_id())
    assert _library.abi_id().endswith(_library.SERIES)


def test_only_the_pin_names_its_archive_and_its_build() -> None:
    pin = Pin.read(ROOT / "native" / "llama_cpp.pin")
    assert str(pin) == _library.PIN
    sources = [ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "bench").glob("*.sh")]
    sources += [file for folder in ("pymtp", "cli", "native") for file in (ROOT / folder).rglob("*.py")]
    assert [file for file in sources if pin.archive in file.read_text("utf-8")] == []


def test_llama_cpp_of_a_checkout_runs_on_our_library() -> None:
    # ctypes and cffi hand out the same static string: there is one copy of the library in this process
    abi_id = llama_cpp.llama_cpp._lib.pymtp_abi_id
    abi_id.restype = ctypes.c_void_p
    assert abi_id() == int(_library.ffi.cast("uintptr_t", _library.lib.pymtp_abi_id()))


def test_a_cpu_says_which_copies_and_rotations_it_lacks() -> None:
    """Its kernels end the process there."""
    ggml = llama_cpp.llama_cpp._lib
    types = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
    names = ["init", "new_tensor_3d", "new_tensor_1d", "view_3d", "cpy", "rope", "backend_dev_by_type"]
    for name in names:
        getattr(ggml, f"ggml_{name}").restype = ctypes.c_void_p
    context = ctypes.c_void_p(ggml.ggml_init(Params(1 << 16, None, True)))
    ggml.ggml_backend_dev_supports_op.restype = ctypes.c_bool
    cpu = ctypes.c_void_p(ggml.ggml_backend_dev_by_type(0))

    def tensor(kind: str, n: int = 64) -> ctypes.c_void_p:
        return ctypes.c_void_p(ggml.ggml_new_tensor_3d(context, types[kind], *map(ctypes.c_int64, (n, 2, 4))))

    def has(node: int) -> bool:
        return bool(ggml.ggml_backend_dev_supports_op(cpu, ctypes.c_void_p(node)))

    def copies(source: str, target: str, n: int) -> bool:
        """To the first n of 64 in each row."""
        strides = (ctypes.c_size_t(each) for each in {"q8_0": (68, 136), "f32": (256, 512)}[target])
        sizes = map(ctypes.c_int64, (n, 2, 4))
        view = ggml.ggml_view_3d(context, tensor(target), *sizes, *strides, ctypes.c_size_t(0))
        return has(ggml.ggml_cpy(context, tensor(source, n), ctypes.c_void_p(view)))

    def rotates(kind: str) -> bool:
        positions = ctypes.c_void_p(ggml.ggml_new_tensor_1d(context, 26, ctypes.c_int64(4)))
        return has(ggml.ggml_rope(context, tensor(kind), positions, 64, 0))

    assert [copies("f32", "q8_0", n) for n in (64, 32)] == [True, False]
    assert [copies(kind, "f32", 32) for kind in types] == [True] * 4
    assert [rotates(kind) for kind in ("f32", "f16", "bf16")] == [True, True, False]
    ggml.ggml_free(context)


class Params(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


@pytest.mark.skipif(sys.platform != "linux", reason="LD_LIBRARY_PATH is Linux's")
def test_another_ggml_in_the_library_path_is_not_picked_up(tmp_path: Path) -> None:
    for file in _library.library_file().parent.glob("*.so"):
        (tmp_path / file.name).write_bytes(b"not a library")
    show = "import pymtp.binding.library as library; print(library.abi_id())"
    assert python(show, LD_LIBRARY_PATH=str(tmp_path)) == _library.abi_id()


def test_the_wheel_holds_each_library_once() -> None:
    names = sorted(file.name for file in _library.library_file().parent.iterdir())
    assert [
        name for name in names if not re.fullmatch(r"(lib)?pymtp-(llama|ggml[a-z0-9-]*)\.(so|dylib|dll)", name)
    ] == []
    assert len({name.split(".")[0] for name in names}) == len(names)


# --- the errors: one line each, naming the fix ---


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
        (f"{_library.PIN} + 0123456789ab", f"{_library.PIN}1 + 0123456789ab"),
    ],
    ids=["other-sources", "other-pin"],
)
def test_library_and_module_of_different_sources_are_refused(library: str, module: str) -> None:
    with pytest.raises(LibraryError, match="install pymtp again") as raised:
        _library.check_abi_id(library, module)
    assert library in str(raised.value)
    assert "\n" not in str(raised.value)
