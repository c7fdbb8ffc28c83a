"""What a session offers beside its passes: highest logits, draft vocabularies, saved states, counters, cache types."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from machine import needs_exact_texts
from pymtp import Model, SamplingParams, embedded
from pymtp.binding.library import ffi, lib
from pymtp.drafting.mtp import CATCH_UP
from pymtp.drafting.params import N_DRAFT_MAX
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import InvalidParameter, PymtpError, StateError, UnsupportedModel
from pymtp.gguf.facts import model_facts
from pymtp.gguf.shards import read_shards
from pymtp.gguf.types import TYPE_IDS
from pymtp.gguf.weights import fingerprint, output_matrix
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution
from random_gguf import N_VOCAB, write_deepseek3, write_glm4moe, write_mimo2, write_qwen35

K = 3
PARAMS = ContextParams(n_ctx=2048, n_ubatch=64, n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
FAMILIES = {"plain": write_glm4moe, "sliding window": write_mimo2, "hybrid": write_qwen35}


def load(path: Path) -> object:
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    no_devices = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.addressof(no_devices)
    return llama_cpp.llama_model_load_from_file(str(path).encode(), params)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    loaded = load(FAMILIES[request.param](tmp_path_factory.mktemp("models") / "tiny.gguf"))
    yield loaded
    llama_cpp.llama_model_free(loaded)


@pytest.fixture(scope="module")
def nano() -> Iterator[object]:
    loaded = load(embedded.model_path())
    yield loaded
    llama_cpp.llama_model_free(loaded)


def prompt(session: Session, n: int, seed: int = 1) -> list[int]:
    """Random tokens, decoded and fed."""
    rng = random.Random(seed)
    tokens = [rng.randrange(N_VOCAB) for _ in range(n)]
    session.decode([Chunk(tokens, 0, feed=True)])
    return tokens


def play(session: Session, history: list[int], lengths: list[int], n_rounds: int) -> None:
    """Rounds whose drafts are as long as `lengths` says in turn, of which none to all are accepted in turn."""
    for i in range(n_rounds):
        n_draft = lengths[i % len(lengths)]
        last, position = history[-1], len(history) - 1
        drafts = session.draft_tokens([Chunk([last], position)], n_draft)[0][0] if n_draft else []
        session.decode([Chunk([last, *drafts], position, logits="all", feed=True)])
        history += [*drafts[: i % (n_draft + 1)], i % N_VOCAB]
        session.truncate(len(history) - 1)


def test_a_device_is_asked_which_rows_it_can_read() -> None:
    cpu = lib.ggml_backend_dev_get(0)
    can = [lib.pymtp_device_reads_rows(cpu, kind) for kind in range(-1, 64)]
    assert can[1:3] == [True, True]  # F32, F16
    assert not any((can[0], can[5], can[-1]))  # -1, 4 (a type of the past), 63
    assert not lib.pymtp_device_reads_rows(ffi.NULL, 0)


@pytest.mark.parametrize("lengths", [[3], [1], [3, 1, 2, 0]], ids=str)
def test_rounds_rebuild_next_to_no_graph_also_if_drafts_change_their_length(model: object, lengths: list[int]) -> None:
    n_rounds = 240
    with Session(model, PARAMS, n_draft_max=K) as session:
        history = [*prompt(session, 20), 5]
        play(session, history, lengths, 12)
        before = session.counters
        play(session, history, lengths, n_rounds)
        after = session.counters
    assert after.n_trunk_builds - before.n_trunk_builds <= 0.05 * n_rounds
    assert after.n_head_builds - before.n_head_builds <= 0.05 * n_rounds


def test_texts_that_begin_anew_find_the_graphs_of_those_before(model: object) -> None:
    """A text needs one graph up to 1024 cells and another one after them; the next text needs both again."""
    with Session(model, PARAMS, n_draft_max=K) as session:
        n_builds = []
        for _ in range(4):
            session.truncate(0)
            history = [*prompt(session, 970), 5]
            before = session.counters
            play(session, history, [3, 1], 60)
            after = session.counters
            n_builds.append((after.n_trunk_builds - before.n_trunk_builds, after.n_head_builds - before.n_head_builds))
    assert n_builds[0][0] >= 4 and n_builds[0][1] >= 4
    assert n_builds[2:] == [(0, 0)] * 2


def test_a_limit_of_drafts_that_comes_again_builds_no_graph_again(model: object) -> None:
    with Session(model, PARAMS, n_draft_max=K) as session:
        history = [*prompt(session, 20), 5]
        rows = np.zeros((64, 4 * session._n_embd), np.uint8)
        n_builds = []
        for limited in (False, True, False, True, False):
            before = session.counters
            for limit in (64, None, 32):
                session.limit_drafts(limit)
                play(session, history, [3], 4)
            if limited:
                session.limit_drafts_to(range(64), [rows] * session.n_heads, TYPE_IDS["f32"])
                play(session, history, [3], 4)
            after = session.counters
            n_builds.append((after.n_trunk_builds - before.n_trunk_builds, after.n_head_builds - before.n_head_builds))
    assert n_builds == [(1, 3), (0, 1), (0, 0), (0, 1), (0, 0)]


def test_builds_are_the_passes_that_llama_cpp_did_not_reuse_a_graph_for(model: object) -> None:
    with Session(model, PARAMS, n_draft_max=K) as session:
        play(session, [*prompt(session, 200), 5], [3, 1, 2, 0], 100)
        counters = session.counters
        info = ffi.new("struct pymtp_session_info *")
        lib.pymtp_session_describe(session._native, info)
        context = int(ffi.cast("intptr_t", info.context))
        n_reused = llama_cpp.llama_perf_context(context).n_reused
    n_passes = counters.n_trunk_passes + counters.n_head_passes
    assert n_passes == 4 + 100 + 75
    assert n_passes - n_reused == counters.n_trunk_builds + counters.n_head_builds


@pytest.mark.model
@pytest.mark.parametrize("n_reduced", [0, 20])
def test_a_sampler_fetches_no_more_than_what_has_the_highest_logits(nano: object, n_reduced: int) -> None:
    with Session(nano, replace(PARAMS, n_seq_max=2), n_draft_max=K) as session:
        session.reduce_logits(n_reduced, also_on_host=True)
        session.decode([Chunk(range(100, 140), 0, 0, feed=True), Chunk(range(200, 210), 0, 1, feed=True)])
        session.decode([Chunk([5, 6, 7], 40, 0, "all"), Chunk([6, 7, 8], 10, 1, "all")])
        sampler = Sampler(SamplingParams(samplers=("top_k",), top_k=12), n_vocab=session.n_vocab)
        before = session.counters.n_output_bytes
        found = [sampler.distribution(row).tokens for row in session.rows()]
        n_bytes = session.counters.n_output_bytes - before
        assert n_bytes <= (6 * (20 * 256 + 20 + 256) if n_reduced else 6 * session.n_vocab) * 4
        np.testing.assert_array_equal(found, np.argsort(-session.logits, axis=1, kind="stable")[:, :12])


@pytest.mark.model
def test_drafts_can_be_limited_to_tokens_whose_rows_come_from_the_file(nano: object) -> None:
    rng = np.random.default_rng(1)
    with Session(nano, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk(range(100, 140), 0, feed=True)])
        session.draft(0, K, [Chunk([5], 40)])
        full = session.draft_logits.copy()
        tokens = np.sort(rng.choice(full.shape[1], 1001, replace=False))
        matrix = output_matrix(model_facts(embedded.model_path()), 0)
        session.limit_drafts_to(tokens.tolist(), [matrix[tokens]])
        session.truncate(40)
        session.draft(0, K, [Chunk([5], 40)])
        # not bit for bit: a CPU may multiply the listed rows with other kernels
        np.testing.assert_allclose(session.draft_logits[0, tokens], full[0, tokens], atol=1e-4)
        assert np.isneginf(np.delete(session.draft_logits[0], tokens)).all()
        best = int(tokens[full[0, tokens].argmax()])
        assert session.draft_logits[0].argmax() == best
        assert session.draft_tokens([Chunk([5], 40)], 1)[0] == [[best]]
        session.ban_tokens([best])
        assert session.draft_tokens([Chunk([5], 40)], 1)[0][0][0] not in (best, *np.delete(np.arange(8192), tokens))
        others = np.setdiff1d(np.arange(full.shape[1]), tokens)[[40, 7, 600]]
        session.replace_drafts([0, 1000, 5], others.tolist(), [matrix[others]])
        session.ban_tokens([])
        tokens[[0, 1000, 5]] = others
        session.draft(0, K, [Chunk([5], 40)])
        np.testing.assert_allclose(session.draft_logits[0, tokens], full[0, tokens], atol=1e-4)
        assert np.isneginf(np.delete(session.draft_logits[0], tokens)).all()
        assert session.draft_tokens([Chunk([5], 40)], 1)[0] == [[int(tokens[full[0, tokens].argmax()])]]
        with pytest.raises(PymtpError, match="a row that a list of 1001 tokens has not"):
            session.replace_drafts([1001], [3], [matrix[[3]]])
        session.limit_drafts(None)
        session.draft(0, K, [Chunk([5], 40)])
        np.testing.assert_array_equal(session.draft_logits, full)
        with pytest.raises(PymtpError, match="drafts are not limited to a list of tokens"):
            session.replace_drafts([0], [3], [matrix[[3]]])
        with pytest.raises(PymtpError, match="rows of 3 bytes for head 0, whose matrix has"):
            session.limit_drafts_to([1, 2], [np.zeros((2, 3), np.uint8)])
        for wrong in ([], [np.zeros((3, 3), np.uint8)], [np.zeros((2, 3), np.int8)]):
            with pytest.raises(InvalidParameter, match="matrices must be uint8 of 2 rows for each of 1 heads"):
                session.limit_drafts_to([1, 2], wrong)
        session.limit_drafts_to([1, 2], [matrix[[1, 2]]])
        for wrong in ([], [matrix[[3]]], [matrix[[3, 4]][:, 0]]):
            with pytest.raises(InvalidParameter, match="matrices must be uint8 of 2 rows for each of 1 heads"):
                session.replace_drafts([0, 1], [3, 4], wrong)
        with pytest.raises(InvalidParameter, match="rows must be as many as the tokens: 1"):
            session.replace_drafts([0, 1], [3], [matrix[[3]]])
        session.limit_drafts_to([1, 2], [np.zeros((2, 4 * 512), np.uint8)], TYPE_IDS["f32"])
        with pytest.raises(PymtpError, match="not of the types of the heads' matrices"):
            session.replace_drafts([0], [3], [matrix[[3]]])
        with pytest.raises(PymtpError, match="a draft vocabulary of 0 tokens"):
            session.limit_drafts(0)


@needs_exact_texts
@pytest.mark.model
def test_a_model_with_limited_drafts_gives_the_same_text() -> None:
    texts = []
    for vocab in ("all", 2000, range(0, 8192, 2)):
        with Model(draft="mtp", draft_max=3, draft_vocab=vocab, n_ctx=128) as model:
            generation = model.generate(
                "Once upon a time", sampling=SamplingParams(temperature=0), max_tokens=40, ignore_eos=True
            )
            texts.append("".join(generation))
            assert generation.stats.drafted > 0
    assert len(set(texts)) == 1
    for wrong in (0, 8193, [], [8192], [-1]):
        with pytest.raises(InvalidParameter, match="draft_vocab must be 1 to 8192 tokens of the vocabulary"):
            Model(draft="mtp", draft_vocab=wrong)


def test_a_saved_session_goes_on_in_another_one_and_damage_changes_nothing(model: object, tmp_path: Path) -> None:
    path = tmp_path / "session.state"
    with (
        Session(model, PARAMS, n_draft_max=K, model_id="m") as one,
        Session(model, PARAMS, n_draft_max=K, model_id="m") as other,
    ):
        history = [*prompt(one, 50), 3]
        play(one, history, [3], 5)
        one.save_file(path)
        prompt(other, 30, seed=2)
        kept = other.save()
        data = path.read_bytes()
        for damaged in (data[:-1], data[:1000], data[:-9] + b"123456789", b""):
            with pytest.raises(StateError):
                other.restore(damaged)
        assert other.save() == kept
        other.restore_file(path)
        for session in (one, other):
            played = list(history)
            play(session, played, [3], 4)
        for session in (one, other):
            session.decode([Chunk(played[-1:], len(played) - 1)])
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)


def test_a_state_of_another_model_or_shape_is_refused(model: object) -> None:
    with Session(model, PARAMS, n_draft_max=K, model_id="m") as session:
        prompt(session, 50)
        data = session.save()
    with (
        Session(model, PARAMS, n_draft_max=K, model_id="n") as session,
        pytest.raises(StateError, match="another model"),
    ):
        session.restore(data)
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=K, model_id="m") as session:
        tokens = prompt(session, 20)
        with pytest.raises(StateError, match="does not fit this session"):
            session.restore(data)
        session.decode([Chunk([1], len(tokens))])
    small = replace(PARAMS, n_ctx=256, n_ubatch=32)
    with Session(model, PARAMS, n_draft_max=K, model_id="m") as session:
        prompt(session, 600)
        data = session.save()
    with Session(model, small, n_draft_max=K, model_id="m") as session:
        tokens = prompt(session, 20)
        with pytest.raises(StateError, match="does not fit this session"):
            session.restore(data)
        session.decode([Chunk([1], len(tokens))])


@pytest.mark.parametrize("cache", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_text_with_drafts_is_the_plain_one_whatever_the_cache(model: object, cache: str, flash_attn: str) -> None:
    type_v = cache if flash_attn == "on" or cache in ("f16", "bf16") else "f16"
    params = replace(PARAMS, flash_attn=flash_attn, type_k=cache, type_v=type_v)
    with Session(model, params) as plain, Session(model, params, n_draft_max=K) as session:
        text = prompt(plain, 77)
        assert prompt(session, 77) == text
        while len(text) < 120:
            text.append(int(plain.logits[-1].argmax()))
            plain.decode([Chunk(text[-1:], len(text) - 1)])
        n = 78
        while n + K + 1 < len(text):
            (drafts,), _ = session.draft_tokens([Chunk([text[n - 1]], n - 1)], K)
            drafts = [text[n] if n % 2 else drafts[0], *drafts[1:]]  # right at least now and then
            session.decode([Chunk([text[n - 1], *drafts], n - 1, logits="all", feed=True)])
            said = session.logits.argmax(axis=1).tolist()
            n_right = next((i for i, (a, b) in enumerate(zip(drafts, said, strict=False)) if a != b), K)
            assert said[: n_right + 1] == text[n : n + n_right + 1]
            n += n_right + 1
            session.truncate(n - 1)


def test_a_quantised_v_cache_without_flash_attention_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="type_v must be f32, f16 or bf16 without flash attention"):
        replace(PARAMS, type_v="q8_0")


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_heads_that_blocks_of_a_type_do_not_fit_are_refused(flash_attn: str, tmp_path: Path) -> None:
    """Without flash attention llama.cpp reads the next head's values, and beyond the last one."""
    heads = {"head_count": 16, "head_count_kv": 8, "key_length": 16, "value_length": 16}
    more = {f"attention.{name}": n for name, n in heads.items()} | {"rope.dimension_count": 8}
    options: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "flash_attn": flash_attn, "device": []}
    path = write_glm4moe(tmp_path / "tiny.gguf", more=more)
    with Model(path, **options) as model:
        list(model.generate([1, 2, 3], max_tokens=4))
    with pytest.raises(PymtpError, match=r"type_k \(-ctk\) cannot be q8_0: .*32 values together, and heads have 16"):
        Model(path, type_k="q8_0", **options)
    if flash_attn == "on":
        with pytest.raises(PymtpError, match=r"type_v \(-ctv\) cannot be q4_0: it keeps 32 values together"):
            Model(path, type_v="q4_0", **options)


