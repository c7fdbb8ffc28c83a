"""Sequences that share passes at different lengths: each computes what it computes alone, whatever rows are added."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import llama_cpp
import numpy as np
import pytest

from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import ContextFull, PymtpError
from random_gguf import (
    N_VOCAB,
    write_bailingmoe3,
    write_falcon_h1,
    write_glm4moe,
    write_glm5_next,
    write_glm_dsa,
    write_granite_hybrid,
    write_lfm2,
    write_mimo2,
    write_nemotron_h_moe,
    write_qwen3next,
    write_qwen4exp_picking,
    write_qwen35,
    write_step35,
)

PARAMS = ContextParams(n_ctx=256, n_ubatch=64, n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
K = 4
N_SEQ = 5

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "plain": write_glm4moe,
    "sliding window": write_mimo2,
    "sliding window, chained heads": lambda path: write_mimo2(path, n_heads=3),
    "sliding window, 3 heads": write_step35,
    "own cache": write_glm_dsa,
    "hybrid, own cache": write_glm5_next,
    "hybrid": write_qwen35,
    "hybrid, Mamba-2": write_nemotron_h_moe,
    "hybrid, linear attention": write_bailingmoe3,
    "hybrid, Qwen3-Next": write_qwen3next,
    "hybrid, an index": write_qwen4exp_picking,
    "hybrid, attention beside Mamba-2, no heads": write_falcon_h1,
    "hybrid, Mamba-2, no heads": write_granite_hybrid,
    "hybrid, short convolutions, no heads": write_lfm2,
}


@contextmanager
def open_model(path: Path) -> Iterator[object]:
    """On the CPU."""
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    no_devices = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.addressof(no_devices)
    loaded = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield loaded
    llama_cpp.llama_model_free(loaded)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with open_model(FAMILIES[request.param](tmp_path_factory.mktemp("models") / "tiny.gguf")) as loaded:
        yield loaded


def has_heads(model: object) -> bool:
    try:
        Session(model, PARAMS, n_draft_max=1).close()
    except PymtpError:
        return False
    return True


class Together:
    """Sequences of one session, each beside a session of its own that does the same alone."""

    def __init__(self, model: object, rng: random.Random, params: ContextParams = PARAMS) -> None:
        self.rng = rng
        self.has_heads = has_heads(model)
        self.session = Session(
            model, replace(params, n_seq_max=N_SEQ), n_draft_max=K, padding="always", uses_heads=self.has_heads
        )
        alone = replace(params, kv_unified=True)
        self.alone = [
            Session(model, alone, n_draft_max=K, padding="never", uses_heads=self.has_heads) for _ in range(N_SEQ)
        ]
        self.ends = [0] * N_SEQ
        self.texts: list[list[int]] = [[] for _ in range(N_SEQ)]

    def close(self) -> None:
        for session in (self.session, *self.alone):
            session.close()

    def begin(self, slot: int, n: int) -> None:
        tokens = self._tokens(n)
        self.session.truncate(0, sequence=slot)
        self.session.decode([Chunk(tokens, 0, slot, feed=self.has_heads)])
        self.alone[slot].truncate(0)
        self.alone[slot].decode([Chunk(tokens, 0, feed=self.has_heads)])
        self._same(self.session.logits, self.alone[slot].logits)
        self.ends[slot] = n
        self.texts[slot] = tokens

    def draft(self, slots: list[int], n_steps: int) -> None:
        """Greedy drafts, and then the same by steps with tokens of any kind; none of it is verified."""
        if not self.has_heads:
            return
        tokens = {slot: self._tokens(n_steps) for slot in slots}
        chunks = [Chunk(tokens[slot][:1], self.ends[slot], slot) for slot in slots]
        self.session.draft_tokens(chunks, n_steps)
        for step in range(n_steps):
            self.session.draft(
                step, n_steps, [Chunk([tokens[slot][step]], self.ends[slot] + step, slot) for slot in slots]
            )
            logits = self.session.draft_logits.copy()
            for row, slot in zip(logits, slots, strict=True):
                alone = self.alone[slot]
                alone.draft(step, n_steps, [Chunk([tokens[slot][step]], self.ends[slot] + step)])
                self._same(row, alone.draft_logits[0])

    def verify(self, lengths: dict[int, int], *, feed: bool = True, prompts: dict[int, int] | None = None) -> None:
        """One pass over this many drafts of each slot; keeps a random number of them.

        `prompts`: beside them, this many tokens of the prompts of other slots.
        """
        feed = feed and self.has_heads
        chunks = {
            slot: Chunk(self._tokens(1 + n), self.ends[slot], slot, "all", feed=feed) for slot, n in lengths.items()
        }
        prompt_chunks = {
            slot: Chunk(self._tokens(n), self.ends[slot], slot, "none", feed=feed)
            for slot, n in (prompts or {}).items()
        }
        self.session.decode([chunk for _, chunk in sorted({**chunks, **prompt_chunks}.items())])
        for slot, chunk in prompt_chunks.items():
            self.alone[slot].decode([chunk._replace(sequence=0)])
            self.ends[slot] += len(chunk.tokens)
            self.texts[slot] += chunk.tokens
        logits = self.session.logits.copy()
        assert len(logits) == sum(len(chunk.tokens) for chunk in chunks.values())
        begin = 0
        for slot, chunk in chunks.items():
            alone = self.alone[slot]
            alone.decode([chunk._replace(sequence=0)])
            self._same(logits[begin : begin + len(chunk.tokens)], alone.logits)
            begin += len(chunk.tokens)
        for slot, n in lengths.items():
            kept = self.rng.randint(0, n)
            self.ends[slot] += 1 + kept
            self.texts[slot] += chunks[slot].tokens[: 1 + kept]
            if kept < n or self.rng.random() < 0.5:  # nothing to drop: who would, need not
                self.session.truncate(self.ends[slot], sequence=slot)
                self.alone[slot].truncate(self.ends[slot])
            if self.has_heads:
                assert self.session.seen_end(slot, 1) == self.alone[slot].seen_end(0, 1) <= self.ends[slot]

    def catch_up(self, n_max: int) -> None:
        """A draft of all slots whose heads first see up to `n_max` positions that they have missed."""
        begins = [max(self.session.seen_end(slot, 1), end - n_max) for slot, end in enumerate(self.ends)]
        tokens = [[*self.texts[slot][begin:], 7] for slot, begin in enumerate(begins)]
        self.session.draft(0, 1, [Chunk(tokens[slot], begin, slot) for slot, begin in enumerate(begins)])
        logits = self.session.draft_logits.copy()
        for slot, begin in enumerate(begins):
            self.alone[slot].draft(0, 1, [Chunk(tokens[slot], begin)])
            self._same(logits[slot], self.alone[slot].draft_logits[0])

    def _tokens(self, n: int) -> list[int]:
        return [self.rng.randrange(N_VOCAB) for _ in range(n)]

    @staticmethod
    def _same(found: object, expected: object) -> None:
        np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.fixture(params=[True, False], ids=["unified", "streams"])
def together(model: object, request: pytest.FixtureRequest) -> Iterator[Together]:
    sequences = Together(model, random.Random(5), replace(PARAMS, kv_unified=request.param))
    yield sequences
    sequences.close()


@pytest.mark.parametrize("n_rounds", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_rounds_of_random_lengths_are_those_of_each_sequence_alone(together: Together, n_rounds: int) -> None:
    rng = together.rng
    for slot in range(N_SEQ):
        together.begin(slot, 5 + 5 * slot)
    for _ in range(n_rounds):
        active = [slot for slot in range(N_SEQ) if rng.random() < 0.8] or [1]
        together.draft(sorted(rng.sample(active, rng.randint(1, len(active)))), rng.randint(1, 3))
        together.verify({slot: rng.randint(0, K) for slot in active})
        if rng.random() < 0.2:
            together.begin(rng.randrange(N_SEQ), rng.randint(3, 60))


@pytest.mark.parametrize("n_rounds", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_rounds_beside_prompts_are_those_of_each_sequence_alone(together: Together, n_rounds: int) -> None:
    rng = together.rng
    for _ in range(n_rounds):
        prompts = rng.sample(range(N_SEQ), 2)
        for slot in range(N_SEQ):
            together.begin(slot, rng.randint(3, 20))
        for n in (rng.randint(1, K), rng.randint(K, 2 * K), 3 * K):
            lengths = {slot: rng.randint(0, K) for slot in range(N_SEQ) if slot not in prompts}
            together.verify(lengths, prompts={slot: n + i for i, slot in enumerate(prompts)})
        together.verify({slot: rng.randint(0, K) for slot in range(N_SEQ)})


@pytest.mark.parametrize("n_rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_heads_catch_up_by_hidden_states_that_added_rows_leave_alone(together: Together, n_rounds: int) -> None:
    if not together.has_heads:
        pytest.skip("there are no heads")
    rng = together.rng
    for slot in range(N_SEQ):
        together.begin(slot, 5 + 5 * slot)
    for _ in range(n_rounds):
        for _ in range(9):
            together.verify({slot: rng.randint(0, 1 if slot else K) for slot in range(N_SEQ)}, feed=False)
        together.catch_up(12)
        together.verify({slot: rng.randint(0, K) for slot in range(N_SEQ)})


@pytest.mark.parametrize("n_rounds", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_sequences_are_saved_copied_and_begun_again_between_rounds(together: Together, n_rounds: int) -> None:
    rng, session = together.rng, together.session
    for slot in range(N_SEQ):
        together.begin(slot, 5 + 5 * slot)
    for _ in range(n_rounds):
        together.verify({slot: rng.randint(0, K) for slot in range(N_SEQ)})
        session.restore(session.save())
        for alone in together.alone:
            alone.restore(alone.save())
        together.verify({slot: rng.randint(0, K) for slot in range(N_SEQ)})
        source, target = rng.sample(range(N_SEQ), 2)
        session.copy(source, target)
        together.alone[target].restore(together.alone[source].save())
        together.alone[source].restore(together.alone[source].save())
        together.ends[target] = together.ends[source]
        together.texts[target] = list(together.texts[source])


@pytest.mark.parametrize("n_rounds", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_copies_go_on_beside_what_they_were_copied_of(together: Together, n_rounds: int) -> None:
    """They share cells up to where they part, and one may have heads that miss what the other's have seen."""
    rng, session = together.rng, together.session
    for slot in range(N_SEQ):
        together.begin(slot, 10 + 9 * slot)
    for _ in range(n_rounds):
        source, target = rng.sample(range(N_SEQ), 2)
        session.copy(source, target)
        together.alone[target].restore(together.alone[source].save())
        together.ends[target] = together.ends[source]
        together.texts[target] = list(together.texts[source])
        together.draft(sorted({source, target}), rng.randint(1, 3))
        together.verify({target: rng.randint(0, K)}, feed=rng.random() < 0.5)
        together.draft(list(range(N_SEQ)), rng.randint(1, 3))
        together.verify({slot: rng.randint(0, K) for slot in range(N_SEQ)})
        together.draft(list(range(N_SEQ)), rng.randint(1, 3))
        if rng.random() < 0.2:
            together.begin(rng.randrange(N_SEQ), rng.randint(3, 30))


