"""`pymtp serve`: what its flags make of a server."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymtp_cli.serve
import pytest
from pymtp_cli.app import app
from pymtp_cli.serve import _context
from typer.testing import CliRunner

from pymtp import ContextParams, InvalidParameter
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model


def settings_of(monkeypatch: pytest.MonkeyPatch, *flags: str) -> ServerSettings:
    """The settings of the server that `pymtp serve` would run."""
    return served(monkeypatch, *flags)[1]


def served(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[Any, ServerSettings]:
    """What loads the model of that server, and its settings."""
    found: list[tuple[Any, ServerSettings]] = []

    def serve(load: Any, settings: ServerSettings, *others: Any) -> None:
        found.append((load, settings))

    monkeypatch.setattr(pymtp_cli.serve, "run_server", serve)
    monkeypatch.setattr(pymtp_cli.serve.logs, "set_up", lambda **_: None)
    with pytest.raises(SystemExit, match="0"):
        app(["serve", *flags], prog_name="pymtp")
    return found[0]


def test_without_flags_a_server_has_the_settings_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings_of(monkeypatch)
    assert replace(given, params=ServerSettings().params) == ServerSettings()


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("two\n\n three \n")
    given = settings_of(
        monkeypatch,
        *("--api-key", "one", "--api-key-file", str(keys), "--cors-origins", "localhost", "--timeout", "5"),
        *("--deadline", "9", "--api-prefix", "llm/", "--keep", "-1", "--sse-ping-interval", "-1"),
        *("--cors-methods", "GET", "--cors-headers", "x-a", "--no-cors-credentials"),
        *("--cache-ram", "3", "--queue-max", "7", "--no-ui", "--no-slots", "--metrics", "--alias", "a,b"),
    )
    assert given.api_keys == ("one", "two", "three")
    assert (given.cors_origins, given.timeout_s, given.cache_bytes) == ("localhost", 5, 3 << 20)
    assert (given.deadline_s, given.api_prefix, given.n_keep, given.ping_s) == (9, "/llm", -1, -1)
    assert (given.cors_methods, given.cors_headers, given.cors_credentials) == ("GET", "x-a", False)
    assert (given.n_queue_max, given.has_page, given.has_slots, given.has_metrics) == (7, False, False, True)
    assert given.aliases == ("a", "b")
    assert settings_of(monkeypatch, "--api-prefix", "/").api_prefix == ""


def test_a_server_has_the_flags_for_templates_and_thinking_that_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    load, given = served(
        monkeypatch,
        *("--chat-template", "chatml", "--chat-template-kwargs", '{"a": 1}', "--reasoning", "off"),
        *("--reasoning-budget", "7", "--reasoning-format", "none"),
    )
    with load() as model:
        assert (model.params.model.chat_template, given.template_kwargs) == ("chatml", {"a": 1})
    assert (given.reasoning, given.reasoning_budget, given.reasoning_format) == ("off", 7, "none")


def test_acceptance_can_be_forced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    forced = settings_of(monkeypatch, "--spec-synth-rates", "0.5,0.25", "--draft-max", "2").params.forced
    assert forced and list(forced.rates) == [0.5, 0.25]
    assert "not valid output" in capsys.readouterr().err
    assert settings_of(monkeypatch).params.forced is None


def test_a_server_that_others_can_reach_without_a_key_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, warns in (
        (("--host", "0.0.0.0"), True),
        (("--host", "127.0.0.1,::"), True),
        (("--host", "0.0.0.0", "--api-key", "a"), False),
        ((), False),
    ):
        settings_of(monkeypatch, *flags)
        assert ("is open to others" in capsys.readouterr().err) == warns, flags


@pytest.mark.parametrize("name", ["missing", "x" * 5000])
def test_a_folder_of_slots_that_does_not_exist_is_refused(name: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--slot-save-path", name], prog_name="pymtp")
    assert result.exit_code in (1, 2) and "a folder that exists" in result.stderr


def test_minus_1_is_what_llama_server_takes_it_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, "-np", "-1").cache_bytes == ServerSettings().cache_bytes
    assert settings_of(monkeypatch, "-cram", "-1").cache_bytes > 1 << 50  # more than any machine has


def test_a_key_that_is_empty_does_not_leave_the_server_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymtp_cli.serve, "run_server", lambda *_: None)
    result = CliRunner().invoke(app, ["serve", "--api-key", ""], prog_name="pymtp")
    assert result.exit_code == 1 and "--api-key has no key" in result.stderr


@pytest.mark.parametrize("other", [["-m", "b.gguf"], ["-hf", "user/repo"]])
def test_a_model_that_is_named_twice_is_not_passed_over(other: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", "a.gguf", *other], prog_name="pymtp")
    assert result.exit_code == 2 and "not both" in result.stderr


def test_a_port_that_is_in_use_is_named_by_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port)], prog_name="pymtp")
    assert result.exit_code == 2
    assert f"--port: must be one that is free: 127.0.0.1:{port} is in use" in result.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((None, None, None), (None, 131072, 0)),
        ((None, 2, None), (None, 65536, None)),
        ((None, 64, None), (None, 4096, None)),
        ((None, 2, True), (None, 131072, 0)),
        ((0, None, None), (131072, 131072, 0)),
        ((0, 2, None), (65536, 65536, None)),
        ((8192, 2, None), (4096, 65536, None)),
    ],
)
def test_slots_share_the_trained_length_or_have_equal_parts(flags: Any, expected: Any) -> None:
    n_ctx, n_slots, shared = flags
    context = _context(ContextParams(n_ctx=n_ctx), n_slots, shared, 131072)
    assert (context.n_ctx, context.n_ctx_max, context.n_cells) == expected


def test_invariant_slots_have_equal_parts() -> None:
    params = ContextParams(n_ctx=8192, invariant=True)
    context = _context(params, None, None, 131072)
    assert (context.n_ctx, context.n_cells, context.has_streams) == (2048, None, True)
    with pytest.raises(InvalidParameter, match="kv_unified must be off with --invariant"):
        _context(params, None, True, 131072)