def test_a_context_that_llama_cpp_refuses_says_why(tmp_path: Path) -> None:
    path = write_deepseek3(tmp_path / "tiny.gguf")
    with pytest.raises(PymtpError, match=r"64 tokens: model does not support different K \(q8_0\) and V \(f16\)"):
        Model(path, n_ctx=64, n_threads=1, type_k="q8_0", device=[])


def test_a_fingerprint_tells_weights_apart(tmp_path: Path) -> None:
    one, other = write_glm4moe(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    data = bytearray(one.read_bytes())
    other.write_bytes(data)
    assert fingerprint(read_shards(one)) == fingerprint(read_shards(other))
    data[-1] ^= 1
    other.write_bytes(data)
    assert fingerprint(read_shards(one)) != fingerprint(read_shards(other))


def test_heads_that_llama_cpp_cannot_run_leave_lookup_with_a_note(tmp_path: Path) -> None:
    from random_gguf import write_ernie4_5

    path = write_ernie4_5(tmp_path / "tiny.gguf")
    reason = "the pinned llama.cpp cannot run the MTP heads of this ernie4_5 model (it has no graph for them)"
    with Model(path) as model:
        assert model.draft_note == f"{reason}: drafts by lookup only"
        assert model.draft_max == "auto"
        generation = model.generate([1, 2, 3], max_tokens=10, ignore_eos=True)
        list(generation)
        assert len(generation.tokens) == 10
    with pytest.raises(UnsupportedModel, match=re.escape(f"{reason}; use --draft none")):
        Model(path, draft="mtp")


def test_a_prompt_feeds_the_heads_also_after_one_that_did_not(model: object) -> None:
    with Session(model, PARAMS, n_draft_max=K) as session, Session(model, PARAMS, n_draft_max=K) as fresh:
        session.decode([Chunk([7] * 60, 0)])
        session.truncate(0)
        for each in (session, fresh):
            prompt(each, 60)
            each.draft(0, K, [Chunk([5], 60)])
        np.testing.assert_allclose(session.draft_logits, fresh.draft_logits, atol=1e-5)


def test_copies_and_originals_go_back_on_their_own(model: object) -> None:
    """After a round with rejected drafts, and both of them again later."""
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=K) as session, Session(model, PARAMS) as plain:
        tokens = prompt(session, 30)
        session.decode([Chunk([1, 2, 3, 4], 30, logits="all", feed=True)])
        session.truncate(32)
        session.copy(0, 1)
        for sequence in (1, 0):
            session.decode([Chunk([5, 6, 7], 32, sequence, "all", feed=True)])
            session.truncate(34, sequence=sequence)
            session.draft(0, K, [Chunk([8], 34, sequence)])
        session.save()
        for sequence in (1, 0):
            session.decode([Chunk([9], 34, sequence)])
            logits = session.logits.copy()
            plain.truncate(0)
            plain.decode([Chunk([*tokens, 1, 2, 5, 6, 9], 0)])
            np.testing.assert_allclose(logits, plain.logits, atol=1e-4)


