"""Random acceptance, as the command line reads it."""

from __future__ import annotations

import pytest
from pymtp_cli.app import app
from pymtp_cli.forced import VARIABLE, forced_acceptance
from typer.testing import CliRunner

from pymtp.errors import InvalidParameter

RUN = ["run", "--ignore-eos", "-n", "24", "-c", "128", "--draft-max", "2", "hi"]


def test_flags_and_the_environment_say_how_much_is_kept() -> None:
    assert forced_acceptance(None, None, 3, None, {}) is None
    by_count = forced_acceptance(None, None, 3, None, {VARIABLE: "count=2"})
    assert by_count is not None
    assert list(by_count.rates) == [1, 1, 0]
    by_length = forced_acceptance(None, 2.8, 3, None, {VARIABLE: "count=2"})  # the flag comes first
    assert by_length is not None
    assert 1 + sum(by_length.rates) == pytest.approx(2.8)
    by_rates = forced_acceptance("0.8,0.5,0.1", None, 2, None, {})
    assert by_rates is not None
    assert list(by_rates.rates) == [0.8, 0.5]
    assert forced_acceptance("0.8", None, 0, None, {VARIABLE: "count=1"}) is None  # nothing is drafted


def test_the_dice_are_those_of_the_seed() -> None:
    rolls = [forced_acceptance("0.5", None, 1, seed, {}).random() for seed in (1, 1, 2)]  # type: ignore[union-attr]
    assert rolls[0] == rolls[1] != rolls[2]


@pytest.mark.parametrize(
    ("rates", "length", "message"),
    [
        ("0.1,0.5", None, "spec_synth_rates must be numbers between 0 and 1 that never increase"),
        ("a", None, "spec_synth_rates must be numbers"),
        (None, 4.5, "spec_synth_len must be a mean length between 1 and 4"),
        ("0.1", 2.0, "spec_synth_len must be given without --spec-synth-rates"),
    ],
)
def test_flags_that_make_no_sense_are_refused(rates: str | None, length: float | None, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        forced_acceptance(rates, length, 3, None, {})


@pytest.mark.parametrize("value", ["2", "count=9", "length=x", "rates=0.5,0.9", "other=1"])
def test_a_variable_that_makes_no_sense_is_ignored_with_a_warning(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forced_acceptance(None, None, 3, None, {VARIABLE: value}) is None
    assert f"ignoring the environment: {VARIABLE} must be count=N" in capsys.readouterr().err


def test_the_output_says_that_the_text_is_not_valid() -> None:
    result = CliRunner().invoke(app, [*RUN, "--spec-synth-rates", "1,0"])
    assert result.exit_code == 0
    assert "the text is not valid output" in result.stderr
    assert "forced (not valid output)" in result.stderr
    assert "by position:  100%, 0%" in result.stderr
    assert "by position:  100%, 100%" in CliRunner(env={VARIABLE: "count=2"}).invoke(app, RUN).stderr
