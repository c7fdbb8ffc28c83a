"""The wheel of a release: built portable, repaired, installed where no compiler is, and run on other processors.

Builds pymtp for all kinds of processors, which takes ten minutes of one core without ccache, and needs PyPI. Other
processors are emulated by qemu-user, other systems are made by debootstrap (Debian, Ubuntu: apt install qemu-user
g++-aarch64-linux-gnu debootstrap).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import ssl
import sys
import time
import zipfile
from pathlib import Path

import pytest

from environments import ARCHIVE, ROOT, Environment, fresh, run
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
def wheel() -> Path:
    """Portable, with what it needs of this machine's libraries, and the tag that auditwheel finds for it."""
    run("make", "-C", ROOT, "wheel", f"PYTHON={sys.executable}")
    return max((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)


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


DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"


@pytest.mark.parametrize(("suite", "mirror"), [("bookworm", DEBIAN), ("jammy", UBUNTU)])
def test_a_bare_system_needs_neither_compiler_nor_network(wheel: Path, suite: str, mirror: str, tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("debootstrap"):
        pytest.skip("needs root and debootstrap")
    tree, certificates = tmp_path / suite, "/etc/ssl/certs/ca-certificates.crt"
    keys = [] if mirror == DEBIAN else ["--no-check-gpg", "--components=main,universe"]  # Debian has no keys of others
    run("debootstrap", "--variant=minbase", "--include=python3-venv", *keys, suite, tree, mirror)

    def inside(command: str, *namespaces: str) -> str:
        mounted = f"mount -t proc proc {tree}/proc && exec chroot {tree} sh -euc '{command}'"
        return run("unshare", "--mount", *namespaces, "sh", "-c", mounted, PIP_CERT=certificates)

    shutil.copy("/etc/resolv.conf", tree / "etc" / "resolv.conf")
    (tree / certificates[1:]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(str(ssl.get_default_verify_paths().cafile), tree / certificates[1:])
    for file in (wheel, ROOT / "requirements" / "run.txt"):
        shutil.copy(file, tree)
    inside("python3 -m venv env; env/bin/pip download -q --require-hashes --only-binary :all: -d files -r run.txt")
    start = time.monotonic()
    inside("env/bin/pip install --no-index --find-links files ./*.whl", "--net")
    print(f"{suite}: installed in {time.monotonic() - start:.1f} s")
    assert inside("command -v cc g++ cmake || echo none", "--net") == "none\n"
    assert "is_prime" in inside(f'env/bin/pymtp run -q -n 80 --temp 0 "{QUESTION}"', "--net")