def test_a_restored_sequence_does_not_go_back_by_what_another_text_has_left(model: object) -> None:
    with Session(model, PARAMS, n_draft_max=K) as session, Session(model, PARAMS) as plain:
        tokens = prompt(session, 20)
        session.decode([Chunk([1, 2, 3], 20, feed=True)])
        data = session.save()
        session.truncate(0)
        prompt(session, 20, seed=9)
        session.decode([Chunk([4, 5, 6], 20, feed=True)])
        session.restore(data)
        try:
            session.truncate(22)
        except PymtpError:  # recurrent states cannot
            session.decode([Chunk([7], 23)])
            plain.decode([Chunk([*tokens, 1, 2, 3, 7], 0)])
        else:
            session.decode([Chunk([7], 22)])
            plain.decode([Chunk([*tokens, 1, 2, 7], 0)])
        np.testing.assert_allclose(session.logits, plain.logits, atol=1e-4)


def test_a_draft_that_fails_takes_nothing_that_was_decoded(model: object) -> None:
    with Session(model, replace(PARAMS, n_ctx=256, n_seq_max=2), n_draft_max=K) as session:
        for sequence in (0, 1):
            session.decode([Chunk([3] * 256, 0, sequence, feed=True)])
        with pytest.raises(PymtpError):
            session.draft(0, K, [Chunk([3], 255, 0), Chunk([3], 256, 1)])
        with pytest.raises(PymtpError, match="256 is next"):
            session.decode([Chunk([3], 250, 0)])


