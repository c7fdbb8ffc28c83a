"""`pymtp inspect`: what it prints, and how it fails. Nothing is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

WriteGguf = Callable[..., Path]


def inspect(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], prog_name="pymtp")


def rows(*arguments: object) -> dict[str, str]:
    result = inspect(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in result.stdout.splitlines())}


def test_the_embedded_model_is_described(embedded_model: Path) -> None:
    shown = rows()
    assert shown["file"] == str(embedded_model)
    assert shown["drafting"] == "yes"
    assert shown["head 0"] == "layer 16, 2.1 MiB Q4_K/Q6_K, the trunk's lm_head"
    assert shown["draft pass"] == "reads 5.4 MiB of weights, a trunk pass 30.9 MiB (17%)"
    assert shown["context"] == "2048 tokens, K f16, V f16"


def test_the_model_may_be_named_three_ways(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    shown = [rows(*arguments) for arguments in ([path], ["-m", path], ["--model", path])]
    for facts in shown:  # what is free changes by itself
        facts.update({name: re.sub(r"[\d.]+ \w+ free", "free", value) for name, value in facts.items()})
    assert shown[0] == shown[1] == shown[2]
    result = inspect(path, "-m", path)
    assert (result.exit_code, result.stdout) == (2, "")


def test_memory_follows_the_flags() -> None:
    assert rows("-c", 1024)["K/V"] == "8.0 MiB, and 512.0 KiB for the heads"
    beyond = inspect("-c", 4096).stderr
    assert beyond.startswith("pymtp: a context of 4096 tokens, but the model was trained with 2048") and "\n" in beyond
    assert rows("-c", 0)["context"].startswith("2048 tokens")
    assert rows("-c", 1024, "-ctk", "q8_0", "-ctv", "q8_0")["K/V"] == "4.2 MiB, and 272.0 KiB for the heads"
    assert rows("-c", 2048)["K/V"] == "13.0 MiB, and 1.0 MiB for the heads"  # most layers have a window
    assert rows("-c", 2048, "--invariant")["K/V"] == "16.0 MiB, and 1.0 MiB for the heads"


def test_there_is_one_total() -> None:
    shown = rows("-c", 1024, "-dev", "none")
    total = shown["total"].removeprefix("up to ")
    assert f": {total} of " in shown["CPU"] and "compute" not in shown
    facts = json.loads(inspect("--json", "-c", 1024, "-dev", "none").stdout)
    (here,) = facts["devices"]
    assert facts["memory"]["total_bytes"] == here["cache_bytes"] + here["compute_bytes"]


def test_json_has_every_fact(embedded_model: Path) -> None:
    result = inspect("--json", "-c", 1024)
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert (found["path"], found["architecture"], found["n_heads"]) == (str(embedded_model), "step35", 1)
    assert found["heads"][0]["lm_head"] == "shared"
    tensor = {"name": "blk.16.attn_gate.weight", "type": "Q4_K", "shape": [512, 8], "size_bytes": 2304}
    assert found["heads"][0]["tensors"][0] == tensor
    assert found["memory"]["kv_bytes"] == 8 * 2**20
    assert found["memory"]["total_bytes"] == sum(
        found["memory"][f"{part}_bytes"] for part in ("kv", "heads_kv", "state", "compute")
    )
    assert found["draft_cost"] == pytest.approx(0.1746, abs=1e-4)


def test_what_is_missing_is_said(write_gguf: WriteGguf) -> None:
    assert rows(write_gguf())["drafting"] == "the metadata names no MTP heads (nextn_predict_layers = 0)"
    assert rows(write_gguf(declared=2, heads=1))["MTP heads"] == "2 in the metadata, 1 in the tensors"
    side = rows(write_gguf("mtp-tiny.gguf", n_layer=0, declared=1, heads=1))
    assert side["layers"] == "none: this file holds only the MTP heads"
    assert side["draft pass"].startswith("reads ") and "trunk" not in side["draft pass"]
    assert "context" not in side


def test_side_files_and_parts_are_shown(write_gguf: WriteGguf) -> None:
    first = write_gguf("m-00001-of-00002.gguf", declared=1, split=(0, 2))
    write_gguf("m-00002-of-00002.gguf", declared=1, heads=1, split=(1, 2))
    write_gguf("mtp-m.gguf", n_layer=0, declared=1, heads=1)
    shown = rows(first)
    assert shown["file"] == f"{first} and 1 more"
    assert shown["side file"].startswith("mtp-m.gguf, glm4moe F32, ")
    assert re.search(r"; a draft pass reads .* of weights, a trunk pass .* \(\d+%\)$", shown["side file"])


def test_a_name_cannot_steer_the_terminal(write_gguf: WriteGguf) -> None:
    path, side = write_gguf(), write_gguf("mtp-m.gguf", n_layer=0, declared=1, heads=1)
    path.write_bytes(path.read_bytes().replace(b"tiny", b"\x1b[2J"))
    side.write_bytes(side.read_bytes().replace(b"glm4moe", b"glm\x1b[2J"))
    shown = inspect(path).stdout
    assert "mtp-m.gguf" in shown and "\x1b" not in shown
    assert "\x1b" not in inspect(path.with_name("\x1b[2J")).stderr


@pytest.mark.parametrize("content", [None, b"", b"hello", b"GGUF\3\0\0\0"])
def test_a_file_that_is_no_model_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    result = inspect(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"pymtp: {path}")
    assert result.stderr.count("\n") == 1
