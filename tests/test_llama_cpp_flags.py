"""A command line of llama-server, and its variables, as pymtp takes them; compared with llama.cpp's own list."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer
from pymtp_cli.app import app
from pymtp_cli.llama_cpp import MEANS, from_variables, ignored, translated, variables
from pymtp_cli.parsers import drafts
from typer.testing import CliRunner

import write_llama_server as docs

KNOWN = {"--model", "-m", "--draft-max", "--draft", "--load-mode", "--ctx-size", "-n"}
N_VALUES = {"--model": 1, "-m": 1, "--draft-max": 1, "--draft": 1, "--load-mode": 1, "--ctx-size": 1, "-n": 1}

needs_arguments = pytest.mark.skipif(not docs.SOURCE.exists(), reason="llama.cpp's arg.cpp is not there: run make")


@pytest.mark.parametrize(
    ("given", "expected", "n_lines"),
    [
        ("-m a.gguf --draft_max 3 --log-verbose", "-m a.gguf --draft-max 3 --verbose", 0),
        ("--no-mmap --mlock -n -1", "--load-mode none --load-mode mmap+mlock -n -1", 0),
        ("--predict=5 --predict 6", "--n-predict=5 --n-predict 6", 0),
        ("-cb --threads-http 4 --cache-reuse=256 prompt", "prompt", 3),
        ("-m --mlock", "-m --mlock", 0),
        ("-- --mlock", "-- --mlock", 0),
        ("--color on -co off --color auto hi -- --color on", "--color --color hi -- --color on", 0),
        ("--color Hello -m --color", "--color Hello -m --color", 0),
        ("--threads-http", "", 1),
        ("--rope-scaling yarn", "--rope-scaling yarn", 0),
        ("--no-jinja --backend_sampling --draft_max 3", "--draft-max 3", 2),
        ("--draft_max=3 a_b --draft none_", "--draft-max=3 a_b --draft none_", 0),
    ],
)
def test_flags_of_llama_server_become_those_of_pymtp(given: str, expected: str, n_lines: int) -> None:
    said: list[str] = []
    assert translated(given.split(), KNOWN, N_VALUES, said.append) == expected.split()
    assert len(said) == n_lines and all("changes nothing here" in line for line in said)


@pytest.mark.parametrize(
    ("kinds", "meant"),
    [
        ("none", "none"),
        ("draft-mtp", "mtp"),
        ("ngram-simple,draft-mtp", "auto"),
        ("ngram-mod,ngram-simple", "lookup"),
        ("lookup", "lookup"),
    ],
)
def test_kinds_of_drafts_are_llama_cpps_too(kinds: str, meant: str) -> None:
    assert drafts(kinds) == meant


@pytest.mark.parametrize("kinds", ["draft-eagle3", "draft-mtp,draft-eagle3", "ngram-"])
def test_other_kinds_of_drafts_are_refused(kinds: str) -> None:
    with pytest.raises(typer.BadParameter, match="one of auto, mtp, lookup, none, not"):
        drafts(kinds)


def test_variables_that_no_flag_reads_become_flags() -> None:
    said: list[str] = []
    environment = {
        "LLAMA_ARG_CTX_SIZE": "512",
        "LLAMA_ARG_MMAP": "0",
        "LLAMA_ARG_MLOCK": "0",
        "LLAMA_ARG_CONT_BATCHING": "1",
        "LLAMA_ARG_POOLING": "mean",
        "LLAMA_ARG_DRAFT": "none",
        "LLAMA_ARG_NO_ENDPOINT_SLOTS": "1",
        "PATH": "/bin",
    }
    assert from_variables(environment, {"LLAMA_ARG_CTX_SIZE"}, {"--no-slots", "--draft"}, said.append) == [
        "--no-mmap",
        "--no-slots",
    ]
    assert said == [
        "LLAMA_ARG_POOLING is not read: pymtp has no --pooling",
        "LLAMA_ARG_DRAFT is not read: use --draft",
    ]


@pytest.mark.parametrize("word", ["enabled", "disabled"])
def test_variables_of_switches_take_llama_cpps_words(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_ARG_KV_OFFLOAD", "LLAMA_ARG_IGNORE_EOS"):
        monkeypatch.setenv(name, word)
    result = CliRunner().invoke(app, ["run", "hi", "-m", "missing.gguf"])
    assert "missing.gguf: no such file" in result.stderr


def test_what_a_variable_says_wrong_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_TYPE", "eagle")
    said = "Invalid value for --spec-type/--draft (LLAMA_ARG_SPEC_TYPE): must be one of auto, mtp, lookup, none"
    assert said in CliRunner().invoke(app, ["run", "hi"]).stderr
    monkeypatch.delenv("LLAMA_ARG_SPEC_TYPE")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "many")
    result = CliRunner().invoke(app, ["run", "hi"])
    assert result.exit_code == 2
    assert "Invalid value for -c/--ctx-size (LLAMA_ARG_CTX_SIZE): must be an integer" in result.stderr
    assert "LLAMA_ARG" not in CliRunner().invoke(app, ["run", "hi", "-c", "many"]).stderr


@needs_arguments
def test_what_is_ignored_takes_as_many_values_as_llama_servers() -> None:
    theirs = list(docs.theirs())
    assert len(theirs) > 250
    for each in theirs:
        nothing = [found for name in each.names if (found := ignored(name))]
        assert {n for _, n in nothing} <= {each.n_values}, each
        if docs.row(each).startswith("ignored"):
            assert len(nothing) == len(each.names), each
        assert not docs.row(each).startswith("refused") or docs.row(each).partition("| ")[2], f"{each}: why?"
    names = {name for each in theirs for name in each.names}
    stale = {key.partition("=")[0] for key in MEANS} - names
    assert stale <= {"--mmap", "--no-mmap", "--mlock", "-dio", "--direct-io"}, "--load-mode took their place there"


@needs_arguments
def test_each_flag_reads_the_variable_of_llama_servers() -> None:
    ours = docs.ours()
    shared = [(each, name) for each in docs.theirs() for name in each.names if name in ours and each.variable]
    assert len({each.variable for each, _ in shared}) > 60
    differing = {each.variable for each, name in shared if ours[name] and each.variable not in ours[name]}
    assert differing <= {"LLAMA_ARG_DRAFT_MAX"}  # --draft is another flag here


@needs_arguments
def test_the_page_is_that_of_the_flags() -> None:
    assert docs.FILE.read_text("utf-8") == docs.page(), "run `make docs`"


def test_names_of_variables() -> None:
    assert variables(["-c", "--ctx-size"]) == ["LLAMA_ARG_CTX_SIZE"]
    assert variables(["--slots", "--no-slots"]) == ["LLAMA_ARG_ENDPOINT_SLOTS"]
    assert variables(["--kv-offload", "--no-kv-offload"]) == ["LLAMA_ARG_KV_OFFLOAD"]


@pytest.mark.model
def test_a_command_line_and_variables_of_llama_server_run() -> None:
    environment = os.environ | {"LLAMA_ARG_N_PREDICT": "5", "LLAMA_ARG_SPEC_TYPE": "none"}
    command = [sys.executable, "-m", "pymtp_cli", "run", "-cb", "--no-warmup", "--no-mmap", "--json", "Hi"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert '"generated_tokens": 5' in done.stdout or '"generated_tokens":5' in done.stdout
    assert '"drafted": 0' in done.stdout or '"drafted":0' in done.stdout
    assert done.stderr.count("changes nothing here") == 2