def test_positions_that_a_copy_shares_are_not_moved(model: object) -> None:
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=K) as session:
        prompt(session, 30)
        session.copy(0, 1)
        with pytest.raises(PymtpError, match=r"no context shift"):
            session.discard(5, 10)
        with pytest.raises(PymtpError, match="cannot discard"):
            session.discard(1, 2**31 - 1)


def test_chunks_that_make_no_sense_are_refused(model: object) -> None:
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=K) as session:
        prompt(session, 30)
        with pytest.raises(InvalidParameter, match="chunks must be at least one token long each"):
            session.decode([Chunk([], 0, 1), Chunk([1], 30)])
        with pytest.raises(InvalidParameter, match="chunks must be of different sequences"):
            session.draft_tokens([Chunk([1], 30), Chunk([1], 30)], K)
        for odd in (-1, 0, K + 1, 2**31 - 1):
            with pytest.raises(PymtpError, match=f"a draft of {odd}: 1 to {K} are allowed"):
                session.draft_tokens([Chunk([1], 30)], odd)
    with pytest.raises(InvalidParameter, match="n_ctx must be at most"):
        Session(model, replace(PARAMS, n_ctx=2**30, n_seq_max=4))


def test_sequences_that_are_none_are_refused(model: object) -> None:
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=K) as session:
        prompt(session, 30)
        for sequence in (-1, 2, 99):
            with pytest.raises(PymtpError, match=f"sequence {sequence}"):
                session.discard(3, 2, sequence=sequence)
            with pytest.raises(PymtpError, match=f"sequence {sequence}"):
                session.seen_end(sequence, 1)
            with pytest.raises(PymtpError, match=f"sequence {sequence}"):
                session.truncate(3, sequence=sequence)
            with pytest.raises(PymtpError, match=f"sequence {sequence}"):
                session.copy(sequence, 0)
        session.decode([Chunk([1], 30)])


