"""Graphs that a session keeps: they are bounded in number and share memory; prompts leave those of rounds alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from machine import needs_no_gpu
from pymtp import Model
from pymtp.engine.session import Chunk, Session
from random_gguf import write_glm4moe, write_qwen4exp_picking, write_step35

pytestmark = pytest.mark.model

N_SEQ = 8
PROMPT = [5] * 20


@pytest.fixture
def session() -> Iterator[Session]:
    """Eight sequences after a prompt, which may verify up to 136 rows in a round."""
    with Model(n_ctx=256, n_seq_max=N_SEQ, n_threads=2, draft_max=16) as model:
        session = model.session
        for slot in range(N_SEQ):
            session.decode([Chunk(PROMPT, 0, slot, feed=True)])
        yield session


def verify(session: Session, lengths: Sequence[int], more: Sequence[Chunk] = ()) -> int:
    """A pass with so many rows of each sequence, which go away again. Returns how many graphs it built."""
    before = session.counters.n_builds
    rounds = [Chunk([5] * n, len(PROMPT), slot, "all", feed=True) for slot, n in enumerate(lengths)]
    session.decode([*rounds, *more])
    for chunk in (*rounds, *more):
        session.truncate(len(PROMPT), sequence=chunk.sequence)
    return session.counters.n_builds - before


def spread(n_rows: int) -> list[int]:
    return [n_rows // N_SEQ + (i < n_rows % N_SEQ) for i in range(N_SEQ)]


def test_kept_graphs_take_no_memory_of_their_own(session: Session) -> None:
    first = session.compute_bytes
    shapes = (8, 16, 32, 64, 128)  # 8 rows, and what a GPU pads more to
    assert sum(verify(session, spread(n_rows)) for n_rows in shapes) == len(shapes)
    assert session.compute_bytes == first


@needs_no_gpu
@pytest.mark.slow
def test_graphs_are_bounded_in_number(session: Session) -> None:
    verify(session, [1] * N_SEQ)
    first = session.compute_bytes
    assert verify(session, [1] * N_SEQ) == 0
    shapes = range(N_SEQ + 1, 136)
    assert sum(verify(session, spread(n_rows)) for n_rows in shapes) == len(shapes)
    assert session.compute_bytes == first
    # the latest are there still, the oldest are not
    assert sum(verify(session, spread(n_rows)) for n_rows in shapes[-6:]) == 0
    assert verify(session, [1] * N_SEQ) == 1


def test_a_graph_serves_its_rows_whatever_sequences_they_are_of(session: Session) -> None:
    assert [verify(session, lengths) for lengths in ([4], [1, 1, 1, 1], [2, 2], [3, 1])] == [1, 0, 0, 0]


def test_a_graph_of_many_cells_lasts_for_many_rows(tmp_path: Path) -> None:
    with Model(write_glm4moe(tmp_path / "tiny.gguf"), n_ctx=6144, n_threads=1, draft_max=1) as model:
        for position in range(0, 4100, 1025):
            model.session.decode([Chunk([5] * 1025, position)])
        before = model.session.counters.n_builds
        for position in range(4100, 4700):
            model.session.decode([Chunk([5], position)])
        assert model.session.counters.n_builds == before


def test_an_index_sees_as_many_cells_as_attention_does(tmp_path: Path) -> None:
    """llama.cpp ends the process where they differ."""
    with Model(write_qwen4exp_picking(tmp_path / "tiny.gguf"), n_ctx=6144, n_threads=1, draft_max=1) as model:
        for position in range(0, 3075, 1025):
            model.session.decode([Chunk([5] * 1025, position)])


def test_graphs_of_many_sequences_last_for_as_many_rounds(tmp_path: Path) -> None:
    n = 16
    with Model(write_glm4moe(tmp_path / "tiny.gguf"), n_ctx=128, n_threads=1, draft_max=1, n_seq_max=n) as model:
        model.session.decode([Chunk([5], 0, slot) for slot in range(n)])
        before = model.session.counters.n_builds
        for position in range(1, 64):
            model.session.decode([Chunk([5], position, slot) for slot in range(n)])
        assert model.session.counters.n_builds == before


def test_parts_of_prompts_leave_the_graphs_of_rounds_alone(session: Session) -> None:
    lengths = [1] * (N_SEQ - 1)
    verify(session, lengths)
    verify(session, lengths, [Chunk([5] * 9, len(PROMPT), N_SEQ - 1, feed=True)])
    before = session.compute_bytes
    for n_rows in range(10, 110, 10):
        assert verify(session, lengths, [Chunk([5] * n_rows, len(PROMPT), N_SEQ - 1, feed=True)]) <= 1  # GPUs pad
    assert session.compute_bytes == before
    assert verify(session, lengths) == 0


def test_a_prompt_runs_all_its_heads_after_one_of_as_many_rows_that_fewer_saw(tmp_path: Path) -> None:
    path = write_step35(tmp_path / "tiny.gguf", n_heads=3)

    def probs_of_drafts(n_heads_before: int) -> list[list[float]]:
        with Model(path, n_ctx=256, n_seq_max=2, n_threads=1, draft_max=3) as model:
            model.session.decode([Chunk(PROMPT, 0, 0, feed=True, n_heads=n_heads_before)])
            model.session.decode([Chunk(PROMPT, 0, 1, feed=True, n_heads=3)])
            return model.session.draft_tokens([Chunk([7], len(PROMPT), 1)], 3, probs=True)[1]

    assert probs_of_drafts(1) == probs_of_drafts(3)


def test_requests_whose_slots_are_in_another_order_share_passes(tmp_path: Path) -> None:
    """A cache with a part for each sequence computes those together whose numbers follow on each other."""
    path = write_glm4moe(tmp_path / "tiny.gguf")
    with Model(path, n_ctx=64, n_threads=1, n_seq_max=4, draft="none", kv_unified=False) as model:

        def n_passes(*lengths: int) -> int:
            before = model.session.counters.n_trunk_passes
            options = {"temperature": 0, "ignore_eos": True}
            for each in [model.generate([5, 6], max_tokens=n, **options) for n in lengths]:  # type: ignore[arg-type]
                list(each)
            return model.session.counters.n_trunk_passes - before

        n_passes(8, 2, 6, 4)  # leaves the slots free in the order 1, 3, 2, 0
        assert n_passes(20, 20, 20, 20) <= 24
