"""Devices of RPC servers: texts are what they are without, no graph is sent twice, and failures name the server."""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import pymtp
from contexts import Contexts, contexts
from families import FAMILIES
from http_server import free_port, running
from log_level import logged
from machine import GPUS, HAS_GPU, needs_no_gpu
from pymtp import (
    BackendError,
    GenerationParams,
    InvalidParameter,
    Model,
    PymtpError,
    RemoteError,
    SamplingParams,
    Stats,
)
from pymtp.binding.arrays import Logits
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.gguf.facts import model_facts
from pymtp.gguf.types import CACHE_TYPES
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from pymtp.placement import devices
from pymtp.placement.devices import host_device
from random_gguf.vision import png, write_glm4v_projector
from relay import Relay
from rpc_servers import RpcServer, rpc_servers, start_rpc_server

GREEDY = SamplingParams(temperature=0)
TINY = [
    "glm4moe",
    "mimo2",
    "step35",
    "qwen35",
    "deepseek2 (DeepSeek-V3)",
    "glm-dsa",
    "glm5-next",
    "cohere2moe",
]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RpcServer]]:
    with rpc_servers(2) as found:
        yield found


@pytest.fixture(scope="module")
def endpoints(servers: list[RpcServer]) -> list[str]:
    return [server.endpoint for server in servers]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["glm4moe"].write(tmp_path_factory.mktemp("rpc") / "tiny.gguf")


def answer(path: Path, prompt: str | list[int], n: int, draft_max: int, **options: Any) -> tuple[list[int], Stats]:
    with Model(path, n_ctx=512, n_threads=1, draft_max=draft_max, **options) as model:
        generation = model.generate(prompt, sampling=GREEDY, max_tokens=n, ignore_eos=True)
        list(generation)
        return generation.tokens, generation.stats


def same_as_here(
    path: Path, prompt: str | list[int], n: int, draft_max: int, draft_model: Path | None = None, **options: Any
) -> None:
    here, here_stats = answer(path, prompt, n, draft_max, draft_model=draft_model)
    there, there_stats = answer(path, prompt, n, draft_max, draft_model=draft_model, **options)
    assert there == here
    assert (there_stats.rounds, there_stats.drafted) == (here_stats.rounds, here_stats.drafted)
    assert there_stats.accepted_per_position == here_stats.accepted_per_position


# --- texts ---


@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("family", TINY)
def test_a_text_is_what_it_is_here(family: str, draft_max: int, endpoints: list[str], tmp_path: Path) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    same_as_here(path, [1, 2, 3, 4, 5], 40, draft_max, rpc=endpoints)


@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("name", ["nano-glm-Q8_0.gguf", "nano-glm-Q4_K_M.gguf", "nano-step-Q8_0.gguf"])
def test_a_trained_model_says_the_same(name: str, draft_max: int, endpoints: list[str], shared: Path) -> None:
    prompt = "def is_prime(n):\n" * 20  # passes of 64 rows and more are others than those of rounds
    same_as_here(shared / "models" / name, prompt, 64, draft_max, rpc=endpoints, tensor_split=[1, 1])


def later(path: Path, kind: str, rpc: list[str]) -> tuple[list[str], Logits]:
    """Why operations on what a session holds are refused, and logits after them."""
    weights = Weights(model_facts(path), ModelParams(device=(), rpc=rpc), with_heads=True)
    params = ContextParams(n_ctx=256, n_ubatch=64, n_seq_max=2, n_threads=1, type_k=kind, type_v=kind)
    with closing(weights), Session(weights.model, params) as session:
        session.decode([Chunk([*range(100)], 0, feed=True)])
        refused, end = [], 80
        session.copy(0, 1)
        session.restore_sequence(1, session.save_sequence(0))
        try:
            session.discard(10, 20, sequence=1)
        except PymtpError as error:
            refused, end = [str(error)], 100
        session.decode([Chunk([1, 2, 3], end, 1)])
        return refused, session.logits


