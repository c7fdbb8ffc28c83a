"""What rounds cost, measured once and kept in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fake_session import FakeSession
from pymtp import Model
from pymtp.drafting.length import cost_record
from pymtp.drafting.length.cost_record import N_MEASURED, N_PROMPT, CostRecord, PassCosts, measure
from pymtp.drafting.length.store import Record
from pymtp.sampling.params import SamplingParams

SETUP = {"model": "abc", "n_draft_max": 3}
KNOWN = PassCosts([1.0, 1.5, 2.0, 2.5], [0.25, 0.5, 0.75])
N_POSITIONS = N_PROMPT + (1 + N_MEASURED) * 4


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots in which costs were measured."""
    slots: list[int] = []

    def known(session: object, slot: int) -> PassCosts:
        slots.append(slot)
        return KNOWN

    monkeypatch.setattr(cost_record, "measure", known)
    return slots


def ensured(folder: Path, slot: int = 0, **setup: object) -> CostRecord:
    record = CostRecord(Record("costs", {**SETUP, **setup}, folder))
    record.ensure(FakeSession(), slot)  # type: ignore[arg-type]
    return record


def test_costs_are_measured_once_and_then_read(measured: list[int], tmp_path: Path) -> None:
    for slot in (2, 0, 1):
        costs = ensured(tmp_path / "costs", slot).costs
        assert [costs.verify_ms(n) for n in (1, 2, 3, 4)] == KNOWN.verify_ms
        assert [costs.draft_ms(n) for n in (1, 2, 3)] == KNOWN.draft_ms
    assert measured == [2]
    (file,) = (tmp_path / "costs").iterdir()
    assert json.loads(file.read_text())["verify_ms"] == KNOWN.verify_ms


def test_another_setup_has_costs_of_its_own(measured: list[int], tmp_path: Path) -> None:
    ensured(tmp_path, 0)
    ensured(tmp_path, 1, model="other")
    assert measured == [0, 1]


@pytest.mark.parametrize("damaged", ["", "{}", '{"verify_ms": [1], "draft_ms": []}', '{"verify_ms": 1, "draft_ms": 1}'])
def test_a_damaged_file_is_measured_again(measured: list[int], tmp_path: Path, damaged: str) -> None:
    ensured(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(damaged)
    ensured(tmp_path)
    ensured(tmp_path)
    assert measured == [0, 0]


def test_a_file_that_cannot_be_written_gives_a_warning(measured: list[int], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="costs are not recorded, a seed may give another text"):
        costs = ensured(tmp_path / "file").costs
    assert costs.verify_ms(2) == 1.5


def test_costs_stay_estimates_if_the_context_is_too_small(measured: list[int], tmp_path: Path) -> None:
    for n_ctx in (N_POSITIONS - 1, N_POSITIONS):
        record = CostRecord(Record("costs", SETUP, tmp_path))
        record.ensure(FakeSession(n_ctx=n_ctx), 0)  # type: ignore[arg-type]
    assert measured == [0]


@pytest.mark.model
def test_measuring_needs_no_more_positions_than_ensure_asks_for_and_leaves_the_slot_empty() -> None:
    with Model(draft_max=3, n_seq_max=2, n_ctx=N_POSITIONS) as model:
        known = measure(model.session, 1)
        assert (len(known.verify_ms), len(known.draft_ms)) == (4, 3)
        assert min(*known.verify_ms, *known.draft_ms) > 0
        assert known.draft_ms[2] > known.draft_ms[0]
        # both sequences can still use the whole context
        batch = model.batch()
        both = [batch.submit([5] * (N_POSITIONS - 8), max_tokens=8, ignore_eos=True) for _ in range(2)]
        for _ in batch:
            pass
        assert [len(one.tokens) for one in both] == [8, 8]


@pytest.mark.model
def test_only_the_measurement_costs_a_chat_its_cached_prompt(tmp_path: Path) -> None:
    options = {"sampling": SamplingParams(temperature=1, seed=4), "max_tokens": 8, "draft_pick": "sample"}
    with Model(draft="mtp") as model:
        model._setup = replace(model._setup, cost_record=CostRecord(Record("costs", {}, tmp_path)))
        cached = []
        for _ in range(3):
            generation = model.generate("Once upon a time there was a sea", cache_prompt=True, **options)  # type: ignore[arg-type]
            "".join(generation)
            cached.append(generation.n_cached)
    assert cached[0] == 0
    assert cached[1] == cached[2] > 0


@pytest.mark.model
def test_seeded_drawn_drafts_depend_on_the_recorded_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def generate(name: str, known: PassCosts) -> tuple[str, int]:
        monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / name)
        monkeypatch.setattr(cost_record, "measure", lambda *_: known)
        with Model(draft="mtp") as model:
            sampling = SamplingParams(temperature=1, seed=4)
            same = []
            for _ in range(2):
                generation = model.generate("Once", sampling=sampling, max_tokens=60, draft_pick="sample")
                same.append(("".join(generation), generation.stats.drafted))
            assert same[0] == same[1]
            return same[0]

    cheap = PassCosts([1.0, 1.1, 1.2, 1.3, 1.4], [0.1, 0.2, 0.3, 0.4])
    expensive = PassCosts([1.0, 3.0, 5.0, 7.0, 9.0], [1.0, 2.0, 3.0, 4.0])
    assert generate("one", cheap) == generate("one", expensive)  # measured once
    assert generate("one", cheap)[1] > generate("other", expensive)[1] == 0
