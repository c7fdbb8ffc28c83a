"""Progress while a model is loaded: it is reported, a terminal shows it, and Ctrl-C ends loading."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from contexts import NONE, contexts
from log_level import logged
from pymtp import Model, ModelError
from terminal import Terminal

pytestmark = pytest.mark.model


def test_progress_grows_to_1() -> None:
    shares: list[float] = []
    with Model(on_load=shares.append):
        assert shares == sorted(shares)
        assert 0 <= shares[0] < 1 == shares[-1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("enough")])
def test_an_exception_of_the_callback_ends_loading(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(share: float) -> None:
        raise error

    with logged("debug"), pytest.raises(type(error)) as caught:
        Model(on_load=refuse)
    assert caught.value is error
    assert contexts(capfd) == NONE


def test_a_terminal_shows_progress_and_then_clears_it() -> None:
    code = (
        "from pymtp_cli.progress import loading\n"
        "with loading('some/[b]m.gguf') as show: show(0.25); input(); show(1.0)\n"
        "print('done')"
    )
    with Terminal([sys.executable, "-c", code]) as terminal:
        terminal.wait_for("25%")
        terminal.press("\r")
        assert terminal.wait() == 0
    before, _, after = terminal.seen.partition("25%")
    assert "loading [b]m.gguf" in before
    assert "\x1b[2K" in after  # the line is wiped
    assert after.rstrip().endswith("done")


def test_there_is_no_progress_without_a_terminal() -> None:
    from pymtp_cli.progress import loading

    with loading(None) as show:
        assert show is None


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelError, match=f"^{re.escape(str(tmp_path))}/none.gguf"):
        Model("~/none.gguf")
