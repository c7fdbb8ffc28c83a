"""`pymtp doctor`, and what it asks of devices."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from pymtp_cli.app import app
from typer.testing import CliRunner

from machine import GPUS
from pymtp.errors import PymtpError
from pymtp.placement import devices, operations
from pymtp.placement.devices import host_device


def test_the_report_is_whole_and_names_no_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "secret-user"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    monkeypatch.setitem(sys.modules, "gguf", None)  # it does not come with pymtp
    result = CliRunner().invoke(app, ["doctor"])
    titles = [line.split()[0] for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert (result.exit_code, result.stderr) == (0, "")
    assert titles == ["versions", "machine", "folders", "CPU", *GPUS, "drafts"]
    assert "LLAMA_ARG_CTX_SIZE=4096" in result.stdout and "HF_TOKEN=(set)" in result.stdout
    assert "secret" not in result.stdout and f"/{getpass.getuser()}/" not in result.stdout


def test_a_wrong_kernel_is_named_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operations._differences

    def wrong(device: object, ggml_type: int, is_attention: bool, n_rows: Sequence[int]) -> tuple[float, float]:
        error, company = right(device, ggml_type, is_attention, n_rows)
        is_broken = ggml_type == GGMLQuantizationType.Q4_K and 4 in n_rows
        return (0.5 if is_broken else error), company

    monkeypatch.setattr(operations, "_differences", wrong)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "WRONG: Q4_K product (off by 5.0e-01)" in result.stdout


@pytest.mark.parametrize("arguments", [["run", "--list-devices"], ["doctor"]])
def test_backends_that_cannot_be_loaded_are_named_with_what_they_need(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("cuda.so", "cpu.so"):
        (tmp_path / f"libggml-{name}").write_bytes(b"not a library")
    monkeypatch.setattr(devices, "library_file", lambda: tmp_path / "libpymtp-llama.so")
    result = CliRunner().invoke(app, arguments)
    (line,) = [line for line in result.output.splitlines() if "left out" in line]
    assert result.exit_code == 0 and "CUDA is left out (" in line and line.endswith("or the CUDA toolkit")


def test_this_processor_computes_all_of_it_and_rows_do_not_matter() -> None:
    found = operations.check_operations(host_device())
    assert len(found) == 15 and all(each.is_right and each.company == 0 for each in found)
    errors = {each.name: each.error for each in found}
    # exact integers within a block; queries are rounded to 8 bits where keys are quantised
    assert errors["Q8_0 product"] < 1e-5 and 1e-4 < errors["Q4_0 attention"] < 0.05


@pytest.mark.parametrize(
    ("ggml_type", "is_attention", "n_rows"),
    [(-1, False, [1]), (1000, False, [1]), *((GGMLQuantizationType.Q8_0, False, rows) for rows in ([], [1, 0], [513]))]
    + [(GGMLQuantizationType.Q4_K, True, [1]), (GGMLQuantizationType.IQ2_XS, False, [1])],
)
def test_what_cannot_be_checked_is_refused(ggml_type: int, is_attention: bool, n_rows: list[int]) -> None:
    with pytest.raises(PymtpError):
        operations._differences(host_device(), ggml_type, is_attention, n_rows)
