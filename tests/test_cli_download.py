"""`-hf`: the real command and the real client against a Hub on this machine."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from fake_hub import Hub
from pymtp import hub as hub_of_models
from pymtp.errors import ModelError
from pymtp.hub import choose_file, choose_heads, parts, resolve
from random_gguf import write_glm4moe
from random_gguf.side_files import split_heads
from terminal import Terminal
from tiny_gguf import write

TIMEOUT_S = 60
REPO = "user/tiny-GGUF"
FETCH = f"from pymtp_cli.context import find_model; print(find_model(None, {REPO!r}, offline=False))"
"""What commands do before they load a model."""


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    return write(tmp_path / "model.gguf", declared=1, heads=1).read_bytes()


@pytest.fixture
def hub(model: bytes) -> Iterator[Hub]:
    files = {"tiny-Q8_0.gguf": b"another", "tiny-Q4_K_M.gguf": model, "mmproj-tiny-Q4_K_M.gguf": b"no model"}
    with Hub({REPO: files, "user/empty": {"weights.safetensors": b""}}) as hub:
        yield hub


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**others, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}


@functools.lru_cache(maxsize=1)
def use_client_of(environment: tuple[tuple[str, str], ...]) -> None:
    """Forget the client of another environment, which it reads where it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def client_of_other_tests() -> Iterator[None]:
    yield
    use_client_of(())