@pytest.mark.parametrize("kind", CACHE_TYPES)
@pytest.mark.parametrize(
    "family", [name if name == "glm4moe" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_what_a_session_holds_is_copied_saved_and_moved_there_as_here(
    family: str, kind: str, endpoints: list[str], tmp_path: Path
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    (why, logits), (why_here, logits_here) = later(path, kind, endpoints), later(path, kind, [])
    assert why == why_here
    np.testing.assert_allclose(logits, logits_here, atol=1e-4)


def test_an_image_is_seen_there_too(endpoints: list[str], tmp_path: Path) -> None:
    path, projector = FAMILIES["glm4moe, M-RoPE"].write(tmp_path / "tiny.gguf"), tmp_path / "mmproj.gguf"
    options: dict[str, Any] = {"mmproj": write_glm4v_projector(projector), "n_ctx": 256, "n_threads": 1}
    asked: dict[str, Any] = {"images": [png(128, 96)], "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    with Model(path, **options) as here, Model(path, rpc=endpoints, **options) as there:
        texts = ["".join(model.generate(f" \t{pymtp.IMAGE_MARKER}\n", **asked)) for model in (here, there)]
    assert texts[0] == texts[1] != ""


def test_several_texts_at_once_are_what_they_are_here(endpoints: list[str], shared: Path) -> None:
    """With cells of their own: see docs/devices.md."""
    params = GenerationParams(sampling=GREEDY, max_tokens=24, ignore_eos=True)

    def texts(**options: Any) -> list[list[int]]:
        path = shared / "models" / "nano-glm-Q8_0.gguf"
        with Model(path, n_ctx=256, n_threads=1, n_seq_max=4, draft_max=3, kv_unified=False, **options) as model:
            generations = [model.generate(f"def f{i}(a):\n" + "    a += 1\n" * i, params) for i in range(6)]
            for generation in generations:
                list(generation)
            return [generation.tokens for generation in generations]

    assert texts(rpc=endpoints) == texts()


def test_the_first_layers_can_stay_here_too(endpoints: list[str], tiny: Path) -> None:
    same_as_here(tiny, [1, 2, 3], 24, 2, rpc=endpoints, n_gpu_layers=3)


def test_a_cache_of_experts_changes_no_text(
    endpoints: list[str], tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with logged("info"):
        same_as_here(tiny, [1, 2, 3], 24, 3, rpc=endpoints[:1], cpu_moe=True, moe_cache_mib=1)
    n_hits = re.search(r"llama_moe_cache: ubatch <= 8: hits = (\d+)", capfd.readouterr().err)
    assert n_hits and int(n_hits[1]) > (12 if HAS_GPU else 24)  # another text there has other experts


def test_a_cache_of_experts_without_experts_here_is_refused(
    endpoints: list[str], tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = r"^moe_cache_mib \(--moe-cache-mib\) is of no use here: no layer has all of"
    with logged("debug"), pytest.raises(PymtpError, match=refused):
        Model(tiny, rpc=endpoints[:1], moe_cache_mib=1)
    assert contexts(capfd) == Contexts(1, is_one_freed=True)


def test_an_assistant_stays_here(endpoints: list[str], tmp_path: Path) -> None:
    family = FAMILIES["gemma4"]
    assert family.write_assistant
    assistant = family.write_assistant(tmp_path / "assistant.gguf")
    same_as_here(family.write(tmp_path / "tiny.gguf"), [1, 2, 3], 24, 2, rpc=endpoints, draft_model=assistant)


# --- where things go, and what is sent ---


class Recorder(Relay):
    """In front of a server: keeps what its clients send, and counts how often they wait for an answer."""

    def __init__(self, port: int) -> None:
        self._sent = bytearray()
        self._is_asked = False
        self.n_answers = 0
        super().__init__(("127.0.0.1", 0), ("127.0.0.1", port))
        self.endpoint = f"127.0.0.1:{self.port}"

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """The number of each command, and its data."""
        at = 0
        while at < len(self._sent):
            size = int.from_bytes(self._sent[at + 1 : at + 9], "little")
            yield self._sent[at], bytes(self._sent[at + 9 : at + 9 + size])
            at += 9 + size

    def note(self, data: bytes, *, from_client: bool) -> None:
        if not data:
            return
        if from_client:
            self._sent += data
        else:
            self.n_answers += self._is_asked
        self._is_asked = from_client


SET_TENSOR, GRAPH_COMPUTE, GRAPH_RECOMPUTE = 6, 10, 16  # of rpc_cmd, in ggml-rpc.cpp
TENSOR_SIZE = 296  # of rpc_tensor there


def tensor_name(tensor: bytes) -> str:
    return tensor[228:292].split(b"\0")[0].decode()


@pytest.fixture
def recorders(servers: list[RpcServer]) -> Iterator[list[Recorder]]:
    """In front of the servers."""
    found = [Recorder(server.port) for server in servers]
    yield found
    for each in found:
        each.close()


@pytest.fixture
def recorder(recorders: list[Recorder]) -> Recorder:
    """In front of the second server."""
    return recorders[1]


class Counts(NamedTuple):
    """What was sent to servers."""

    n_answers: int  # that were waited for
    n_graphs_sent: int
    n_graphs_run: int


def counted(recorders: list[Recorder]) -> Counts:
    commands = [command for recorder in recorders for command, _ in recorder.messages()]
    n_sent = commands.count(GRAPH_COMPUTE)
    n_answers = sum(recorder.n_answers for recorder in recorders)
    return Counts(n_answers, n_sent, n_sent + commands.count(GRAPH_RECOMPUTE))


@needs_no_gpu
def test_heads_and_output_stay_here(endpoints: list[str], tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with logged("debug"), Model(tiny, n_ctx=64, n_threads=1, rpc=endpoints, tensor_split=[1, 1]) as model:
        n_layer = model.info.n_layer
    log = capfd.readouterr().err
    places = dict(re.findall(r"layer +(\d+) assigned to device (\w+)", log))
    of_trunk = [places[str(i)] for i in range(n_layer)]
    assert of_trunk == sorted(of_trunk) and len(set(of_trunk)) == 2 and "CPU" not in of_trunk
    assert {place for layer, place in places.items() if int(layer) >= n_layer} == {"CPU"}


@needs_no_gpu
def test_heads_lie_with_the_output(
    endpoints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """However small the share of the last device is, which is the CPU here, in the place of a GPU."""
    path = FAMILIES["step35"].write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(devices, "find_devices", lambda names, remote: [*remote, host_device()])
    with logged("debug"), Model(path, n_ctx=64, n_threads=1, rpc=endpoints, tensor_split=[1, 1, 0.3]) as model:
        n_layer, n_heads = model.info.n_layer, model.info.n_heads
    places = dict(re.findall(r"layer +(\d+) assigned to device (\w+)", capfd.readouterr().err))
    assert n_heads > 1 and {places[str(n_layer + i)] for i in range(n_heads + 1)} == {"CPU"}
    assert "CPU" not in {places[str(i)] for i in range(n_layer)}


def test_no_graph_is_sent_twice(recorders: list[Recorder], tiny: Path) -> None:
    """In rounds with drafts of lengths that alternate; prompts are computed by graphs that come and go."""

    rpc = [recorder.endpoint for recorder in recorders]
    with Model(tiny, n_ctx=512, n_threads=1, draft_max=3, rpc=rpc) as model:

        def generate(draft_max: int) -> tuple[int, int]:
            """Graphs sent after the prompt, and graphs run."""
            options = {"sampling": GREEDY, "max_tokens": 30, "ignore_eos": True, "draft_max": draft_max}
            n_run = counted(recorders).n_graphs_run
            pieces = iter(model.generate([1, 2, 3], **options))
            next(pieces)
            before = counted(recorders)  # rounds may have been computed meanwhile
            for _ in pieces:
                pass
            after = counted(recorders)
            return after.n_graphs_sent - before.n_graphs_sent, after.n_graphs_run - n_run

        lengths = (3, 1, 2, 0)
        first, again = ([generate(n) for n in lengths] for _ in range(2))
        assert sum(n_sent for n_sent, _ in first) > 0
        assert [n_sent for n_sent, _ in again] == [0] * len(lengths)
        assert all(n_run >= 2 * 8 for _, n_run in again)


def test_a_graph_whose_buffers_are_gone_is_sent_again(recorders: list[Recorder], tiny: Path) -> None:
    """A second model on the same servers comes and goes, and takes its own graphs with it alone.

    With drafts of a fixed length: where it adapts, another length is a new graph.
    """
    rpc = [recorder.endpoint for recorder in recorders]
    with Model(tiny, n_ctx=64, n_threads=1, draft_max=3, rpc=rpc) as model:

        def generate() -> list[int]:
            generation = model.generate([1, 2, 3], sampling=GREEDY, max_tokens=12, ignore_eos=True)
            list(generation)
            return generation.tokens

        expected = generate()
        assert answer(tiny, [1, 2, 3], 12, 1, rpc=rpc)[0] == expected
        before = counted(recorders).n_graphs_sent
        assert generate() == expected
        assert counted(recorders).n_graphs_sent == before


@needs_no_gpu
def test_a_server_has_its_inputs_before_the_rows_of_another(
    endpoints: list[str], recorder: Recorder, tiny: Path
) -> None:
    """They are sent while the first server computes."""
    answer(tiny, [1, 2, 3], 12, 2, rpc=[endpoints[0], recorder.endpoint], tensor_split=[1, 1])
    passes, names = [], []
    for command, data in recorder.messages():
        if command == SET_TENSOR:
            names.append(tensor_name(data))
        elif command in (GRAPH_COMPUTE, GRAPH_RECOMPUTE):
            passes.append(names)
            names = []
    assert len(passes) > 8
    for names in passes[1:]:  # the first has weights too
        assert any("inp_pos" in name for name in names)
        are_inputs = [bool(re.search("#(inp|attn_inp|out_ids)", name)) for name in names]
        assert are_inputs == [True] * (len(names) - 1) + [False]


@needs_no_gpu
def test_a_pass_waits_once_for_each_server(recorders: list[Recorder], embedded_model: Path) -> None:
    """Logits and heads have different rows of the last server: they are asked for together."""
    options: dict[str, Any] = {"sampling": GREEDY, "max_tokens": 16, "ignore_eos": True}
    rpc = [recorder.endpoint for recorder in recorders]
    with Model(embedded_model, n_ctx=256, n_threads=1, draft_max=3, rpc=rpc, tensor_split=[1, 1]) as model:
        list(model.generate([1, 2, 3], **options))
        before = [counted([recorder]) for recorder in recorders]
        list(model.generate([1, 2, 3], **options))
        after = [counted([recorder]) for recorder in recorders]
    for first, last in zip(before, after, strict=True):
        n_run = last.n_graphs_run - first.n_graphs_run
        assert n_run > 2 and last.n_answers - first.n_answers <= n_run


def test_products_of_the_same_rows_go_together(endpoints: list[str], recorder: Recorder, embedded_model: Path) -> None:
    """As a GPU computes them in one kernel: queries and keys of a layer."""
    answer(embedded_model, [1, 2, 3], 4, 1, rpc=[endpoints[0], recorder.endpoint], tensor_split=[1, 1])
    n_found = 0
    for command, data in recorder.messages():
        if command != GRAPH_COMPUTE:
            continue
        n_nodes = int.from_bytes(data[12:16], "little")
        nodes = [data[16 + 8 * i : 24 + 8 * i] for i in range(n_nodes)]
        tensors = data[16 + 8 * n_nodes + 4 :]
        found = [tensors[at : at + TENSOR_SIZE] for at in range(0, len(tensors), TENSOR_SIZE)]
        by_id = {tensor[:8]: tensor for tensor in found}
        weights = [tensor_name(by_id.get(by_id[node][124:132], b"")) if node in by_id else "" for node in nodes]
        for i, name in enumerate(weights):
            if name.endswith("attn_q.weight"):
                first, last = sorted((i, weights.index(name.replace("attn_q", "attn_k"))))
                assert all(".attn_" in each and each.endswith(".weight") for each in weights[first : last + 1])
                n_found += 1
    assert n_found > 0


def test_devices_are_listed(endpoints: list[str]) -> None:
    first, second = pymtp.devices(rpc=endpoints)[:2]
    assert first.description.startswith(endpoints[0]) and second.description.startswith(endpoints[1])
    assert {first.backend, first.kind} == {"RPC", "GPU"} and first.total_bytes > 0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`pymtp` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pymtp_cli", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_commands_show_devices_and_the_layers_that_they_would_get(endpoints: list[str], tiny: Path) -> None:
    listed, again = (
        re.sub(r"\d+ MiB free", "free", command("run", *flags).stdout)
        for flags in itertools.permutations(["--list-devices", "--rpc=" + ",".join(endpoints)])
    )
    assert listed == again
    assert all(re.search(rf"RPC{i}: {endpoint} ", listed) for i, endpoint in enumerate(endpoints))
    inspected = command("inspect", str(tiny), "--rpc", ",".join(endpoints)).stdout
    assert re.search(rf"RPC0: +layers 0 to \d+; .* of weights, .* free \({endpoints[0]} ", inspected)
    here = GPUS[-1] if GPUS else "CPU"
    assert re.search(rf"{here}: +(layers? .*, )?head 0, output[,;]", inspected)


# --- failures ---


def test_a_port_that_is_taken_is_one_line(servers: list[RpcServer]) -> None:
    refused = command("rpc-server", "-p", str(servers[0].port))
    assert refused.returncode == 1
    fix = "name a free port, and an IPv4 address of this host"
    assert refused.stderr.splitlines()[-1] == f"pymtp: cannot listen at {servers[0].endpoint}: {fix}"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused = command("rpc-server", "-p", str(free_port()), "-c")
    assert refused.returncode == 2
    why = "Invalid value for -c/--cache: must be a folder that can be written (Not a directory)"
    assert refused.stderr.splitlines()[-1] == f"pymtp: {why} (see pymtp rpc-server --help)"


def test_a_server_whose_client_is_killed_serves_the_next(tiny: Path) -> None:
    with rpc_servers(1) as (server,):
        line = (
            f"import pymtp; m = pymtp.Model({str(tiny)!r}, n_ctx=64, rpc=[{server.endpoint!r}]); print(1, flush=True)"
        )
        client = subprocess.Popen([sys.executable, "-c", f"{line}; input()"], stdin=-1, stdout=-1)
        with client:
            assert client.stdout and client.stdout.readline() == b"1\n"
            client.kill()
        assert answer(tiny, [1, 2, 3], 8, 1, rpc=[server.endpoint])[0] == answer(tiny, [1, 2, 3], 8, 1)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rpc": ["here"]}, "rpc must be a list of different servers"),
        ({"rpc": ["here:65536"]}, "rpc must be a list of different servers"),
        ({"rpc": "127.0.0.1:1"}, "rpc must be a list of different servers"),
        ({"rpc": ["127.0.0.1:1", "127.0.0.1:1"]}, "rpc must be a list of different servers"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str, tiny: Path) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Model(tiny, **options)


def test_what_other_machines_compute_is_not_invariant(endpoints: list[str], tiny: Path) -> None:
    message = "invariant (--invariant) is for CPUs and CUDA, not for RPC"
    with pytest.raises(pymtp.PymtpError, match=re.escape(message)):
        Model(tiny, rpc=endpoints, n_ctx=64, invariant=True)


@pytest.mark.parametrize("split_mode", ["row", "tensor"])
def test_only_layers_go_to_other_machines(split_mode: str, endpoints: list[str], tiny: Path) -> None:
    with pytest.raises(InvalidParameter, match="split_mode must be layer or none with RPC servers"):
        Model(tiny, rpc=endpoints, split_mode=split_mode)


def test_a_port_without_a_server_is_refused_by_name(tiny: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    with pytest.raises(RemoteError, match=f"RPC server {endpoint} cannot be reached: Connection refused"):
        Model(tiny, rpc=[endpoint])


def test_an_unknown_name_is_refused(tiny: Path) -> None:
    with pytest.raises(RemoteError, match=r"RPC server no-such-host\.invalid:1 cannot be reached: its name is unknown"):
        Model(tiny, rpc=["no-such-host.invalid:1"])


@contextmanager
def impostor(reply: bytes | None) -> Iterator[str]:
    """Something that listens, answers with `reply`, and hangs up at what comes then; None: never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):  # closed in the end
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    if reply is not None:
                        connection.recv(4096)
                        connection.sendall(reply)
                        connection.recv(4096)
                        connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
HELLO = (28).to_bytes(8, "little") + bytes([8, 0, 0]) + bytes(25)


@pytest.mark.parametrize(
    "reply",
    [HTTP, bytes(4096), b"\xff" * 4096, *(pytest.param(silence, marks=pytest.mark.slow) for silence in (b"", None))],
    ids=["http", "zeros", "ones", "empty", "silent"],
)
def test_what_is_no_server_is_refused(reply: bytes | None, tiny: Path) -> None:
    with impostor(reply) as endpoint, pytest.raises(RemoteError, match=f"RPC server {endpoint} does not answer as one"):
        Model(tiny, rpc=[endpoint])


def test_a_server_of_llama_cpp_is_refused(tiny: Path) -> None:
    with impostor(HELLO) as endpoint, pytest.raises(RemoteError, match=f"RPC server {endpoint} is not pymtp's"):
        Model(tiny, rpc=[endpoint])


def test_a_server_of_another_build_is_refused_by_name(tiny: Path) -> None:
    build = b"llama-cpp-python 0.1 + 0123456789ab".ljust(128, b"\0") + (1).to_bytes(4, "little")
    reply = HELLO + len(build).to_bytes(8, "little") + build
    with (
        impostor(reply) as endpoint,
        pytest.raises(RemoteError, match=rf"{endpoint} is of another build \(llama-cpp-python 0\.1 \+ 0123456789ab\)"),
    ):
        Model(tiny, rpc=[endpoint])


def test_a_server_that_is_busy_says_so_and_is_free_afterwards(tiny: Path) -> None:
    with rpc_servers(1) as (server,):
        silent_client = socket.create_connection(("127.0.0.1", server.port))
        with silent_client, pytest.raises(RemoteError, match="it serves another client"):
            Model(tiny, rpc=[server.endpoint])
        assert answer(tiny, [1, 2, 3], 8, 1, rpc=[server.endpoint])[0] == answer(tiny, [1, 2, 3], 8, 1)[0]


def test_a_server_that_is_killed_ends_requests_and_not_the_process(tiny: Path) -> None:
    expected = answer(tiny, [1, 2, 3], 12, 2)[0]
    with rpc_servers(2) as (first, second):
        endpoints = [first.endpoint, second.endpoint]
        with Model(tiny, n_ctx=512, n_seq_max=1, n_threads=1, draft_max=2, rpc=endpoints) as model:
            running_one = model.generate([1, 2, 3], sampling=GREEDY, max_tokens=400, ignore_eos=True)
            waiting = model.generate([1, 2, 3], sampling=GREEDY, max_tokens=400, ignore_eos=True)
            next(iter(running_one))
            second.kill()
            for generation in (running_one, waiting):
                with pytest.raises(RemoteError, match=f"RPC server {second.endpoint} is lost"):
                    list(generation)
            with pytest.raises(BackendError, match=second.endpoint):
                list(model.generate([1, 2, 3], max_tokens=4))
        with pytest.raises(RemoteError, match=f"RPC server {second.endpoint} cannot be reached"):
            Model(tiny, rpc=endpoints)
        assert answer(tiny, [1, 2, 3], 12, 2)[0] == expected

        again = start_rpc_server(second.port)
        try:
            assert answer(tiny, [1, 2, 3], 12, 2, rpc=endpoints)[0] == expected
        finally:
            again.kill()


def test_a_model_whose_server_is_killed_while_idle_can_be_closed(tiny: Path) -> None:
    with rpc_servers(1) as (server,), Model(tiny, n_ctx=64, n_threads=1, rpc=[server.endpoint]) as model:
        list(model.generate([1, 2, 3], max_tokens=4))
        server.kill()


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_a_server_that_is_killed_while_a_model_is_loaded_is_an_error(after_s: float, tiny: Path) -> None:
    with rpc_servers(1) as (server,):
        killer = threading.Timer(after_s, server.kill)
        killer.start()
        try:
            with Model(tiny, n_ctx=64, n_threads=1, rpc=[server.endpoint]) as model:
                list(model.generate([1, 2, 3], max_tokens=60, ignore_eos=True))
                killer.join()
                list(model.generate([1, 2, 3], max_tokens=60, ignore_eos=True))
        except BackendError as error:
            assert server.endpoint in str(error)
        else:
            pytest.fail("nothing was lost")


def test_serve_waits_for_a_server_that_comes_back(tiny: Path) -> None:
    with rpc_servers(1) as (server,):

        def load() -> Model:
            return Model(tiny, n_ctx=64, n_threads=1, rpc=[server.endpoint])

        with running(load) as client:
            body = {"prompt": [1, 2, 3], "temperature": 0, "n_predict": 8}
            expected = client.post("/completion", **body).json["tokens_predicted"]
            # more often than a model that fails for another reason is loaded again; at times nobody has asked meanwhile
            for is_back in (False, True):
                server.kill()
                if is_back:
                    server = start_rpc_server(server.port)
                lost = client.post("/completion", **body)
                assert lost.status == 503 and f"RPC server {server.endpoint} is lost" in lost.data.decode()
                if not is_back:
                    assert client.post("/completion", **body).status == 503
                    server = start_rpc_server(server.port)
                end = time.monotonic() + 30
                while client.get("/health").status != 200:
                    assert time.monotonic() < end
                    time.sleep(0.1)
                assert client.post("/completion", **body).json["tokens_predicted"] == expected
            server.kill()
