"""Where a model's tensors go: what is refused, and what the loader makes of the rest."""

from __future__ import annotations

import re
from copy import copy
from pathlib import Path
from typing import Any

import pytest

import pymtp
from families import FAMILIES
from log_level import logged
from machine import needs_no_gpu
from pymtp import InvalidParameter, Model, ModelParams, PymtpError, SamplingParams
from pymtp.gguf.facts import GgufInfo, model_facts
from pymtp.gguf.header import read_header
from pymtp.placement import devices, target
from random_gguf import write_gemma4

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["glm4moe"].write(tmp_path_factory.mktemp("placement") / "tiny.gguf")


def changed(info: GgufInfo, **facts: object) -> GgufInfo:
    """`info`, but for these facts."""
    info = copy(info)
    vars(info).update(facts)
    return info


def tokens(path: Path, **options: Any) -> list[int]:
    with Model(path, n_ctx=64, n_threads=1, **options) as model:
        generation = model.generate([1, 2, 3], sampling=GREEDY, max_tokens=12, ignore_eos=True)
        list(generation)
        return generation.tokens


def test_the_cpu_is_among_the_devices() -> None:
    found = [device for device in pymtp.devices() if device.kind == "CPU"]
    assert found
    assert found[0].total_bytes > 0


@pytest.mark.parametrize("load_mode", ["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"])
def test_every_way_to_read_the_file_gives_the_same_text(path: Path, load_mode: str) -> None:
    assert tokens(path, load_mode=load_mode) == tokens(path)


@pytest.mark.parametrize(
    "options",
    [
        {"device": ()},
        {"cpu_moe": True},
        {"n_cpu_moe": 2},
        {"n_cpu_moe": 10**9},  # more than there are layers: all
        {"override_tensor": [(r"blk\.0\..*", "CPU"), (r"output\.weight", "CPU")]},
        {"split_mode": "none"},
    ],
    ids=str,
)
def test_a_text_does_not_depend_on_where_tensors_are(path: Path, options: dict[str, Any]) -> None:
    assert tokens(path, **options) == tokens(path)


@needs_no_gpu
def test_the_loader_is_told_where_tensors_go(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    overrides = [(r"blk\.1\.ffn_\w+_exps", "CPU")]
    with logged("debug"), Model(path, n_ctx=64, n_threads=1, override_tensor=overrides):
        pass
    named = re.findall(r"tensor (\S+) .*buffer type overridden to CPU", capfd.readouterr().err)
    assert named
    assert all(re.fullmatch(r"blk\.1\.ffn_\w+_exps\.weight", name) for name in named)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": ["CUDA7"]}, "device must be none, or names of devices .*, not 'CUDA7'"),
        ({"device": "CUDA0"}, "device must be a list of names"),
        ({"split_mode": "rows"}, "split_mode must be one of none, layer, row, tensor, not 'rows'"),
        ({"load_mode": "fast"}, "load_mode must be one of auto"),
        ({"tensor_split": [0, 0]}, "tensor_split must be shares of 0 or more, not all 0"),
        ({"tensor_split": [1.0] * 300}, "tensor_split must be no more shares than there are devices"),
        ({"tensor_split": [float("nan")]}, "tensor_split must be shares"),
        ({"main_gpu": -1}, "main_gpu must be the number of a device"),
        ({"main_gpu": 99}, "main_gpu must be (below the number of devices|left out where there is no GPU)"),
        ({"override_tensor": [("(", "CPU")]}, "override_tensor must be pairs of a regular expression"),
        ({"override_tensor": [("x", "Nowhere")]}, "override_tensor must be buffer types that exist .*, not 'Nowhere'"),
        ({"n_cpu_moe": -1}, "n_cpu_moe must be a number of layers"),
        ({"cpu_moe": 1}, "cpu_moe must be True or False"),
        ({"moe_cache_mib": -1}, "moe_cache_mib must be an integer between 0 and"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Model(path, **options)


@needs_no_gpu
def test_a_cache_of_experts_needs_a_gpu(path: Path) -> None:
    with pytest.raises(PymtpError, match=r"^moe_cache_mib \(--moe-cache-mib\) is of no use here: .* requires a GPU"):
        Model(path, moe_cache_mib=8)


@needs_no_gpu
def test_a_split_of_tensors_needs_a_gpu(path: Path) -> None:
    with pytest.raises(InvalidParameter, match="split_mode must be none, layer or row where there is no GPU"):
        Model(path, split_mode="tensor")


@pytest.mark.parametrize(
    ("share", "tied", "known", "moves"),
    [(0.5, False, True, True), (0.9, False, True, False), (0.9, True, True, True), (0.5, False, False, False)],
)
def test_the_token_embedding_goes_to_a_device_that_has_room(
    path: Path, share: float, tied: bool, known: bool, moves: bool
) -> None:
    device = devices._natives()[0]
    size = int(devices.describe(device).free_bytes * share)
    info = changed(model_facts(path), size_bytes=size, ties_embedding=tied)
    found = target._embedding_on(device, info if known else changed(info, embedding_type=None))
    assert [pattern for pattern, _ in found] == ([r"^token_embd\.weight$"] if moves else [])


def test_an_assistant_is_no_layer_that_has_to_go_to_the_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a model's layers and its output: the token embedding goes with them."""
    model = target.LoadTarget(ModelParams(device=()), changed(model_facts(path), has_assistant=True))
    monkeypatch.setattr(target, "_embedding_on", lambda device, info: (("moved", device),))
    device = devices.host_device()
    model._taking, model.spots = [device], [target._spot(device, is_remote=False)]
    n = model._info.n_layer
    assert model._info.n_heads_declared == 1
    moved = {n_gpu_layers: bool(model.overrides(ModelParams(n_gpu_layers=n_gpu_layers))) for n_gpu_layers in (n, n + 1)}
    assert moved == {n: False, n + 1: True}


def test_a_tied_embedding_is_loaded_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_gemma4(tmp_path / "tiny.gguf", tied=True)
    with logged("debug"), Model(path, n_ctx=64, n_threads=1, device=(), load_mode="none"):
        sizes = re.findall(r"model buffer size = +([\d.]+) MiB", capfd.readouterr().err)
    n_bytes = sum(tensor.size_bytes for tensor in read_header(path).tensors)
    assert sum(map(float, sizes)) == pytest.approx(n_bytes / 2**20, abs=0.05)


def test_parameters_say_what_they_are() -> None:
    assert ModelParams().device is None
    assert ModelParams(device=["CUDA0"]).device == ["CUDA0"]