@pytest.mark.parametrize("family", ["hybrid, own cache", "hybrid, an index"])
def test_a_row_attends_to_no_pool_of_another_sequence(tmp_path: Path, family: str) -> None:
    """The copy's head has not seen the last position of a pool of four, of which the other sequence has all.

    A row that sees fewer pools than it picks could pick that one, and three of its cells are its own, too.
    """
    with open_model(FAMILIES[family](tmp_path / "tiny.gguf")) as model:
        together = Together(model, random.Random(8), PARAMS)
        together.begin(0, 15)
        together.session.copy(0, 1)
        together.alone[1].restore(together.alone[0].save())
        together.ends[1], together.texts[1] = 15, list(together.texts[0])
        together.draft([0, 1], 3)
        together.verify({1: 0}, feed=False)
        together.draft([0, 1], 3)
        together.close()


@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "streams"])
def test_a_round_goes_back_whatever_is_decoded_after_it_in_its_batch(model: object, kv_unified: bool) -> None:
    """The round shares no pass with the others: theirs must not take the place that its states are in."""
    rng, heads = random.Random(9), has_heads(model)
    params = replace(PARAMS, kv_unified=kv_unified)
    in_another_order, between_prompts = ((1, 0, 2), (2, 3, 3)), ((0, 1, 2), (3 * K, 2, 3 * K))
    for begun, n_rows in (in_another_order, between_prompts):
        with (
            Session(model, replace(params, n_seq_max=3), n_draft_max=K, padding="never", uses_heads=heads) as session,
            Session(model, PARAMS, uses_heads=False) as alone,
        ):
            texts = [[rng.randrange(N_VOCAB) for _ in range(10 + 3 * slot)] for slot in range(3)]
            for slot in begun:
                session.decode([Chunk(texts[slot], 0, slot, feed=heads)])
            rounds = [
                Chunk([rng.randrange(N_VOCAB) for _ in range(n)], len(text), slot, "all" if n <= K else "none", heads)
                for slot, (n, text) in enumerate(zip(n_rows, texts, strict=True))
            ]
            session.decode(rounds)
            for slot, chunk in enumerate(rounds):
                texts[slot] += chunk.tokens[: 1 if chunk.logits == "all" else None]
                session.truncate(len(texts[slot]), sequence=slot)
            session.decode([Chunk([11], len(text), slot, "all", heads) for slot, text in enumerate(texts)])
            for row, text in zip(session.logits.copy(), texts, strict=True):
                alone.truncate(0)
                alone.decode([Chunk([*text, 11], 0)])
                np.testing.assert_allclose(row, alone.logits[0], atol=2e-4)


