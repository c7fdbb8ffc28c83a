"""Programs and libraries of native/tests that need ggml alone, made for the pymtp that is installed here."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from pymtp.binding.library import library_file

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = REPOSITORY / "native" / "tests"
HEADERS = REPOSITORY / "build" / "editable" / "llama.cpp" / "ggml"


def compile_native(source: Path, target: Path, *options: str) -> None:
    """With CXX, or c++."""
    libraries = library_file().parent
    command = [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++17", "-O1", "-Wall", "-Wextra", *options]
    command += [f"-I{HEADERS / 'include'}", f"-I{HEADERS / 'src'}", str(source), "-o", str(target)]
    command += [f"-L{libraries}", "-lpymtp-ggml", "-lpymtp-ggml-base", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True)
