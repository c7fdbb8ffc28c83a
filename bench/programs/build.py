"""Builds llama.cpp's own programs, unpatched, from the sources that pymtp is built from and with its options.

Owns the build folder; `llama_cpp/CMakeLists.txt` says what is built. A second call builds nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
EXAMPLE_SERVER = "examples/server/server.py"


def build_programs(folder: Path, source: Path, cmake_args: Sequence[str], n_jobs: int) -> Path:
    """Build in `folder` from `source` (the pinned archive, or an unpacked copy); return the programs' folder.

    Raises SystemExit with one line that names the log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configure = ["-S", REPOSITORY / "bench" / "programs" / "llama_cpp", "-B", folder, *_generator()]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-DPYMTP_LLAMA_CPP_DIR={source.resolve()}", *cmake_args]
    _cmake(configure, folder / "configure.log")
    _cmake(["--build", folder, "--target", "programs", "-j", n_jobs], folder / "build.log")
    for archive in sorted((REPOSITORY / "build").glob("llama_cpp_python-*.tar.gz")):
        _unpack_example(archive, folder / "bin" / "server.py")
    return folder / "bin"


def _cmake(arguments: Sequence[object], log: Path) -> None:
    command = [_tool("cmake") or "cmake", *map(str, arguments)]
    with log.open("wb") as file:
        try:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        except FileNotFoundError:
            raise SystemExit("cmake not found: pip install cmake ninja") from None
    if status != 0:
        raise SystemExit(f"llama.cpp's own programs could not be built: see {log}")


def _generator() -> list[str]:
    ninja = _tool("ninja")
    return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []


def _tool(name: str) -> str | None:
    """The tool installed with this Python, else the system's."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def _unpack_example(archive: Path, target: Path) -> None:
    if target.is_file():
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.partition("/")[2] == EXAMPLE_SERVER and (content := tar.extractfile(member)):
                target.write_bytes(content.read())
                return