def test_rounds_go_on_to_the_very_end_of_the_context(model: object) -> None:
    """Where rows to be added no longer fit, the pass has none."""
    params = replace(PARAMS, n_ctx=64, n_ubatch=64)
    together = Together(model, random.Random(7), params)
    try:
        n_ctx = 256 // N_SEQ  # what one of them may take of the cache that they share
        for slot in range(N_SEQ):
            together.begin(slot, n_ctx - 9)
        while min(together.ends) < n_ctx:
            together.verify(
                {
                    slot: min(together.rng.randint(0, K), n_ctx - end - 1)
                    for slot, end in enumerate(together.ends)
                    if end < n_ctx
                }
            )
        n_room = llama_cpp.llama_n_ctx(int(context_of(together.session))) - sum(together.ends)
        last = together.ends[0]
        together.session.decode([Chunk([1] * n_room, last, 0)])
        with pytest.raises(ContextFull):
            together.session.decode([Chunk([1], together.ends[1], 1, "all")])
    finally:
        together.close()


def context_of(session: Session) -> int:
    from pymtp.binding.library import ffi, lib

    info = ffi.new("struct pymtp_session_info *")
    lib.pymtp_session_describe(session._native, info)
    return int(ffi.cast("intptr_t", info.context))


def test_rounds_of_many_sequences_build_few_graphs(model: object) -> None:
    rng = random.Random(3)
    heads = has_heads(model)
    with Session(model, replace(PARAMS, n_seq_max=N_SEQ), n_draft_max=K, padding="always", uses_heads=heads) as session:
        if session.mtp_memory == "own":
            pytest.skip("its passes have exact shapes")
        ends = [10] * N_SEQ
        for slot in range(N_SEQ):
            session.decode([Chunk([3] * 10, 0, slot, feed=heads)])

        def play(n_rounds: int) -> int:
            before = session.counters
            for _ in range(n_rounds):
                lengths = [rng.randint(0, K) for _ in range(N_SEQ)]
                if heads:
                    session.draft_tokens([Chunk([1], end, slot) for slot, end in enumerate(ends)], K)
                session.decode([Chunk([1] * (1 + n), ends[i], i, "all", feed=heads) for i, n in enumerate(lengths)])
                for slot in range(N_SEQ):
                    ends[slot] += 1
                    session.truncate(ends[slot], sequence=slot)
            after = session.counters
            assert after.n_trunk_passes - before.n_trunk_passes == n_rounds
            return after.n_trunk_builds + after.n_head_builds - before.n_trunk_builds - before.n_head_builds

        play(20)
        assert play(12) <= 1


