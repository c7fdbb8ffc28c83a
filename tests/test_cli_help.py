"""Help that fits a screen a group, docs/cli.md made from it, completion, and the nearest flag to a wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from pymtp_cli.flags import first_unknown, unknown_flag
from pymtp_cli.llama_cpp import REFUSED as REFUSED_FLAGS
from typer.main import get_command
from typer.testing import CliRunner

HEADS = [f"heads {name}" for name in sorted(get_command(app).commands["heads"].commands)]  # type: ignore[attr-defined]
COMMANDS = sorted({*get_command(app).commands, *HEADS} - {"heads"})  # type: ignore[attr-defined]
SCREEN_ROWS, SCREEN_COLUMNS = 24, 80


def help_text(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--help"], terminal_width=SCREEN_COLUMNS, prog_name="pymtp")
    assert (result.exit_code, result.stderr) == (0, "")
    return str(result.stdout)


@pytest.mark.parametrize("command", ["", "heads", *COMMANDS])
def test_each_group_fits_a_screen_and_examples_come_last(command: str) -> None:
    blocks = help_text(*command.split()).rstrip("\n").split("\n\n")
    assert all(len(block.splitlines()) <= SCREEN_ROWS for block in blocks)
    assert all(len(line) <= SCREEN_COLUMNS for block in blocks for line in block.splitlines())
    assert blocks[-1].startswith("Examples:\n  ") or command == "heads"  # whose commands have theirs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_belongs_to_a_group(command: str) -> None:
    assert "\nOther:" not in help_text(*command.split())


def test_the_reference_is_that_of_the_commands() -> None:
    import write_cli

    assert write_cli.FILE.read_text(encoding="utf-8") == write_cli.text(), "run `make docs`"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_flag_of_a_command(command: str) -> None:
    import write_cli

    page, _, shared = write_cli.FILE.read_text(encoding="utf-8").partition("## Shared flags\n")
    [own] = [part for part in re.split(r"^#+ ", page, flags=re.MULTILINE) if part.startswith(f"pymtp {command}\n")]
    lists = [part for part in re.split(r"^(?=`)", shared, flags=re.MULTILINE) if f"`{command}`" in part.split("\n")[0]]
    shown = {word for part in [own, *lists] for row in re.findall(r"^- `(.*?)`: ", part, re.M) for word in row.split()}
    found = {flag.rstrip(",") for flag in shown if flag.startswith("-")}
    named: Any = get_command(app)
    for word in command.split():
        named = named.commands[word]
    names = {name for param in named.params if not param.hidden for name in (*param.opts, *param.secondary_opts)}
    assert "--help" in found and {name for name in names if name.startswith("-")} <= found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("run --temprature 1 hi", "No such option: --temprature"),
        ("run --temprature 1 hi", "--temperature"),
        ("run -xyz hi", "No such option: -xyz (see"),
        ("chat --logprobs 1", "No such option: --logprobs; pymtp run has it"),
        ("chat --json", "No such option: --json; pymtp run and pymtp inspect have it"),
        ("rnu hi", "No such command 'rnu'. Did you mean 'run'?"),
        ("-q hi", "No such option: -q; pymtp run and pymtp serve have it"),
        ("--frobnicate run", "No such option: --frobnicate (see"),
        ("run --logprobs 2 hi", "log probabilities are shown by --json only: add it, or leave out --logprobs"),
        ("run --draft mtp --draft-max 0 hi", "--draft mtp and --draft-max 0 contradict each other: leave one out"),
        ("run --draft-min 3 --draft-max 2 hi", "--draft-min: must be at most draft_max, which is 2 (lower the one or"),
        ("run -np 4 hi", "No such option: -np; pymtp serve and pymtp inspect have it"),
        ("chat -cram 0", "No such option: -cram; pymtp serve has it"),
        ("run --context-shift hi", "where the context is full (-c); pymtp serve has it"),
        ("model.gguf", "a command comes before the model: pymtp run, or pymtp chat"),
        (
            "heads extract --type q8_0 x",
            "--type; pymtp heads quantize and pymtp heads train have it (see pymtp heads",
        ),
        ("heads extrac model.gguf", "No such command 'extrac'. Did you mean 'extract'? (see pymtp heads --help)"),
        ("heads model.gguf", "No such command 'model.gguf' (see pymtp heads --help)"),
        ("heads --bare x", "--bare; pymtp heads extract has it"),
        ("heads extract", "Missing argument 'MODEL' (see pymtp heads extract --help)"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(arguments: str, expected: str) -> None:
    result = CliRunner().invoke(app, arguments.split(), prog_name="pymtp")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert expected in result.stderr


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {*HEADS, "doctor"}))  # which have few flags
def test_the_short_help_names_the_long_one_and_fits_into_two_screens(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "-h"], terminal_width=SCREEN_COLUMNS, prog_name="pymtp")
    lines = shown.stdout.splitlines()
    assert (shown.exit_code, lines[-1]) == (0, f"All flags: pymtp {command} --help")
    assert len(lines) < len(help_text(command).splitlines())
    assert len(lines) <= 3 * SCREEN_ROWS and ("--model MODEL" in shown.stdout or command == "rpc-server")


def test_help_is_long_wherever_it_is_asked_for_in_full() -> None:
    assert CliRunner().invoke(app, ["run", "-h", "--help"]).stdout == CliRunner().invoke(app, ["run", "--help"]).stdout


def test_the_version_has_a_short_flag() -> None:
    assert CliRunner().invoke(app, ["-V"]).stdout == CliRunner().invoke(app, ["--version"]).stdout != ""


@pytest.mark.parametrize("argument", ["-xyz", "-tq", "-rEND", "-ngl7", "-nfoo", "-mmodel.gguf", "-x", "-nan"])
def test_a_flag_of_several_letters_is_never_several_flags(argument: str) -> None:
    known = {"-n", "-t", "-r", "-s", "-m", "-ngl"}
    assert unknown_flag(argument, known) == argument


@pytest.mark.parametrize("argument", ["-n5", "-n-1", "-t2", "-ngl", "-ngl=7", "-m/a.gguf", "-r\n", "-s"])
def test_a_value_may_follow_one_letter(argument: str) -> None:
    assert unknown_flag(argument, {"-n", "-t", "-r", "-s", "-m", "-ngl"}) is None


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("-p -xyz -n -1 hi", None),
        ("--prompt=-xyz --color -- -xyz", None),
        ("-p -xyz -xyz", "-xyz"),
        ("--color -xyz -p hi", "-xyz"),
        ("- -n", None),
    ],
)
def test_what_follows_a_flag_with_a_value_is_no_flag(line: str, unknown: str | None) -> None:
    run = get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {flag for param in run.params for flag in param.opts}
    assert first_unknown(line.split(), run.params, known, ends=False) == unknown
    assert first_unknown(["hi", *line.split()], run.params, known, ends=True) is None


def llama_cpp_flags() -> list[str]:
    return list(REFUSED_FLAGS)


REFUSED = """
-no-cnv --no-conversation -cnv -mli -i --interactive --control-vector --mmproj-url -ncffn -fitp
--grp-attn-n --skip-chat-parsing --reasoning-budget-message
-mmp
"""


@pytest.mark.parametrize(
    ("command", "flag", "title"),
    [("run", "--seed", "Sampling"), ("heads train", "--threads", "Training"), ("inspect", "--parallel", "Context")],
)
def test_a_flag_is_in_the_group_of_its_command(command: str, flag: str, title: str) -> None:
    text = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="pymtp").stdout
    before = text[: re.search(rf"^  .*{flag}\b", text, re.MULTILINE).start()]  # type: ignore[union-attr]
    assert re.findall(r"^(\w[\w ]*):$", before, re.MULTILINE)[-1] == title


@pytest.mark.parametrize("flag", REFUSED.split())
@pytest.mark.parametrize("command", ["run", "chat", "bench"])
def test_flags_of_llama_cpp_are_refused_by_name(command: str, flag: str) -> None:
    result = CliRunner().invoke(app, [command, flag, "1"], prog_name="pymtp")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"pymtp: {flag} of llama.cpp is not supported here")


@pytest.mark.parametrize("flag", ["--rerank", "--pooling", "--models-dir", "--models-max", "--tools"])
def test_flags_of_llama_server_are_refused_by_name(flag: str) -> None:
    result = CliRunner().invoke(app, ["serve", flag, "1"], prog_name="pymtp")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"pymtp: {flag} of llama.cpp is not supported here")


def test_no_flag_is_listed_twice_and_what_is_named_instead_exists() -> None:
    commands = get_command(app).commands.values()  # type: ignore[attr-defined]
    ours = {flag for command in commands for param in command.params for flag in param.opts}
    flags = llama_cpp_flags()
    assert len(set(flags)) == len(flags)
    run = {flag for param in get_command(app).commands["run"].params for flag in param.opts}  # type: ignore[attr-defined]
    assert not run & set(flags)
    named = {word.rstrip(":,") for hint in REFUSED_FLAGS.values() for word in hint.split() if word.startswith("--")}
    assert named <= ours


def completions(words: str) -> list[str]:
    environment = {
        **os.environ,
        "_PYMTP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-m", "pymtp_cli"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout.split()


def test_the_shell_completes_commands_flags_and_values() -> None:
    assert "inspect" in completions("pymtp ins")
    assert "--draft-vocab" in completions("pymtp run --draft-v")
    assert completions("pymtp run --draft m") == ["mtp"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pymtp run --accept ", "auto match rejection rejection-tokenwise"),
        ("pymtp chat --draft-pick ", "greedy sample auto"),
        ("pymtp run --draft-max ", "auto"),
        ("pymtp run -ctk q8", "q8_0"),
        ("pymtp run --mtp-context ", "auto chained target"),
        ("pymtp run -fa o", "on off"),
        ("pymtp bench -ctv f16,q8", "f16,q8_0"),
        ("pymtp bench --accept match,rej", "match,rejection match,rejection-tokenwise"),
        ("pymtp bench -fa a", "auto"),
        ("pymtp bench -o js", "json jsonl"),
    ],
)
def test_the_shell_completes_choices(words: str, expected: str) -> None:
    assert completions(words) == expected.split()


def test_a_model_in_the_prompts_place(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.touch()
    for arguments in (["hello", str(path)], ["-m", str(path), str(path)]):
        result: Any = CliRunner().invoke(app, ["run", *arguments], prog_name="pymtp")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "takes the place of the prompt" in result.stderr


def test_what_cannot_be_said_on_stderr_changes_no_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "pymtp_cli", "run", "--nonsense"]
        assert subprocess.run(command, stderr=full, timeout=60).returncode == 2
