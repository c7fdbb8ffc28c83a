"""Devices that no load has seen before: what they compute is checked once, and kernels that are wrong are not used."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from pymtp import Model
from pymtp.errors import BackendError
from pymtp.placement import operations, seen
from pymtp.placement.devices import host_device

WRONG = "Q4_K product"


@pytest.fixture(autouse=True)
def kernels_are_used_again() -> Iterator[None]:
    with_kernels()
    yield
    seen._allow(host_device(), allowed=True)


@pytest.fixture
def q4_k_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pymtp's kernels."""
    is_allowed, allow, right = [True], seen._allow, operations._differences

    def allow_and_record(device: object, *, allowed: bool) -> None:
        is_allowed[0] = allowed
        allow(device, allowed=allowed)

    def wrong(device: object, ggml_type: int, is_attention: bool, n_rows: Sequence[int]) -> tuple[float, float]:
        error, company = right(device, ggml_type, is_attention, n_rows)
        return (0.5 if is_allowed[0] and ggml_type == GGMLQuantizationType.Q4_K else error), company

    monkeypatch.setattr(seen, "_allow", allow_and_record)
    monkeypatch.setattr(operations, "_differences", wrong)


@functools.cache
def with_kernels() -> list[operations.Operation]:
    seen._allow(host_device(), allowed=True)
    return operations.check_operations(host_device())


def uses_own_kernels() -> bool:
    found = operations.check_operations(host_device())
    return all(one == each for one, each in zip(found, with_kernels(), strict=True) if each.name != WRONG)


def never(device: object) -> Any:
    raise AssertionError("it was checked again")


def test_a_kernel_that_is_wrong_is_off_and_named_at_each_load(
    q4_k_is_wrong: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "devices.json"
    line = f"CPU computes {WRONG} wrong: pymtp's kernels are off there; please report it"
    with pytest.warns(match=line):
        seen.check_seen([host_device()], file)
    assert not uses_own_kernels()
    seen._allow(host_device(), allowed=True)  # as in another process
    with monkeypatch.context() as patch, pytest.warns(match=line):
        patch.setattr(seen, "check_operations", never)
        seen.check_seen([host_device()], file)
    assert not uses_own_kernels()


def test_what_is_right_is_checked_once_without_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen.check_seen([host_device()], file)
        monkeypatch.setattr(seen, "check_operations", never)
        seen.check_seen([host_device()], file)
    assert uses_own_kernels()
    assert [path.name for path in tmp_path.iterdir()] == ["devices.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"a": 5}', '{"a": [["b"]], "c": [[], [], []]}'])
def test_a_damaged_file_is_written_again(text: str, tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text(text)
    seen.check_seen([host_device()], file)
    assert seen._key(host_device()) in json.loads(file.read_text())


def test_what_cannot_be_checked_or_kept_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(device: object) -> Any:
        raise BackendError("out of memory")

    (tmp_path / "file").touch()
    seen.check_seen([host_device()], tmp_path / "file" / "devices.json")
    monkeypatch.setattr(seen, "check_operations", fails)
    seen.check_seen([host_device()], tmp_path / "devices.json")
    assert not (tmp_path / "devices.json").exists()


@pytest.mark.model
def test_a_load_looks_at_its_devices(monkeypatch: pytest.MonkeyPatch, embedded_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    monkeypatch.setattr(seen, "_file", lambda: file)
    seen._write(file, {seen._key(host_device()): [WRONG]})
    with pytest.warns(match=WRONG), Model(embedded_model, n_ctx=256, draft_max=3) as model:
        assert "".join(model.generate("def f(n):", temperature=0, max_tokens=20))
        assert not uses_own_kernels()