def test_prompts_of_many_lengths_build_few_graphs(model: object) -> None:
    heads = has_heads(model)
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=K, padding="always", uses_heads=heads) as session:
        if session.mtp_memory == "own" or session.needs_equal_rows:
            pytest.skip("its passes have exact shapes")
        builds = []
        for n in (20, 32, 17, 25, 19):
            session.truncate(0)
            before = session.counters.n_trunk_builds
            session.decode([Chunk([3] * n, 0, feed=heads)])
            builds.append(session.counters.n_trunk_builds - before)
        assert builds == [1, 0, 0, 0, 0]


def test_full_passes_of_prompts_and_rounds_build_few_graphs_and_leave_the_same_logits(model: object) -> None:
    heads, n_rows = has_heads(model), 160
    params = replace(PARAMS, n_seq_max=4, n_ubatch=n_rows)

    def play(padding: Literal["always", "never"]) -> tuple[list[int], list[np.ndarray]]:
        builds, logits = [], []
        with Session(model, params, n_draft_max=7, padding=padding, uses_heads=heads) as session:
            if session.mtp_memory == "own" or session.needs_equal_rows:
                pytest.skip("its passes have exact shapes")
            for n in (5, 1, 8, 7):  # in front of the prompt, and after it
                for slot, at in ((0, 0), (1, 1)):
                    session.truncate(0, sequence=0)
                    session.truncate(0, sequence=1)
                    before = session.counters.n_trunk_builds
                    chunks = [Chunk([3] * (n_rows - n), 0, 1 - slot, feed=heads)]
                    chunks.insert(at, Chunk([*range(1, n + 1)], 0, slot, "all", feed=heads))
                    session.decode(chunks)
                    builds.append(session.counters.n_trunk_builds - before)
                    logits.append(session.logits)
        return builds, logits

    builds, padded = play("always")
    _, exact = play("never")
    assert sum(builds[2:]) <= 1  # a cache with a window can have another number of cells
    assert [each.shape for each in padded] == [each.shape for each in exact]
    assert all(np.abs(one - other).max() < 1e-3 for one, other in zip(padded, exact, strict=True))


