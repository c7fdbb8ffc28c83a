"""What an installation by pip leaves in an environment, and what it does to a llama-cpp-python there. Takes minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / "build" / "llama_cpp_python-0.3.36.tar.gz"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs the archive that `make` fetches"),
    pytest.mark.skipif(sys.platform == "win32", reason="the environments' folders are those of POSIX"),
]

GENERATE = "from pymtp import Model; print('pymtp', len(list(Model().generate('Hello', max_tokens=5))) > 0)"
THEIRS = (
    "import llama_cpp; from pymtp.embedded import model_path; "
    "llm = llama_cpp.Llama(str(model_path()), n_ctx=64, verbose=False); "
    "print('llama_cpp', len(llm('Hello', max_tokens=5)['choices'][0]['text']) > 0)"
)


def run(*command: object, **env: str) -> str:
    """The standard output of a command, which must succeed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CMAKE_ARGS")}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**kept, **env}, cwd="/")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


class Environment:
    """A fresh virtual environment, with a cache of pip's own."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", folder / "env")
        self.python = folder / "env" / "bin" / "python"
        self.site = next((folder / "env" / "lib").glob("python*")) / "site-packages"
        self._cache = folder / "cache"

    def pip(self, *arguments: object) -> str:
        return run(self.python, "-m", "pip", "--disable-pip-version-check", *arguments, PIP_CACHE_DIR=str(self._cache))

    def says(self, *statements: str) -> list[str]:
        """What statements print, in a process of their own."""
        return run(self.python, "-c", "\n".join(statements)).split("\n")[:-1]


def wheel_of(source: Path, folder: Path, cmake_args: str) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    run(*build, "--wheel-dir", folder, source, CMAKE_ARGS=cmake_args)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pymtp's, built without any flag but where the sources are."""
    return wheel_of(ROOT, tmp_path_factory.mktemp("pymtp"), f"-DPYMTP_LLAMA_CPP_DIR={ARCHIVE}")


@pytest.fixture(scope="module")
def complete_llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama-cpp-python's, with libraries of its own."""
    return wheel_of(ARCHIVE, tmp_path_factory.mktemp("llama-cpp-python"), "-DLLAVA_BUILD=OFF")


def test_an_installation_works_and_leaves_no_llama_cpp_python(wheel: Path, tmp_path: Path) -> None:
    env = Environment(tmp_path)
    env.pip("install", wheel)
    assert env.says(GENERATE) == ["pymtp True"]
    assert "llama" not in env.pip("list").lower()
    assert "llama" not in env.pip("cache", "list").lower()


def test_a_llama_cpp_python_keeps_its_version_and_its_library(
    wheel: Path, complete_llama_cpp: Path, tmp_path: Path
) -> None:
    env = Environment(tmp_path)
    env.pip("install", complete_llama_cpp)
    before = env.pip("list")
    env.pip("install", wheel)
    assert [line for line in before.splitlines() if "llama" in line][0] in env.pip("list").splitlines()
    assert env.says(THEIRS) == ["llama_cpp True"]
    assert env.says(GENERATE, THEIRS, GENERATE) == ["pymtp True", "llama_cpp True", "pymtp True"]
    assert env.says(THEIRS, GENERATE, THEIRS) == ["llama_cpp True", "pymtp True", "llama_cpp True"]
    loaded = (
        "import re; maps = open('/proc/self/maps').read(); print(*sorted(set(re.findall(r'lib[a-z-]*llama.so', maps))))"
    )
    if sys.platform == "linux":
        assert env.says(THEIRS, GENERATE, loaded)[-1] == "libllama.so libpymtp-llama.so"


def test_uninstalling_removes_every_file_and_leaves_llama_cpp_python_alone(
    wheel: Path, complete_llama_cpp: Path, tmp_path: Path
) -> None:
    env = Environment(tmp_path)
    env.pip("install", complete_llama_cpp, wheel)
    env.pip("uninstall", "--yes", "pymtp-gguf")
    assert [path.name for path in env.site.glob("*pymtp*")] == []
    assert env.says("import llama_cpp; llama_cpp.llama_backend_init(); print('fine')") == ["fine"]
