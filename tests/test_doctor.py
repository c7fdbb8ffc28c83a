"""`pymtp doctor`, and what it asks of devices."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli import doctor
from pymtp_cli.app import app
from typer.testing import CliRunner

from machine import GPUS
from pymtp.errors import BackendError
from pymtp.placement import devices


def test_the_report_is_whole_and_names_no_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "secret-user"))
    monkeypatch.setattr(doctor, "HF_HUB_CACHE", str(tmp_path / "secret-user" / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    monkeypatch.setitem(sys.modules, "gguf", None)  # it does not come with pymtp
    result = CliRunner().invoke(app, ["doctor"])
    titles = [line.split()[0] for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert (result.exit_code, result.stderr) == (0, "")
    assert titles == ["versions", "machine", "folders", "CPU", *GPUS]
    assert "LLAMA_ARG_CTX_SIZE=4096" in result.stdout and "HF_TOKEN=(set)" in result.stdout
    assert "secret" not in result.stdout and f"/{getpass.getuser()}/" not in result.stdout


@pytest.mark.parametrize("fails", [False, True])
def test_a_device_where_drafts_change_a_text_is_named_and_ends_with_1(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = doctor._text

    def wrong(device: str, **drafts: Any) -> str:
        if "draft_max" in drafts and fails:
            raise BackendError("the device failed")
        return f"{right(device, **drafts)}{drafts}"

    monkeypatch.setattr(doctor, "_text", wrong)
    result = CliRunner().invoke(app, ["doctor"])
    line = "FAILED: the device failed" if fails else "WRONG: drafts change a text"
    assert result.exit_code == 1
    assert f"CPU         {line}; please report it\n" in result.stdout


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