@pytest.mark.parametrize(
    ("lengths", "n_passes"),
    [
        ([2, 4, 3], {"never": 3, "auto": 1, "always": 1}),
        ([2, 2, 1], {"never": 2, "auto": 1, "always": 1}),
        ([1, 1, 1, 1, 5], {"never": 2, "auto": 2, "always": 1}),
        ([5, 5, 5, 1, 1], {"never": 2, "auto": 2, "always": 1}),
        ([5, 4, 1, 2, 5], {"never": 5, "auto": 3, "always": 1}),
    ],
)
@pytest.mark.parametrize("padding", ["never", "auto", "always"])
def test_rounds_share_passes_as_far_as_that_costs_less(
    tmp_path: Path, padding: Literal["never", "auto", "always"], lengths: list[int], n_passes: dict[str, int]
) -> None:
    with (
        open_model(write_qwen35(tmp_path / "tiny.gguf")) as model,
        Session(model, replace(PARAMS, n_seq_max=N_SEQ), n_draft_max=K, padding=padding) as session,
    ):
        for slot in range(len(lengths)):
            session.decode([Chunk([3] * 10, 0, slot, feed=True)])
        before = session.counters.n_trunk_passes
        session.decode([Chunk([1] * n, 10, slot, "all", feed=True) for slot, n in enumerate(lengths)])
        assert session.counters.n_trunk_passes - before == n_passes[padding]
