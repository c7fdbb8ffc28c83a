"""`pymtp heads`: what its commands print and write, and how they fail."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pymtp_cli.heads
import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from random_gguf import write_glm4moe
from random_gguf.side_files import split_heads
from test_heads import HEAD, tensors


class Case(NamedTuple):
    """A model, and what it is without heads."""

    whole: Path
    trunk: Path


def heads(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["heads", *map(str, arguments)], prog_name="pymtp")


def run(*arguments: object) -> str:
    """What a command that succeeds writes to stderr."""
    result = heads(*arguments)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    return str(result.stderr)


def refused(code: int, *arguments: object) -> str:
    """The line of a command that fails."""
    result = heads(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    return str(result.stderr)


@pytest.fixture
def glm(tmp_path: Path) -> Case:
    case = Case(write_glm4moe(tmp_path / "whole.gguf"), tmp_path / "trunk.gguf")
    split_heads(case.whole, case.trunk, tmp_path / "unused.gguf")
    return case


def test_heads_go_out_become_smaller_and_go_in(glm: Case, tmp_path: Path) -> None:
    apart, small, again = (tmp_path / f"{name}.gguf" for name in ("apart", "small", "again"))
    assert run("extract", glm.whole, "-o", apart) == f"pymtp: wrote {apart}, 2.0 MiB\n"
    assert run("extract", glm.whole).startswith(f"pymtp: wrote {tmp_path / 'mtp-whole.gguf'}, ")
    assert "(--force)" in refused(1, "extract", glm.whole, "-o", apart)
    run("extract", glm.whole, "-o", apart, "--force", "--bare")
    assert set(tensors(apart)) == {name for name in tensors(glm.whole) if name.startswith(HEAD)}

    given = ("--type", "q8_0", "--output-tensor-type", "q6_k", "--experts-type", "q4_0", "--tensor-type", "_v=f16")
    lines = run("quantize", apart, "-o", small, *given, "--tensor-type", "attn_[qv]=q5_1").splitlines()
    assert lines[0].startswith(f"pymtp: wrote {small}, ")
    assert f"{HEAD}attn_v.weight: F32 to F16" in lines
    assert f"{HEAD}attn_q.weight: F32 to Q5_1" in lines
    assert f"{HEAD}attn_k.weight: F32 to Q8_0" in lines
    assert f"{HEAD}ffn_up_exps.weight: F32 to Q4_0" in lines
    wanted = "F32 to Q8_0, as the blocks of Q6_K do not fit its rows"
    assert f"{HEAD}nextn.shared_head_head.weight: {wanted}" in lines

    run("attach", glm.trunk, small, "-o", again)
    assert tensors(again).items() >= tensors(small).items()
    has_some = refused(1, "attach", glm.whole, small, "-o", tmp_path / "out.gguf")
    assert "has its own MTP heads" in has_some and "it needs none" in has_some


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_a_command_leaves_no_half_of_a_file(
    name: str, glm: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)

    @contextmanager
    def interrupted() -> Iterator[Any]:
        yield lambda done, total: done < total / 2 or os.kill(os.getpid(), number)

    monkeypatch.setattr(pymtp_cli.heads, "writing", interrupted)
    before = set(tmp_path.iterdir())
    handler = signal.signal(number, signal.SIG_DFL)  # nohup ignores one of them, and a command keeps to that
    try:
        assert heads("extract", glm.whole).exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, handler)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "Invalid value for --type: must be named where no other type is"),
        ("--type q9", "Invalid value for --type: must be one of f32, f16"),
        ("--tensor-type attn", "Invalid value for --tensor-type: must be PATTERN=TYPE, not 'attn'"),
        ("--tensor-type attn=q9", "Invalid value for --tensor-type: must be one of f32, f16"),
        ("--tensor-type (=f16", "Invalid value for --tensor-type: must be a regular expression"),
        ("--tensor-type none=f16", "Invalid value for --tensor-type: must be a regular expression of a matrix"),
    ],
)
def test_a_wrong_type_is_refused_by_its_flag(embedded_model: Path, arguments: str, problem: str) -> None:
    assert problem in refused(2, "quantize", embedded_model, "-o", "out.gguf", *arguments.split())


def test_the_command_that_training_shows_is_one_for_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(path: Path, *_: object, **__: object) -> Path:
        head = tmp_path / "mtp-my model.gguf"
        head.touch()
        return head

    monkeypatch.setattr("pymtp.training.train_head", trained)
    command = run("train", tmp_path / "my model.gguf").splitlines()[-1]
    model, head = (str(tmp_path / name) for name in ("my model.gguf", "mtp-my model.gguf"))
    assert shlex.split(command)[2:5] == [model, "--draft-model", head]
