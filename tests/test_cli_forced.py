"""Random acceptance, as the command line reads it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pymtp_cli.app import app
from pymtp_cli.asked import _forced
from typer.testing import CliRunner

from pymtp.acceptance.forced import Forced
from pymtp.errors import InvalidParameter

RUN = ["run", "--ignore-eos", "-n", "24", "-c", "128", "--draft-max", "2", "hi"]


def forced(rates: list[float] | None, length: float | None, n_draft: int = 3, seed: int | None = None) -> Forced | None:
    flags = {"rates": rates, "length": length, "draft": "auto", "draft_max": n_draft}
    return _forced(SimpleNamespace(**flags, seed=seed))


def test_flags_say_how_much_is_kept() -> None:
    assert forced(None, None) is None
    by_length, by_rates = forced(None, 2.8), forced([0.8, 0.5, 0.1], None, n_draft=2)
    assert by_length and 1 + sum(by_length.rates) == pytest.approx(2.8)
    assert by_rates and list(by_rates.rates) == [0.8, 0.5]
    assert forced([0.8], None, n_draft=0) is None  # nothing is drafted


def test_the_dice_are_those_of_the_seed() -> None:
    rolls = [forced([0.5], None, seed=seed).random() for seed in (1, 1, 2)]  # type: ignore[union-attr]
    assert rolls[0] == rolls[1] != rolls[2]


@pytest.mark.parametrize(
    ("rates", "length", "message"),
    [
        ([0.1, 0.5], None, "rates must be between 0 and 1 and never increase"),
        (None, 4.5, "length must be between 1 and 4"),
        ([0.1], 2.0, "length must be given without --spec-synth-rates"),
    ],
)
def test_flags_that_make_no_sense_are_refused(rates: list[float] | None, length: float | None, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        forced(rates, length)


def test_the_output_says_that_the_text_is_not_valid() -> None:
    result = CliRunner().invoke(app, [*RUN, "--spec-synth-rates", "1,0"])
    assert result.exit_code == 0
    assert "the text is not valid output" in result.stderr
    assert "forced (not valid output)" in result.stderr
    assert "by position:  100%, 0%" in result.stderr
    by_variable = CliRunner(env={"LLAMA_ARG_SPEC_SYNTH_RATES": "1,1"}).invoke(app, RUN)
    assert "by position:  100%, 100%" in by_variable.stderr
    wrong = CliRunner().invoke(app, [*RUN, "--spec-synth-rates", "a"])
    assert wrong.exit_code == 2 and "--spec-synth-rates: must be numbers between 0 and 1" in wrong.stderr
