"""Random lists of arguments: parsed and checked as the command line does, up to where a model would be loaded."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from typer.main import get_command

import pymtp
from pymtp import PymtpError, benchmark
from pymtp.embedded import model_path
from pymtp.placement import devices
from pymtp.server import run

from .fuzzer import Fuzzer

_VALUES = ["0", "1", "-1", "3", "0.5", "1.5", "-0", "", " ", "a", "nan", "inf", "-inf", "1e400", "9" * 30, "0x10"]
_VALUES += ["1-8", "0-8+2", "128-1024*2", "1,2,,3", "1-99999999", "5-1", "1-8+0", "1-8*1", "2147483647", "4294967296"]
_VALUES += ["auto", "none", "sample", "q8_0", "f16", "on", "off", "all", "greedy", "block", "é", "\udcff", "a=b", "--"]
_VALUES += ["{", "[]", "{}", "[" * 5000, '{"type": "object"}']
_VALUES += ['{"type": "string", "pattern": "^a$"}', "root ::= (", "top_k;temp"]
_VALUES += ["5+1", "5-inf", "-5+1", "5+nan", "a+b", "99999999999+1", "exps=CPU", "(=CPU", "0.1,0.2", "CPU", "GPU9"]
_VALUES += ["/dev/zero", "/dev/null", ".", "missing/file", "text", "deep.json", "lines.jsonl", "model.gguf"]
_VALUES += ["user/repo", "user/repo:Q4_K_M", "../..", "\\n", "a b", "x" * 5000]


class _Loading(PymtpError):
    """In the place of loading a model."""


class Flags(Fuzzer):
    """The commands, in this process. Only the exit codes 0, 1 and 2 are good, with a line or none on stderr."""

    name = "flags"

    def __init__(self, folder: Path) -> None:
        os.chdir(folder)
        (folder / "text").write_text("a text\n")
        (folder / "deep.json").write_text("[" * 100_000)
        line = {"category": "a", "prompt": "b"}
        (folder / "lines.jsonl").write_text(json.dumps(line) + "\n")
        os.mkfifo(folder / "fifo")
        (folder / "model.gguf").symlink_to(model_path())
        from pymtp_cli import app

        def stop(*_: Any, **__: Any) -> None:
            raise _Loading("a model would be loaded now")

        pymtp.Model = stop  # type: ignore[misc, assignment]
        benchmark.measure = stop  # type: ignore[attr-defined, assignment]
        run.serve = stop  # type: ignore[assignment]
        devices.serve_devices = stop
        pymtp.exit_on_abort = lambda: None
        # made once: that takes ten times as long as parsing a list
        self._command = get_command(app.app)
        self._flags = self._of_commands()

    def _of_commands(self) -> dict[str, list[str]]:
        commands = self._command.commands  # type: ignore[attr-defined]
        return {
            name: sorted(
                flag
                for flag in {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
                if flag[0] == "-" and flag != "--debug"  # which shows tracebacks
            )
            for name, command in commands.items()
        }

    def case(self, chance: random.Random) -> list[str]:
        name = chance.choice([*self._flags, *self._flags, "bach", ""])
        flags = self._flags.get(name) or self._flags["run"]
        made = [name] if chance.random() < 0.98 else []
        for _ in range(chance.choice([0, 1, 1, 2, 3, 5])):
            flag = chance.choice(flags)
            if chance.random() < 0.03:
                flag = chance.choice([flag[:-1], flag + "x", flag.replace("-", "_"), flag.upper()])
            if flag.startswith("--") and chance.random() < 0.2:
                made.append(f"{flag}={chance.choice(_VALUES)}")
            else:
                made += [flag, chance.choice(_VALUES)] if chance.random() < 0.75 else [flag]
        made += [chance.choice(_VALUES) for _ in range(chance.choice([0, 0, 1, 2]))]
        return made

    def run(self, case: list[str]) -> str:
        out, err = _Text(), _Text()
        with _stdin(b"a prompt"), redirect_stdout(out), redirect_stderr(err):
            try:
                self._command.main([argument.replace("\0", "") for argument in case], prog_name="pymtp")
                code: Any = 0
            except SystemExit as end:
                code = end.code
        text = err.getvalue()
        if code not in (0, 1, 2, None):
            raise AssertionError(f"exit code {code}: {case}")
        if "Traceback" in text or (code in (1, 2) and not text.strip()):
            raise AssertionError(f"exit code {code} with {text!r}: {case}")
        return "accepted" if "would be loaded" in text else f"exit code {code or 0}"


class _Text(io.TextIOWrapper):
    """A text that a program writes, as a stream with a buffer below."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)

    def getvalue(self) -> str:
        return self.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined, no-any-return]


@contextmanager
def _stdin(data: bytes) -> Iterator[None]:
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data), "utf-8")
    try:
        yield
    finally:
        sys.stdin = before
