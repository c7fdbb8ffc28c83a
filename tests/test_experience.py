"""What was learned from drafts, and how the next process goes on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymtp import Model
from pymtp.drafting.length.costs import N_RECENT, N_SETTLING, N_WARM_UP
from pymtp.drafting.length.experience import N_TOLD, Calibration, Experience, Learned, Outcomes
from pymtp.drafting.length.store import Record


def learned() -> Experience:
    known = Experience()
    for n_steps in (0, 2):
        for _ in range(N_SETTLING + N_WARM_UP + 1):
            known.costs.observe(1 + n_steps, n_steps, verify_ms=1 + n_steps, draft_ms=0.2 * n_steps, rest_ms=0.1)
    text = Learned(known.kinds[True], 2)
    for _ in range(20):
        text.observe([0.9], [text.is_right(0.9)], [False])
    text.reckon(Outcomes([0, 1, 2], [1, 1.5, 1.75], [1.1, 2.3, 3.5]))
    text.trials.plan(70, paid=False)
    text.trials.plan(70, paid=False)
    return known


def written(known: Experience) -> Any:
    return json.loads(json.dumps(known.as_dict()))


def test_it_goes_on_where_another_has_ended() -> None:
    known = Experience.recall(written(learned()))
    assert written(known) == written(learned())
    assert known.costs.table(2) == learned().costs.table(2)
    assert (known.costs.plain_ms, known.costs.verify_ms(3), known.costs.draft_ms(2)) == (1.1, 3, 0.4)
    kind = known.kinds[True]
    assert kind.is_right(0.9) == learned().kinds[True].is_right(0.9) < 0.5
    assert (kind.beginnings(2).weight, kind.beginnings(2).best(1.0)) == (1, 0)
    assert kind.trials.n_until == 48
    assert known.kinds[False].as_dict() == Experience().kinds[False].as_dict()


def test_new_measurements_soon_outvote_old_ones() -> None:
    known = Experience.recall(written(learned()))
    for _ in range(N_SETTLING + N_RECENT + 1):
        known.costs.observe(1, 0, verify_ms=5, draft_ms=0, rest_ms=0.1)
    assert known.costs.plain_ms == pytest.approx(5.1)


def test_the_first_rounds_of_a_text_that_draft_tell_others() -> None:
    known = Experience()
    for _ in range(3):
        text = Learned(known.kinds[False], 1)
        for n_tokens in [1.0] * N_TOLD + [4.0] * 100:
            text.reckon(Outcomes([0, 1], [1, n_tokens], [1, 1.5]))
        assert text.reckoning.best(1.0) == 1
    assert known.kinds[False].beginnings(1).best(1.0) == 0
    assert not known.kinds[True].beginnings(1).weight


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
def test_what_cannot_have_been_written_counts_for_nothing(where: list[Any], value: object) -> None:
    found = written(learned())
    part = found
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    known = Experience.recall(found)
    assert not known.costs.knows_plain
    assert known.as_dict() == Experience().as_dict()


def test_confidence_is_believed_as_far_as_it_was_right() -> None:
    is_right = Calibration()
    assert is_right(0.95) == pytest.approx(0.95)
    for _ in range(20):
        is_right.observe([0.95], [is_right(0.95)], [False])
    assert is_right(0.3) < is_right(0.95) < 0.2
    for _ in range(20):
        is_right.observe([0.3], [is_right(0.3)], [True])
    assert is_right(0.3) > 0.6


def test_texts_begin_with_what_those_before_have_told_and_the_first_count_most() -> None:
    shared, text = Calibration(), Calibration()
    for _ in range(50):
        text.observe([0.3], [text(0.3)], [True])
    for _ in range(8):
        shared.follow(text)
    assert 0.55 < shared(0.3) < text(0.3)
    for _ in range(300):
        shared.follow(text)
    believed = shared(0.3)
    shared.follow(Calibration(1.0, -9.0))
    assert believed - 0.05 < shared(0.3) < believed


def test_a_record_is_of_one_kind_and_setup(tmp_path: Path) -> None:
    one = Record("experience", {"model": "abc"}, tmp_path)
    assert one.read() == {}
    one.write({"n": 1})
    one.write({"n": 2})
    assert Record("experience", {"model": "abc"}, tmp_path).read()["n"] == 2
    assert Record("experience", {"model": "other"}, tmp_path).read() == {}
    one.path.write_text("[1, 2")
    assert one.read() == {}


@pytest.mark.model
def test_a_model_begins_with_what_was_learned_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path)

    def generate(**options: Any) -> Experience:
        with Model(draft="mtp", n_ctx=256, **options) as model:
            before = model._setup.experience
            assert written(before) == begins_with
            "".join(model.generate("Once upon a time", max_tokens=60, ignore_eos=True))
        model.close()
        return model._setup.experience

    begins_with = written(Experience())
    first = generate()
    assert first.costs.knows_plain
    assert first.costs.knows_drafts
    begins_with = written(first)
    generate()
    begins_with = written(Experience())
    generate(n_ubatch=64)  # another setup


@pytest.mark.model
def test_where_nothing_can_be_written_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "file")
    with Model(draft="mtp", n_ctx=256) as model:
        "".join(model.generate("Once upon a time", max_tokens=60, ignore_eos=True))