def inspect(environment: dict[str, str], *arguments: str, headers_alone: bool = False) -> tuple[int, str, str]:
    """The command in this process, of the whole model: that is downloaded as for other commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", environment)
        if not headers_alone:
            patch.setattr(hub_of_models, "resolve", lambda name, offline, headers_in: resolve(name, offline=offline))
        use_client_of(tuple(sorted(environment.items())))
        done = CliRunner().invoke(app, ["inspect", *arguments], prog_name="pymtp")
    return done.exit_code, re.sub(r"[\d.]+ \wiB free", "", done.stdout), done.stderr  # which changes


def one_line(result: tuple[int, str, str]) -> str:
    code, stdout, stderr = result
    assert (code, stdout, stderr.count("\n")) == (1, "", 1), stderr
    assert stderr.startswith("pymtp: ")
    return stderr


def downloads(hub: Hub) -> list[str]:
    return [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]


def test_a_model_is_downloaded_once_and_found_without_a_network(hub: Hub, environment: dict[str, str]) -> None:
    code, stdout, stderr = inspect(environment, "-hf", REPO)
    assert (code, stderr) == (0, "")
    assert "tiny-Q4_K_M.gguf" in stdout
    assert inspect(environment, "-hf", REPO)[:2] == (0, stdout)
    assert len(downloads(hub)) == 1
    n_requests = len(hub.requests)
    assert inspect(environment, "-hf", REPO, "--offline") == (0, stdout, "")
    assert len(hub.requests) == n_requests
    hub.is_broken = True
    code, again, stderr = inspect(environment, "-hf", REPO)
    assert (code, again) == (0, stdout)
    assert "answers 500; using tiny-Q4_K_M.gguf from an earlier download" in stderr


def test_heads_in_a_file_of_their_own_come_along(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    trunk, heads = tmp_path / "trunk.gguf", tmp_path / "heads.gguf"
    split_heads(write_glm4moe(tmp_path / "whole.gguf"), trunk, heads)
    hub.repos[REPO] = {
        "tiny-Q4_K_M.gguf": trunk.read_bytes(),
        "tiny-Q8_0.gguf": (tmp_path / "whole.gguf").read_bytes(),
        "mtp-tiny.gguf": heads.read_bytes(),
    }
    assert inspect(environment, "-hf", f"{REPO}:Q8_0")[0] == 0
    assert len(downloads(hub)) == 1  # it has heads itself
    code, stdout, stderr = inspect(environment, "-hf", REPO)
    assert (code, stderr) == (0, "")
    assert re.search(r"mtp-tiny\.gguf", stdout)
    assert len(downloads(hub)) == 3
    assert inspect(environment, "-hf", REPO, "--offline") == (0, stdout, "")


def test_of_a_model_on_the_hub_headers_are_read_alone(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    hub.repos[REPO]["tiny-Q4_K_M.gguf"] = model + bytes(40 * 2**20)
    code, stdout, stderr = inspect(environment, "-hf", REPO, headers_alone=True)
    assert (code, stderr, cached(environment)) == (0, "", [])
    assert re.search(rf"^file: +{REPO}/tiny-Q4_K_M.gguf$", stdout, re.M)
    assert downloads(hub)[0].endswith(f"bytes=0-{2**28 - 1}") and len(downloads(hub)) == 1
    whole = inspect(environment, "-hf", REPO)[1]
    assert stdout.splitlines()[1:] == whole.splitlines()[1:]


def test_headers_of_heads_come_along(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    trunk, heads = tmp_path / "trunk.gguf", tmp_path / "heads.gguf"
    split_heads(write_glm4moe(tmp_path / "whole.gguf"), trunk, heads)
    hub.repos[REPO] = {"a/b-Q8_0.gguf": trunk.read_bytes(), "a/mtp-b.gguf": heads.read_bytes()}
    code, stdout, _ = inspect(environment, "-hf", REPO, headers_alone=True)
    assert code == 0 and re.search(r"^side file: +mtp-b.gguf", stdout, re.M)
    assert cached(environment) == []


def test_what_is_wrong_with_a_header_names_its_file(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    file = f"{REPO}/tiny-Q4_K_M.gguf"
    for content, problem in ((b"x" * 99, "not a GGUF file"), (model[:60], "is truncated"), (b"", "is empty")):
        hub.repos[REPO]["tiny-Q4_K_M.gguf"] = content
        line = one_line(inspect(environment, "-hf", REPO, headers_alone=True))
        assert line.startswith(f"pymtp: {file}") and problem in line
    hub.gated.add(REPO)
    assert "is gated" in one_line(inspect(environment, "-hf", REPO, headers_alone=True))
    hub.is_broken = True
    assert "was not downloaded before" in one_line(inspect(environment, "-hf", REPO, headers_alone=True))


def test_without_a_network_what_was_never_downloaded_is_one_line(environment: dict[str, str]) -> None:
    nobody = {**environment, "HF_ENDPOINT": "http://127.0.0.1:9"}
    line = one_line(inspect(nobody, "-hf", REPO))
    assert "cannot reach http://127.0.0.1:9 (" in line
    assert f"{REPO} was not downloaded before; connect, or name a local file with -m" in line
    assert "without a network (--offline)" in one_line(inspect(environment, "-hf", REPO, "--offline"))


def test_what_the_hub_refuses_is_one_line(hub: Hub, environment: dict[str, str]) -> None:
    assert f"{hub.url} has no repository user/nothing; check the name" in one_line(
        inspect(environment, "-hf", "user/nothing")
    )
    assert "has no Q5_K; it has tiny-Q4_K_M.gguf, tiny-Q8_0.gguf" in one_line(
        inspect(environment, "-hf", f"{REPO}:Q5_K")
    )
    hub.gated.add(REPO)
    assert f"is gated: accept its terms at {hub.url}/{REPO}" in one_line(inspect(environment, "-hf", REPO))


def test_a_download_that_broke_off_goes_on_where_it_ended(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    hub.repos[REPO]["tiny-Q4_K_M.gguf"] = content = model + bytes(15 * 2**20)
    hub.cut_after = 12 * 2**20
    code, stdout, _ = inspect(environment, "-hf", REPO)
    assert code == 0
    _, again = downloads(hub)
    assert 10 * 2**20 <= int(again.rpartition("bytes=")[2].rstrip("-")) <= 12 * 2**20
    file = re.search(r"file: +(.*)", stdout)
    assert file is not None
    assert Path(file[1]).read_bytes() == content


def test_a_download_that_fails_leaves_nothing(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    hub.repos[REPO]["tiny-Q4_K_M.gguf"] = model + bytes(2 * 2**20)
    hub.cut_after = 2**20
    hub.fails_after_cut = True
    assert "answers 500" in one_line(inspect(environment, "-hf", REPO))
    assert cached(environment) == []


def cached(environment: dict[str, str]) -> list[str]:
    """The files that others see, and those that are still to be completed."""
    root = Path(environment["HF_HOME"])
    found = [
        path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != "CACHEDIR.TAG"
    ]
    return sorted(path.relative_to(root).as_posix() for path in found)


@pytest.mark.parametrize(
    "name",
    [
        "../../../../evil",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("/tmp/evil", "..", "a/../../b", "nul\tname")),
    ],
)
def test_what_a_server_calls_its_files_is_never_a_path(
    hub: Hub, environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    assert inspect(environment, "-hf", f"{REPO}:Q8_0")[0] == 1  # it is no model, but in the cache
    before = sorted(tmp_path.rglob("*"))
    # tried in the place of a digest and the revision, in both answers, and of a file's name
    for header in ("X-Linked-Etag", "X-Repo-Commit"):
        hub.headers = {header: name}
        assert "sends another revision or digest of tiny" in one_line(inspect(environment, "-hf", REPO))
    hub.headers = {}
    hub.repos["user/names"] = {f"{name}/m-Q4_K_M.gguf": b"x"}
    assert "has no GGUF models" in one_line(inspect(environment, "-hf", "user/names"))
    hub.lies = lambda answer: answer.update(sha=name)
    assert "names a revision" in one_line(inspect(environment, "-hf", REPO))
    hub.lies = lambda answer: answer["siblings"][1]["lfs"].update(sha256=name)
    assert "with the digest" in one_line(inspect(environment, "-hf", REPO))
    assert sorted(tmp_path.rglob("*")) == before
    assert inspect(environment, "-hf", f"user/../{name}")[0] == 2


def test_a_file_that_is_not_the_one_listed_does_not_get_into_the_cache(hub: Hub, environment: dict[str, str]) -> None:
    hub.sends = lambda data: bytes(len(data))
    assert "sends a file tiny-Q4_K_M.gguf that is not the one it lists (its sha256 differs)" in one_line(
        inspect(environment, "-hf", REPO)
    )
    assert cached(environment) == []
    hub.sends = lambda data: data
    assert inspect(environment, "-hf", REPO)[0] == 0


@pytest.mark.parametrize("sends", [lambda data: data + b"more", lambda data: data[:100]])
def test_a_file_of_another_length_is_refused(hub: Hub, environment: dict[str, str], sends: Any) -> None:
    hub.sends = sends
    line = one_line(inspect(environment, "-hf", REPO))
    assert "does not send what it lists" in line and "tiny-Q4_K_M.gguf" in line
    assert cached(environment) == []


def test_a_server_that_stalls_is_left(hub: Hub, environment: dict[str, str]) -> None:
    hub.is_silent = True
    assert "cannot reach" in one_line(inspect({**environment, "HF_HUB_ETAG_TIMEOUT": "1"}, "-hf", REPO))
    assert cached(environment) == []


def test_a_model_is_downloaded_from_python(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    hub.repos[REPO] = {"tiny-Q4_K_M.gguf": write_glm4moe(tmp_path / "whole.gguf").read_bytes()}
    code = (
        "import pymtp\n"
        f"with pymtp.Model(hf='{REPO}:Q4_K_M', n_ctx=64) as model:\n"
        "    print(model.info.path.name, model.draft_max, len(model.generate([5, 6], max_tokens=2).tokens) <= 2)\n"
        "for bad in (dict(hf='tiny'), dict(path='model.gguf', hf='user/tiny')):\n"
        "    try: pymtp.Model(**bad)\n"
        "    except pymtp.InvalidParameter as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, encoding="utf-8")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "tiny-Q4_K_M.gguf auto True",
        "hf must be USER/REPO or USER/REPO:QUANT, not 'tiny'",
        "hf must be left out where a path is given, not 'user/tiny'",
    ]


def test_a_token_stays_with_the_server_that_it_is_for(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    with Hub({REPO: dict(hub.repos[REPO])}) as other:
        hub.redirects_to = other.url.replace("127.0.0.1", "localhost")
        code, _, stderr = inspect({**environment, "HF_TOKEN": "hf_secret"}, "-hf", REPO)
        assert (code, stderr) == (0, "")
        assert set(hub.tokens) == {"Bearer hf_secret"}
        assert set(other.tokens) == {""}
        other.repos[REPO]["tiny-Q8_0.gguf"] = b"something else"
        assert "does not send what it lists" in one_line(inspect(environment, "-hf", f"{REPO}:Q8_0"))


def test_progress_is_for_terminals(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    hub.repos[REPO]["tiny-Q4_K_M.gguf"] = model + bytes(11 * 2**20)
    command = [sys.executable, "-c", FETCH]
    with Terminal(command, env=environment) as terminal:
        assert terminal.wait() == 0
    assert re.search(r"tiny-Q4_K_M\.gguf: +\d+%", terminal.seen)
    assert "%|" not in inspect({**environment, "HF_HOME": environment["HF_HOME"] + "2"}, "-hf", REPO)[2]


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_download_needs_no_stderr(environment: dict[str, str], redirection: str) -> None:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", FETCH]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    assert done.returncode == 0
    assert b"tiny-Q4_K_M.gguf" in done.stdout


def test_ctrl_c_ends_a_download(hub: Hub, environment: dict[str, str], model: bytes) -> None:
    hub.repos[REPO]["tiny-Q4_K_M.gguf"] = model + bytes(2**20)
    hub.is_stalled = True
    command = [sys.executable, "-m", "pymtp_cli", "run", "-hf", REPO, "hi"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + TIMEOUT_S
    while not downloads(hub):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout, stderr) == (130, b"", b"")


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "user/", "/repo", "user/repo:", "user/re po"])
def test_a_name_that_cannot_be_one_is_wrong_usage(environment: dict[str, str], name: str) -> None:
    code, _, stderr = inspect(environment, "-hf", name)
    assert code == 2
    assert "-hf/--hf-repo: must be USER/REPO or USER/REPO:QUANT" in stderr


def test_a_local_model_needs_no_network_anyway(environment: dict[str, str]) -> None:
    assert inspect(environment, "--offline") == inspect(environment)


def test_contradictions_are_wrong_usage(environment: dict[str, str]) -> None:
    for arguments in (["-hf", REPO, "-m", "model.gguf"], ["-hf", REPO, "model.gguf"]):
        code, _, stderr = inspect(environment, *arguments)
        assert (code, stderr.count("\n")) == (2, 1)


FILES = [
    "b-Q8_0.gguf",
    "b-Q4_K_M.gguf",
    "b-IQ4_K_M-00001-of-00002.gguf",
    "mtp-b-Q4_0.gguf",
    "imatrix.gguf",
    "x/b-BF16.gguf",
]


@pytest.mark.parametrize(
    ("quant", "file"),
    [
        ("", "b-Q4_K_M.gguf"),
        ("q8_0", "b-Q8_0.gguf"),
        ("IQ4_K_M", "b-IQ4_K_M-00001-of-00002.gguf"),
        ("BF16", "x/b-BF16.gguf"),
    ],
)
def test_the_file_of_a_quantisation(quant: str, file: str) -> None:
    assert choose_file(FILES, REPO, quant) == file


def test_the_usual_quantisations_come_first_and_then_any_model() -> None:
    assert choose_file(["b-Q2_K.gguf", "b-Q8_0.gguf"], REPO, "") == "b-Q8_0.gguf"
    assert choose_file(["mtp-b.gguf", "b.gguf"], REPO, "") == "b.gguf"


@pytest.mark.parametrize("files", [[], ["README.md"], ["mtp-b.gguf"], ["b-Q4_K_M-00002-of-00002.gguf"]])
def test_a_repository_without_models(files: list[str]) -> None:
    with pytest.raises(ModelError, match="has no GGUF models"):
        choose_file(files, REPO, "")


@pytest.mark.parametrize(
    ("files", "model", "heads"),
    [
        (["mtp-b-BF16.gguf", "mtp-b-Q8_0.gguf"], "b-Q4_K_M.gguf", "mtp-b-Q8_0.gguf"),
        (["mtp-b-Q4_0.gguf", "mtp-b-F16.gguf"], "b-Q8_0.gguf", "mtp-b-F16.gguf"),
        (["x/mtp-b.gguf", "b-mtp-c.gguf", "mtp-b.txt"], "b.gguf", None),
        (["mtp-b.gguf", "x/mtp-b.gguf"], "x/b.gguf", "x/mtp-b.gguf"),
    ],
)
def test_heads_are_beside_the_model_and_the_same_for_all_quantisations(
    files: list[str], model: str, heads: str | None
) -> None:
    assert choose_heads([*files, model], model) == heads


def test_all_parts_of_a_split_model_are_needed() -> None:
    assert parts("x/b-00001-of-00003.gguf") == [f"x/b-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert parts("b.gguf") == ["b.gguf"]
