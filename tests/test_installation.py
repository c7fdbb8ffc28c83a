"""What an installation leaves in an environment and in pip's cache, and what it does to a llama-cpp-python.

Builds pymtp twice and llama-cpp-python twice, which takes a quarter of an hour without ccache, and needs PyPI.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from environments import ARCHIVE, ROOT, Environment, fresh, run, wheel_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs the archive that `make` fetches"),
    pytest.mark.skipif(sys.platform == "win32", reason="the environments' folders are those of POSIX"),
]

OURS = "from pymtp import Model; print('pymtp', len(list(Model().generate('Hello', max_tokens=5))) > 0)"
THEIRS = (
    "import llama_cpp; "
    "llm = llama_cpp.Llama('{model}', n_ctx=64, verbose=False); "
    "print('llama_cpp', len(llm('Hello', max_tokens=5)['choices'][0]['text']) > 0)"
).format(model=ROOT / "pymtp" / "embedded" / "nano-step35-Q4_K_M.gguf")
LOADED = (
    "import re; maps = open('/proc/self/maps').read(); print(*sorted(set(re.findall(r'lib[a-z-]*llama.so', maps))))"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of pip's, empty at first, that all environments share, as those of a user do."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """pymtp's, as `pip install .` builds it."""
    return wheel_of(tmp_path_factory.mktemp("pymtp"), cache)


@pytest.fixture(scope="module", params=["0.3.36", "0.3.35"])
def their_version(request: pytest.FixtureRequest) -> str:
    """The version whose llama.cpp pymtp is built from, and another one."""
    return str(request.param)


@pytest.fixture(scope="module")
def with_theirs(tmp_path_factory: pytest.TempPathFactory, cache: Path, wheel: Path, their_version: str) -> Environment:
    """An environment with a llama-cpp-python from PyPI, installed after pymtp has used the cache."""
    env = fresh(tmp_path_factory.mktemp("theirs") / "env", cache)
    env.pip("install", f"llama-cpp-python=={their_version}", CMAKE_ARGS="-DLLAVA_BUILD=OFF")
    return env


def test_an_installation_works_and_leaves_no_llama_cpp_python(wheel: Path, cache: Path, tmp_path: Path) -> None:
    env = fresh(tmp_path / "env", cache)
    env.pip("install", wheel)
    assert env.says(OURS) == ["pymtp True"]
    assert run(env.folder / "bin" / "pymtp", "run", "-q", "-n", "1", "Hello").strip()
    assert "llama" not in env.pip("list").lower()


def test_a_llama_cpp_python_keeps_its_version_and_its_library_and_survives_an_uninstallation(
    wheel: Path, with_theirs: Environment, their_version: str
) -> None:
    env = with_theirs
    assert env.says(THEIRS) == ["llama_cpp True"]  # what the cache held was not without a library
    said = env.pip("install", wheel)
    assert "llama" not in said.lower().replace(str(wheel.parent).lower(), "")
    assert f"llama_cpp_python {their_version}" in " ".join(env.pip("list").split())
    env.pip("check")
    assert env.says(THEIRS) == ["llama_cpp True"]
    assert env.says(OURS, THEIRS, OURS) == ["pymtp True", "llama_cpp True", "pymtp True"]
    assert env.says(THEIRS, OURS, THEIRS) == ["llama_cpp True", "pymtp True", "llama_cpp True"]
    if sys.platform == "linux":
        assert env.says(THEIRS, OURS, LOADED)[-1] == "libllama.so libpymtp-llama.so"

    env.pip("uninstall", "--yes", "pymtp-gguf")
    assert env.files_named("pymtp") == []
    env.pip("check")
    assert env.says(THEIRS) == ["llama_cpp True"]


def test_a_checkout_keeps_its_llama_cpp_python_to_itself(tmp_path: Path) -> None:
    checkout, cache = tmp_path / "pymtp", tmp_path / "cache"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv", "build", "__pycache__"))
    said = run("make", "-C", checkout, "install", f"LLAMA_CPP={ARCHIVE}", PIP_CACHE_DIR=str(cache))
    assert "pymtp: compiling, 90 % after" in said
    env = Environment(checkout / ".venv", cache)
    assert env.says(OURS) == ["pymtp True"]
    assert env.says(THEIRS) == ["llama_cpp True"]
    assert env.says(OURS, THEIRS) == ["pymtp True", "llama_cpp True"]
    assert env.says(THEIRS, OURS) == ["llama_cpp True", "pymtp True"]
    assert "llama" not in env.pip("cache", "list").lower()  # other environments would get it, without a library
