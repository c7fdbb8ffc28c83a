"""llama.cpp's messages, and what happens when it gives up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from random_gguf import write_glm4moe

SCRIPT = """
import ctypes, sys
import pymtp
from pymtp.binding import log as _log
pymtp.exit_on_abort()
base = ctypes.CDLL(sys.argv[1])
base.ggml_abort(b"somewhere.c", 12, b"%s", b"this cannot be")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_a_failed_assertion_in_llama_cpp_is_one_line() -> None:
    from pymtp.binding.library import library_file

    library = library_file()
    result = run(SCRIPT, str(library.with_name(library.name.replace("llama", "ggml-base"))))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("pymtp: llama.cpp gave up: ")
    assert "somewhere.c:12: this cannot be" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_messages_are_silent_until_asked_for(tmp_path: Path) -> None:
    path = write_glm4moe(tmp_path / "tiny.gguf")
    load = "import sys, pymtp; {}; pymtp.Model(sys.argv[1]).close()"
    quiet = run(load.format("pass"), str(path))
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    loud = run(load.format("pymtp.set_log_level('info')"), str(path))
    assert "llama_model_loader" in loud.stderr


ORDER = """
import sys
from types import SimpleNamespace
import pymtp._native as native

said = []

class Watched:
    def __getattr__(self, name):
        said.append(name)
        return getattr(native.lib, name)

sys.modules["pymtp._native"] = SimpleNamespace(ffi=native.ffi, lib=Watched(), __spec__=native.__spec__)
import pymtp.binding.library
print(*said)
"""


def test_llama_cpp_is_silent_before_backends_are_there() -> None:
    """Those of GPUs speak when they are counted first."""
    said = run(ORDER).stdout.split()
    assert said.index("pymtp_log_show") < min(said.index(name) for name in said if name.startswith("ggml_"))
