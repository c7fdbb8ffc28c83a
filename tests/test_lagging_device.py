"""Results do not depend on how late a GPU is, nor on what its memory held before.

Computed on a device that does what CUDA's backend does as late as CUDA allows it, see tests/lagging_device.py.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from families import FAMILIES
from rpc_servers import rpc_servers

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent / "build" / "editable" / "llama.cpp"

pytestmark = pytest.mark.skipif(not HEADERS.is_dir(), reason=f"{HEADERS} is not there to compile with: run make")


def digests(split_mode: str, flash_attn: str, every: int = 1, **mode: str) -> list[str]:
    """Of passes and rounds in every kind of memory, or each of `every`, computed in a process that has the device."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), **mode}
    command = [sys.executable, str(HERE / "lagging_device.py"), split_mode, flash_attn, str(every)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


@functools.cache
def expected(flash_attn: str, every: int) -> list[str]:
    """Where the device is never late."""
    found = digests("none", flash_attn, every, LAGGING_DEVICE="at-once")
    assert len(found) == len(set(found)) > 10 // every
    return found


@pytest.mark.parametrize(
    ("flash_attn", "fill", "every"),
    [
        ("on", "nan", 3),
        *(pytest.param(on, fill, 1, marks=pytest.mark.slow) for on in ("on", "off") for fill in ("1", "nan")),
    ],
)
def test_results_do_not_depend_on_how_late_a_device_is(flash_attn: str, fill: str, every: int) -> None:
    assert digests("none", flash_attn, every, LAGGING_DEVICE_FILL=fill) == expected(flash_attn, every)


@pytest.mark.slow
def test_sums_of_two_devices_do_not_depend_on_how_late_they_are() -> None:
    at_once, late = (digests("tensor", "on", LAGGING_DEVICES="2", LAGGING_DEVICE=mode) for mode in ("at-once", "late"))
    assert len(at_once) == 3
    assert late == at_once


LACKING = """
import sys
if not sys.argv[2:]:
    import lagging_device
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import write_glm4moe
from pathlib import Path
facts = model_facts(write_glm4moe(Path(sys.argv[1])))
weights = Weights(facts, ModelParams(rpc=sys.argv[2:]), with_heads=True)
for kind in ("q8_0", "f16"):
    try:
        with Session(weights.model, ContextParams(n_ctx=256, type_k=kind)) as session:
            session.decode([Chunk([*range(50)], 0)])
            session.discard(0, 10)
            print("moved")
    except Exception as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("CPY", "no backend has CPY for keys of type q8_0: no context shift"),
        ("SET_ROWS", "type_k (-ctk) cannot be q8_0: {} cannot write it; use f16, f32 or bf16"),
    ],
)
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "remote"])
def test_what_a_device_cannot_do_with_a_type_is_refused_by_name(
    is_remote: bool, operation: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("LAGGING_DEVICE_LACKS", operation)
    with rpc_servers(is_remote, "import lagging_device") as servers:
        command = [sys.executable, "-c", LACKING, str(tmp_path / "tiny.gguf"), *(server.endpoint for server in servers)]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        assert all(server.process.poll() is None for server in servers)
    assert made.stdout.splitlines() == [reason.format("RPC0" if is_remote else "Lagging0"), "moved"]


CACHE = """
import sys
import lagging_device
from pathlib import Path
from pymtp import Model, SamplingParams
from random_gguf import write_glm4moe
path = write_glm4moe(Path(sys.argv[1]))
drafts = {"draft": "mtp", "draft_max": 3}
cache = {"cpu_moe": True, "moe_cache_mib": 1}
for options in ({"draft": "none"}, drafts, {"draft": "none", **cache}, {**drafts, **cache}):
    with Model(path, n_ctx=64, n_threads=1, **options) as model:
        text = model.generate([1, 2, 3], sampling=SamplingParams(temperature=0), max_tokens=24, ignore_eos=True)
        print(ascii("".join(text)))
"""


def test_a_cache_of_experts_changes_no_text_where_heads_are_on_the_device(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CACHE, str(tmp_path / "tiny.gguf")]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    texts = made.stdout.splitlines()
    assert len(texts) == 4
    assert len(set(texts)) == 1


LOST = """
import os
import signal
import sys
import threading
import time
import lagging_device
lagging_device.load()
from pymtp import BackendError, Model
from pymtp.engine.session import Session
path, endpoint, pid, after_s = sys.argv[1:]
opened = Session.__init__

def open_and_kill(*args, **options):
    threading.Timer(float(after_s), os.kill, [int(pid), signal.SIGKILL]).start()
    opened(*args, **options)

Session.__init__ = open_and_kill
try:
    with Model(path, n_ctx=64, n_threads=1, rpc=[endpoint]) as model:
        time.sleep(0.1)
        list(model.generate([1, 2, 3], max_tokens=2))
except BackendError as error:
    print(endpoint in str(error))
"""


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002])
def test_a_server_that_is_lost_while_a_session_opens_is_an_error(after_s: float, tmp_path: Path) -> None:
    """With a device here there are events, which are freed while the error is on its way."""
    tiny = FAMILIES["glm4moe"].write(tmp_path / "tiny.gguf")
    with rpc_servers(1) as (server,):
        command = [sys.executable, "-c", LOST, str(tiny), server.endpoint, str(server.process.pid), str(after_s)]
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert made.stdout == "True\n"


ON_THE_CPU = """
import sys
import lagging_device
from pathlib import Path
import pymtp
from families import FAMILIES
from pymtp import Chunk, Model
with Model(FAMILIES["step35"].write(Path(sys.argv[1])), n_ctx=64, n_threads=1, n_gpu_layers=0, draft_max=15) as model:
    pymtp.set_log_level("debug")
    model.session.decode([Chunk([*range(16)], 0, logits="all", feed=True)])
    model.session.draft_tokens([Chunk([7], 16)], 3)
"""


def test_drafts_are_verified_where_the_layers_are(tmp_path: Path) -> None:
    """Heads of attention are no rows, of which a device would take 32 at a time."""
    command = [sys.executable, "-c", ON_THE_CPU, str(tmp_path / "tiny.gguf")]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "GGML_SCHED_DEBUG": "2"}
    log = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr
    assert "## SPLIT #0: CPU" in log and "## SPLIT #1" not in log
