"""Virtual environments that tests install wheels into."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from llama_archive import PIN

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / "build" / PIN.archive


def run(*command: object, **env: str) -> str:
    """The standard output of a command, which must succeed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CMAKE_ARGS")}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**kept, **env}, cwd="/")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


class Environment:
    """A virtual environment and a cache of pip's."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._cache = cache

    def pip(self, *arguments: object, **env: str) -> str:
        command = (self.python, "-m", "pip", "--disable-pip-version-check", *arguments)
        return run(*command, PIP_CACHE_DIR=str(self._cache), **env)

    def says(self, *statements: str) -> list[str]:
        """What statements print, in a process of their own."""
        return run(self.python, "-c", "\n".join(statements)).split("\n")[:-1]

    def files_named(self, part: str) -> list[str]:
        """What has `part` in its name: a package, a distribution, a command."""
        (site,) = (self.folder / "lib").glob("python*/site-packages")
        return [path.name for place in (site, self.folder / "bin") for path in place.iterdir() if part in path.name]


def fresh(folder: Path, cache: Path) -> Environment:
    run(sys.executable, "-m", "venv", folder)
    return Environment(folder, cache)


def wheel_of(folder: Path, cache: Path) -> Path:
    """pymtp's wheel in `folder`, as `pip wheel .` builds it."""
    env = fresh(folder / "env", cache)
    env.pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT, CMAKE_ARGS=f"-DPYMTP_LLAMA_CPP_DIR={ARCHIVE}")
    (wheel,) = folder.glob("*.whl")
    return wheel