def test_drafts_cannot_be_limited_to_a_token_twice(model: object) -> None:
    with Session(model, PARAMS, n_draft_max=K) as session:
        tokens = [7, 9, 7]
        with pytest.raises(PymtpError, match="token 7 is listed twice"):
            session.limit_drafts_to(tokens, [np.zeros((len(tokens), 3), np.uint8)] * session.n_heads)


def test_a_state_with_more_positions_than_a_sequence_may_hold_is_refused(model: object) -> None:
    """Caches are rounded up: this one has cells for the state, and its sequences do not."""
    with Session(model, replace(PARAMS, n_ctx=512), n_draft_max=K, model_id="m") as session:
        prompt(session, 400)
        data = session.save()
    with Session(model, replace(PARAMS, n_ctx=260), n_draft_max=K, model_id="m") as session:
        tokens = prompt(session, 20)
        with pytest.raises(StateError, match="400 positions, of which 260 are possible"):
            session.restore(data)
        session.decode([Chunk([1], len(tokens))])
        session.restore(session.save())


def test_distributions_of_impossible_tokens_are_refused() -> None:
    for token in (-1, 2**31 - 1, 2**30):
        with pytest.raises(PymtpError, match=f"token {token}"):
            Distribution([token, 1], [0.5, 0.5])


def test_numbers_that_are_written_twice_are_the_same() -> None:
    assert N_DRAFT_MAX == lib.PYMTP_DRAFT_MAX
    assert 0 < CATCH_UP < lib.PYMTP_KEPT_POSITIONS
