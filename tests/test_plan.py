"""The plan of what goes where is what llama.cpp's loader does with it, on the devices of two RPC servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from families import FAMILIES
from log_level import logged
from machine import needs_no_gpu
from pymtp import ContextParams, DraftParams, Model, ModelParams, SamplingParams
from pymtp.errors import InvalidParameter
from pymtp.options import Params
from pymtp.placement import devices
from pymtp.placement.places import Place
from pymtp.placement.plan import MemoryPlan, plan
from rpc_servers import rpc_servers

pytestmark = needs_no_gpu
N_CTX = 512
MIB = 1 << 20
KEPT = 64 * MIB
"""The most that graphs of rounds take of a small model."""


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[str]]:
    with rpc_servers(2) as servers:
        yield [server.endpoint for server in servers]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["glm4moe"].write(tmp_path_factory.mktemp("plan") / "tiny.gguf")


def planned(path: Path, endpoints: list[str], n_seq_max: int = 1, **options: Any) -> MemoryPlan:
    context = ContextParams(n_ctx=N_CTX, n_threads=1, n_seq_max=n_seq_max)
    return plan(path, Params(ModelParams(rpc=endpoints, load_mode="none", **options), context, DraftParams()))


def loaded(path: Path, endpoints: list[str], capfd: pytest.CaptureFixture[str], **options: Any) -> str:
    """The log of loading the model."""
    capfd.readouterr()
    with logged("debug"), Model(path, rpc=endpoints, load_mode="none", n_ctx=N_CTX, n_threads=1, **options):
        pass
    return capfd.readouterr().err


def key(place: Place) -> str:
    """The port of a remote device."""
    return place.spot.description.split()[0].partition(":")[2] if place.spot.is_remote else "CPU"


def sizes(log: str) -> dict[str, Counter[str]]:
    """MiB of weights and of caches that the log names, by device."""
    found: dict[str, Counter[str]] = {"model": Counter(), "cache": Counter()}
    for buffer, kind, size in re.findall(r"(\S+) +(model|KV|RS) buffer size = +([\d.]+) MiB", log):
        port = re.search(r":(\d+)\]", buffer)
        found["model" if kind == "model" else "cache"][port[1] if port else "CPU"] += float(size)  # type: ignore[assignment]
    return found


def check(found: MemoryPlan, log: str) -> None:
    """Layer for layer, and weights byte for byte as far as the log has digits."""
    allocated = sizes(log)
    owners = {int(layer): name for layer, name in re.findall(r"layer +(\d+) assigned to device (\w+)", log)}
    for place in found.places:
        assert [layer for layer in place.layers if owners[layer] != place.spot.name] == []
        assert place.weight_bytes / MIB == pytest.approx(allocated["model"][key(place)], abs=0.02)
        assert -0.1 < place.cache_bytes / MIB - allocated["cache"][key(place)] < 0.2
        assert place.has_output is (owners[max(owners)] == place.spot.name)


@pytest.mark.parametrize(
    "family",
    ["glm4moe", "step35", "exaone4", "cohere2moe", "qwen35moe", "nemotron_h_moe", "mimo2", "glm-dsa", "glm5-next"],
)
def test_weights_and_caches_lie_where_the_plan_says(
    family: str, endpoints: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    found = planned(path, endpoints, tensor_split=[1, 2])
    check(found, loaded(path, endpoints, capfd, tensor_split=[1, 2]))


@pytest.mark.parametrize("family", ["glm4moe", "exaone4", "qwen35", "dots3note"])
def test_caches_of_several_sequences_are_as_large_as_the_plan_says(
    family: str, endpoints: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    check(planned(path, endpoints, n_seq_max=3), loaded(path, endpoints, capfd, n_seq_max=3))


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("n_seq_max", [1, 4])
def test_passes_compute_in_what_the_plan_says(flash_attn: Any, n_seq_max: int, tiny: Path) -> None:
    context = ContextParams(n_ctx=2048, n_threads=1, flash_attn=flash_attn, n_seq_max=n_seq_max)
    model, drafting = ModelParams(device=()), DraftParams()
    (here,) = plan(tiny, Params(model, context, drafting)).places
    with Model(tiny, model=model, context=context, drafting=drafting) as loaded_model:
        compute_bytes = loaded_model.session.compute_bytes
    assert 0.6 < (here.compute_bytes - KEPT) / compute_bytes < 1.4


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tensor_split": [3, 1]},
        {"tensor_split": [0, 1]},
        {"n_gpu_layers": 4},
        {"n_gpu_layers": 0},
        {"n_gpu_layers": -2},
        {"n_cpu_moe": 3},
        {"cpu_moe": True},
        {"override_tensor": [(r"blk\.2\..*", "CPU")]},
        {"override_tensor": [(r"blk\.[12]\.ffn_.*", "CPU"), (r"attn_q\.", "CPU")], "tensor_split": [1, 1]},
        {"split_mode": "none"},
        {"split_mode": "none", "main_gpu": 1},
        {"device": []},
    ],
    ids=str,
)
def test_flags_put_tensors_where_the_plan_says(
    options: dict[str, Any], endpoints: list[str], tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check(planned(tiny, endpoints, **options), loaded(tiny, endpoints, capfd, **options))


def limit(monkeypatch: pytest.MonkeyPatch, free: dict[str, int]) -> None:
    """Have devices of these names report other free bytes: an RPC server has no flag for that."""
    real = devices._memory

    def memory(device: Any) -> tuple[int, int]:
        size = free.get(devices.text_of(devices.lib.ggml_backend_dev_name(device)))
        return real(device) if size is None else (size, size)

    monkeypatch.setattr(devices, "_memory", memory)


@pytest.mark.parametrize("family", ["glm4moe", "step35", "qwen35"])
def test_what_has_no_room_on_the_devices_stays_here(
    family: str,
    endpoints: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    everything = planned(path, endpoints, tensor_split=[1, 1]).places
    free = [place.compute_bytes + int(0.6 * (place.weight_bytes + place.cache_bytes)) for place in everything[:2]]
    limit(monkeypatch, {place.spot.name: size for place, size in zip(everything, free, strict=False)})
    found = planned(path, endpoints, fit_target=[0])
    assert found.note and re.search("stay on the CPU: there is no room for more", found.note)
    log = loaded(path, endpoints, capfd, fit_target=[0])
    check(found, log)
    allocated = sizes(log)
    for place, size in zip(found.places[:2], free, strict=True):
        used = allocated["model"][key(place)] + allocated["cache"][key(place)]
        assert used * MIB <= place.needed_bytes <= size or not used
    assert sum(allocated["model"].values()) > allocated["model"]["CPU"]


def test_a_text_is_the_same_where_something_stays_here(
    endpoints: list[str], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(**options: Any) -> list[int]:
        with Model(tiny, n_ctx=N_CTX, n_threads=1, draft_max=3, **options) as model:
            generation = model.generate(
                [1, 2, 3], sampling=SamplingParams(temperature=0), max_tokens=24, ignore_eos=True
            )
            list(generation)
            assert bool(model.room_note) is bool(options)
            return generation.tokens

    here = tokens()
    places = planned(tiny, endpoints, tensor_split=[1, 1]).places[:2]
    limit(monkeypatch, {place.spot.name: int(places[1].needed_bytes * 0.8) for place in places})
    assert tokens(rpc=endpoints, fit_target=[0]) == here


def test_without_fit_all_goes_to_the_devices(endpoints: list[str], tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, {place.spot.name: 1000 for place in planned(tiny, endpoints).places[:2]})
    first, second, here = planned(tiny, endpoints, fit=False).places
    assert first.layers and second.layers and len(here.layers) == 1
    first, second, here = planned(tiny, endpoints).places
    assert not first.layers and not second.layers


def inspected(*arguments: str) -> str:
    command = [sys.executable, "-m", "pymtp_cli", "inspect", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_inspect_shows_the_plan(endpoints: list[str], tiny: Path) -> None:
    flags = [str(tiny), "--rpc", ",".join(endpoints), "-ts", "1,1", "-c", str(N_CTX), "-ncmoe", "2"]
    shown = inspected(*flags)
    assert re.search(
        rf"^RPC0: +layers 0 to 1; .* of weights, .* of cache, up to .* free \({endpoints[0]} ", shown, re.M
    )
    assert re.search(r"^CPU: +head 0, output, token embedding, experts of layers? .*; ", shown, re.M)
    as_json = json.loads(inspected(*flags, "--json"))
    expected = planned(tiny, endpoints, tensor_split=[1, 1], n_cpu_moe=2).places
    assert [each["weight_bytes"] for each in as_json["devices"]] == [place.weight_bytes for place in expected]
    assert as_json["devices"][2]["heads"] == [0] and as_json["devices"][2]["has_output"]


def test_inspect_names_what_has_no_room(endpoints: list[str], tiny: Path) -> None:
    shown = inspected(str(tiny), "--rpc", endpoints[0], "-fitt", str(1 << 30))
    assert re.search(r"^RPC0: +nothing; ", shown, re.M)
    assert re.search(r"^note: +\d of \d layers stay on the CPU: there is no room", shown, re.M)


def test_a_context_that_nobody_asked_for_ends_where_the_hosts_memory_does(tiny: Path) -> None:
    def n_ctx_of(fit_target: int, **more: Any) -> int:
        context = ContextParams(n_ctx_max=1024, n_cells=0, n_seq_max=4, n_threads=1, **more)
        where = ModelParams(device=(), fit_ctx=256, fit_target=(fit_target,))
        found = plan(tiny, Params(where, context, DraftParams()))
        assert (found.note is None) is (found.memory.n_ctx != 256)
        return found.memory.n_ctx

    free = devices.host_free_bytes() // MIB
    assert 0 < free <= psutil.virtual_memory().total // MIB
    assert n_ctx_of(0) == 1024
    assert n_ctx_of(free + MIB) == 256
    assert n_ctx_of(free + MIB, n_ctx=512) == 512


def test_caches_for_which_the_host_has_no_room_are_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux would end the process that fills them."""
    monkeypatch.setattr("pymtp.placement.plan.host_free_bytes", lambda: 300 * MIB)
    options: dict[str, Any] = {"device": (), "n_ctx": 1 << 22, "n_threads": 1, "draft": "none"}
    with pytest.raises(InvalidParameter, match=r"n_ctx must be smaller: .* take [\d.]+ GiB .* 0.3 GiB are free"):
        Model(tiny, **options)
    Model(tiny, **options | {"n_ctx": 512}).close()


def test_a_cache_on_the_host_is_planned_there(
    tiny: Path, endpoints: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    context = ContextParams(n_ctx=N_CTX, n_threads=1, offload_kqv=False)
    found = plan(tiny, Params(ModelParams(rpc=endpoints, load_mode="none"), context, DraftParams()))
    assert [place.cache_bytes > 0 for place in found.places] == [False, False, True]
    check(found, loaded(tiny, endpoints, capfd, offload_kqv=False))
