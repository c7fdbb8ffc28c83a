"""What was learned from drafts, and how the next process starts from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pymtp import Model
from pymtp.drafting.length.costs import N_RECENT, N_SETTLING, N_WARM_UP
from pymtp.drafting.length.experience import N_SHARED_ROUNDS, Calibration, Experience, Outcomes, SequenceStats
from pymtp.drafting.length.store import Record


def learned() -> Experience:
    known = Experience()
    for n_steps in (0, 2):
        for _ in range(N_SETTLING + N_WARM_UP + 1):
            known.costs.observe(1 + n_steps, n_steps, verify_ms=1 + n_steps, draft_ms=0.2 * n_steps, rest_ms=0.1)
    sequence = SequenceStats(known.kinds[True], 2)
    for _ in range(20):
        sequence.observe([0.9], [sequence.calibration(0.9)], [False])
    sequence.add(Outcomes([0, 1, 2], [1, 1.5, 1.75], [1.1, 2.3, 3.5]))
    sequence.probe_plan.plan(70, paid=False)
    sequence.probe_plan.plan(70, paid=False)
    return known


def saved(known: Experience) -> Any:
    return json.loads(json.dumps(known.as_dict()))


def test_it_starts_where_the_last_process_ended() -> None:
    known = Experience.from_dict(saved(learned()))
    assert saved(known) == saved(learned())
    assert known.costs.table(2) == learned().costs.table(2)
    assert (known.costs.plain_ms, known.costs.verify_ms(3), known.costs.draft_ms(2)) == (1.1, 3, 0.4)
    kind = known.kinds[True]
    assert kind.calibration(0.9) == learned().kinds[True].calibration(0.9) < 0.5
    assert (kind.first_rounds(2).weight, kind.first_rounds(2).best(1.0)) == (1, 0)
    assert kind.probe_plan.n_until == 48
    assert known.kinds[False].as_dict() == Experience().kinds[False].as_dict()


def test_new_measurements_soon_outvote_old_ones() -> None:
    known = Experience.from_dict(saved(learned()))
    for _ in range(N_SETTLING + N_RECENT + 1):
        known.costs.observe(1, 0, verify_ms=5, draft_ms=0, rest_ms=0.1)
    assert known.costs.plain_ms == pytest.approx(5.1)


def test_later_sequences_start_from_the_first_drafting_rounds_of_earlier_ones() -> None:
    known = Experience()
    for _ in range(3):
        sequence = SequenceStats(known.kinds[False], 1)
        for n_tokens in [1.0] * N_SHARED_ROUNDS + [4.0] * 100:
            sequence.add(Outcomes([0, 1], [1, n_tokens], [1, 1.5]))
        assert sequence.means.best(1.0) == 1
    assert known.kinds[False].first_rounds(1).best(1.0) == 0
    assert not known.kinds[True].first_rounds(1).weight


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["costs"], []),
        (["costs", "plain_ms"], {"1": "fast"}),
        (["costs", "plain_ms"], {"1": -1}),
        (["costs", "plain_ms"], {"1": 0}),
        (["costs", "verify"], None),
        (["costs", "draft"], {"one": 1}),
        (["n_trials"], float("nan")),
        (["n_trials"], -1),
        (["n_since_measured"], None),
        (["kinds"], []),
        (["kinds", 1], None),
        (["kinds", 1, "is_right"], {"slope": 1}),
        (["kinds", 1, "is_right", "slope"], float("inf")),
        (["kinds", 1, "is_right", "n_followed"], -1),
        (["kinds", 1, "trials", "n_until"], 10**400),
        (["kinds", 1, "trials", "n_until"], None),
        (["kinds", 1, "trials", "gap"], float("nan")),
        (["kinds", 1, "beginnings"], {"2": {}}),
        (["kinds", 1, "beginnings", "2", "ms"], [1, 2]),
        (["kinds", 1, "beginnings", "2", "weight"], float("nan")),
    ],
    ids=str,
)
def test_a_damaged_file_is_ignored(where: list[Any], value: object) -> None:
    values = saved(learned())
    part = values
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    known = Experience.from_dict(values)
    assert not known.costs.knows_plain
    assert known.as_dict() == Experience().as_dict()


def test_calibration_follows_how_often_drafts_of_a_confidence_were_right() -> None:
    calibration = Calibration()
    assert calibration(0.95) == pytest.approx(0.95)
    for _ in range(20):
        calibration.observe([0.95], [calibration(0.95)], [False])
    assert calibration(0.3) < calibration(0.95) < 0.2
    for _ in range(20):
        calibration.observe([0.3], [calibration(0.3)], [True])
    assert calibration(0.3) > 0.6


def test_the_shared_calibration_follows_sequences_and_the_first_ones_most() -> None:
    shared, sequence = Calibration(), Calibration()
    for _ in range(50):
        sequence.observe([0.3], [sequence(0.3)], [True])
    for _ in range(8):
        shared.follow(sequence)
    assert 0.55 < shared(0.3) < sequence(0.3)
    for _ in range(300):
        shared.follow(sequence)
    before = shared(0.3)
    shared.follow(Calibration(1.0, -9.0))
    assert before - 0.05 < shared(0.3) < before


def test_a_record_is_for_one_setup(tmp_path: Path) -> None:
    one = Record("experience", {"model": "abc"}, tmp_path)
    assert one.read() == {}
    one.write({"n": 1})
    one.write({"n": 2})
    assert Record("experience", {"model": "abc"}, tmp_path).read()["n"] == 2
    assert Record("experience", {"model": "other"}, tmp_path).read() == {}
    one.path.write_text("[1, 2")
    assert one.read() == {}


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_regular_file_is_never_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    record = Record("experience", {"model": "abc"}, tmp_path)
    make(record.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"opened {path}"))
        assert record.read() == {}


@pytest.mark.model
def test_a_model_starts_from_what_an_earlier_one_learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path)

    def generate(**options: Any) -> Experience:
        with Model(draft="mtp", n_ctx=256, **options) as model:
            before = model._setup.experience
            assert saved(before) == begins_with
            "".join(model.generate("Once upon a time", max_tokens=60, ignore_eos=True))
        model.close()
        return model._setup.experience

    begins_with = saved(Experience())
    first = generate()
    assert first.costs.knows_plain
    assert first.costs.knows_drafts
    begins_with = saved(first)
    generate()
    begins_with = saved(Experience())
    generate(n_ubatch=64)  # another setup


@pytest.mark.model
def test_a_cache_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "file")
    with Model(draft="mtp", n_ctx=256) as model:
        "".join(model.generate("Once upon a time", max_tokens=60, ignore_eos=True))
