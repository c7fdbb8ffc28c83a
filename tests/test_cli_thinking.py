"""Chat templates and thinking at the command line: the embedded model, also with a template that opens a thinking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from pymtp_cli.app import app
from typer.testing import CliRunner

from machine import HAS_GPU
from pymtp import ChatParams, Model
from test_answer_rules import THINKING

pytestmark = pytest.mark.model

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `pymtp run` with the template."""
    template = tmp_path / "thinks.jinja"
    template.write_text(THINKING)

    def run(*arguments: str) -> Result:
        flags = ["--chat-template-file", str(template), "--temp", "0", "-n", "40"]
        return CliRunner().invoke(app, ["run", *flags, *arguments, "What is 12 + 30?"], prog_name="pymtp")

    return run


def test_the_embedded_models_thinking_is_apart_and_can_be_turned_off() -> None:
    sums = "A farmer picks 12 apples a day and sells each for 2 dollars. How much does he earn in 5 days?"
    code = "Write a Python function that checks whether a number is prime."

    def report(prompt: str, *flags: str) -> dict[str, str | None]:
        result = CliRunner().invoke(app, ["run", "--temp", "0", "--json", *flags, prompt], prog_name="pymtp")
        return json.loads(result.stdout)  # type: ignore[no-any-return]

    thought, off = report(sums), report(sums, "--reasoning", "off")
    with Model() as model:
        for found, params in ((thought, ChatParams()), (off, ChatParams(reasoning="off"))):
            answer = model.chat([{"role": "user", "content": sums}], chat_params=params, temperature=0)
            list(answer)
            same = (found["text"], found["reasoning"] or "") == (answer.message.content, answer.message.reasoning)
            assert same or HAS_GPU  # near ties part there: docs/limits.md
    assert thought["reasoning"] and "think>" not in f"{thought['text']}{thought['reasoning']}"
    assert off["reasoning"] is None and off["text"]
    assert report(code, "--reasoning", "off")["text"] == report(code)["text"]


def test_thinking_goes_to_stderr_and_the_answer_to_stdout(run: Run) -> None:
    result = run("--reasoning-budget", "6")
    assert result.exit_code == 0
    assert result.stdout.strip() and "think>" not in result.stdout + result.stderr
    thought = json.loads(run("--reasoning-budget", "6", "--json").stdout)["reasoning"].strip()
    assert thought and result.stderr.lstrip().startswith(thought)


def test_quiet_hides_the_thinking(run: Run) -> None:
    assert run("--reasoning-budget", "6", "-q").stderr == ""


def test_json_has_the_thinking_beside_the_text(run: Run) -> None:
    report = json.loads(run("--reasoning-budget", "6", "--json").stdout)
    assert report["reasoning"].strip() and report["text"].strip() and "think>" not in report["text"]
    assert report["text"].strip() == run("--reasoning-budget", "6", "-q").stdout.strip()


def test_reasoning_off_and_the_templates_variable_are_the_same(run: Run) -> None:
    off = json.loads(run("--reasoning", "off", "--json").stdout)
    variable = json.loads(run("--chat-template-kwargs", '{"enable_thinking": false}', "--json").stdout)
    assert off["reasoning"] is variable["reasoning"] is None
    assert off["tokens"] == variable["tokens"]


def test_drafts_do_not_change_what_a_budget_leaves(run: Run) -> None:
    plain, drafted = (json.loads(run("--reasoning-budget", "9", "--json", "--draft-max", k).stdout) for k in "03")
    assert plain["tokens"] == drafted["tokens"]
    assert drafted["accepted"] > 0


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--chat-template-kwargs", "5"], "--chat-template-kwargs: must be a JSON object"),
        (["--chat-template-kwargs", "\udcff"], "--chat-template-kwargs: must be valid UTF-8"),
        (["--chat-template", "\udcff"], "--chat-template: must be valid UTF-8"),
        (["--chat-template-kwargs", "{"], "--chat-template-kwargs: must be a JSON object"),
        (["--chat-template-file", "/dev/null"], "--chat-template: must be a Jinja template, or the name"),
        (["--chat-template", "{{ a }}"], "--chat-template: must be given as a text or in a file, not both"),
        (["--reasoning", "maybe"], "must be one of on, off, auto"),
        (["--reasoning-budget", "-2"], "must be an integer between -1 and"),
        (["--raw"], "--raw applies no chat template"),
    ],
)
def test_bad_values_are_one_line(run: Run, flags: list[str], error: str) -> None:
    result = run(*flags)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert error in result.stderr


def test_a_template_that_is_not_jinja_is_one_line() -> None:
    result = CliRunner().invoke(app, ["run", "--chat-template", "{% for %}", "hi"], prog_name="pymtp")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "--chat-template: must be Jinja, or the name of a template (Unexpected token: %}" in result.stderr
