"""What the index of a head picks is what its attention sees; where it picks everything, it changes nothing.

That it picks what published code does is in test_reference.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from pymtp.binding.arrays import Logits
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import PymtpError
from random_gguf import N_VOCAB, write_glm5_next, write_glm_dsa, write_qwen4exp_picking
from random_gguf.deepseek import write_latent
from random_gguf.side_files import without_tensors
from test_families import PARAMS, USUAL, draft, load
from two_contexts import TwoContexts

K, N_PICKED = 3, 100
N_POOLED = 4
FLASH = pytest.mark.parametrize("params", [PARAMS, USUAL], ids=["F32", "flash attention, F16"])

Write = Callable[[Path, int], Path]


def write_deepseek32(path: Path, n_picked: int) -> Path:
    return write_latent(path, "deepseek32", index=lambda i: True, more={"attention.indexer.top_k": n_picked})


def write_glm5(path: Path, n_picked: int) -> Path:
    """The drafts of a round share what is picked."""
    return write_latent(path, "glm-dsa", index=lambda i: i % 2 == 0, more={"attention.indexer.top_k": n_picked})


def write_glm5_flash(path: Path, n_picked: int) -> Path:
    """Likewise; what is picked are pools of positions, and those after the last pool."""
    return write_glm5_next(path, more={"attention.indexer.top_k": n_picked - N_POOLED + 1})


def write_qwen4(path: Path, n_picked: int) -> Path:
    """Pools of trunk and head, each draft picks; 16 positions and those after the last pool."""
    assert n_picked == 19
    return write_qwen4exp_picking(path)


POOLS = pytest.mark.parametrize("write", [write_glm5_flash, write_qwen4])


@contextmanager
def opened(path: Path, params: ContextParams, n_seq_max: int = 1) -> Iterator[Session]:
    model = load(path)
    with Session(model, replace(params, n_seq_max=n_seq_max), n_draft_max=K) as session:
        yield session
    llama_cpp.llama_model_free(model)


def tokens_of(seed: int, n: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(N_VOCAB) for _ in range(n)]


def drafts(path: Path, params: ContextParams, n_tokens: int) -> Logits:
    """Logits of two drafts: within a text beside another one, and after it."""
    tokens, script = tokens_of(5, n_tokens), tokens_of(6, K)
    with opened(path, params, 2) as session:
        session.decode([Chunk(tokens[:-20], 0, feed=True)])
        session.decode([Chunk(tokens_of(7, 40), 0, 1, feed=True)])
        within = draft(session, 7, n_tokens - 20, script)
        session.decode([Chunk(tokens[-20:-1], n_tokens - 20, feed=True)])
        return np.stack([within, draft(session, tokens[-1], n_tokens - 1, script)])


@FLASH
@pytest.mark.parametrize("write", [write_deepseek32, write_glm5, write_glm5_flash])
def test_an_index_that_picks_everything_changes_nothing(write: Write, params: ContextParams, tmp_path: Path) -> None:
    # the cache has more than 256 cells: either 100 of these are picked, or attention sees the cache without an index
    pools = N_POOLED - 1 if write is write_glm5_flash else 0
    some, every = (write(tmp_path / f"{n}.gguf", n + pools) for n in (N_PICKED, 4096))
    # the trunk with pools gathers what it has picked, where there is less than the cache has
    off = 0.0 if not pools else 1e-5 if params is PARAMS else 2e-2
    few = (drafts(path, params, N_PICKED - K) for path in (some, every))
    np.testing.assert_allclose(*few, rtol=0, atol=off)
    assert abs(drafts(some, params, 200) - drafts(every, params, 200)).max() > 0.1


@pytest.mark.parametrize("part", ["", "k_norm.bias"])
def test_a_head_without_an_index_or_a_part_of_it_attends_to_everything(part: str, tmp_path: Path) -> None:
    path = write_glm5(tmp_path / "every.gguf", 4096)
    without = without_tensors(path, tmp_path / "without.gguf", "blk.4.indexer." + part)
    np.testing.assert_array_equal(drafts(without, USUAL, 200), drafts(path, USUAL, 200))


@FLASH
@pytest.mark.parametrize("kv_unified", [True, False], ids=["one cache", "a stream each"])
@pytest.mark.parametrize(
    ("write", "n_picked"), [(write_glm5, N_PICKED), (write_glm5_flash, N_PICKED + N_POOLED - 1)], ids=["keys", "pools"]
)
@pytest.mark.parametrize(
    "n_short", [pytest.param(40, marks=pytest.mark.slow), -1, pytest.param(0, marks=pytest.mark.slow), 1]
)
def test_drafts_of_a_text_that_is_seen_whole_are_the_same_beside_one_that_is_not(
    n_short: int, write: Write, n_picked: int, kv_unified: bool, params: ContextParams, tmp_path: Path
) -> None:
    path, script = write(tmp_path / "tiny.gguf", n_picked), tokens_of(6, K)
    texts = [200, n_short if n_short > 1 else n_picked + n_short]

    def drafted(session: Session, sequences: list[int], greedy: bool) -> Logits:
        for i in sequences:
            session.decode([Chunk(tokens_of(i, texts[i]), 0, i, feed=True)])
        if greedy:
            return np.array(session.draft_tokens([Chunk([5], texts[i], i) for i in sequences], K)[0])
        logits = []
        for step, token in enumerate([5, *script[:-1]]):
            session.draft(step, K, [Chunk([token], texts[i] + step, i) for i in sequences])
            logits.append(session.draft_logits.copy())
        return np.stack(logits, axis=1)

    for greedy in (False, True):
        with opened(path, replace(params, kv_unified=kv_unified), 2) as session:
            together = drafted(session, [0, 1], greedy)
        for i in (0, 1):
            with opened(path, replace(params, kv_unified=kv_unified), 2) as session:
                (alone,) = drafted(session, [i], greedy)
            np.testing.assert_allclose(together[i], alone, rtol=0, atol=1e-4 if params is PARAMS else 1e-2)


@pytest.mark.parametrize("write", [write_glm5, write_glm5_flash])
def test_what_was_picked_in_a_larger_cache_does_not_matter(write: Write, tmp_path: Path) -> None:
    """The cells of a draft are more than an index picks, those of its first step were not: nothing was picked then."""
    path, script = write(tmp_path / "tiny.gguf", 303), tokens_of(6, K)
    with opened(path, replace(PARAMS, n_ctx=1024)) as used, opened(path, replace(PARAMS, n_ctx=1024)) as fresh:
        used.decode([Chunk(tokens_of(1, 900), 0, feed=True)])
        draft(used, 5, 900, script)
        used.truncate(0)
        for session in (used, fresh):
            session.decode([Chunk(tokens_of(2, 255), 0, feed=True)])
        np.testing.assert_array_equal(*(draft(session, 5, 255, script) for session in (used, fresh)))


@FLASH
@POOLS
@pytest.mark.parametrize("kv_unified", [True, False], ids=["one cache", "a stream each"])
def test_copies_that_part_within_a_pool_have_pools_of_their_own(
    kv_unified: bool, write: Write, params: ContextParams, tmp_path: Path
) -> None:
    path, script, n_seq = write(tmp_path / "tiny.gguf", 19), tokens_of(6, K), 4
    texts = [tokens_of(1, 81) + tokens_of(10 + i, 1 + i) for i in range(n_seq)]  # a pool has 1 position of the copies'
    with opened(path, replace(params, kv_unified=kv_unified), n_seq) as session:
        session.decode([Chunk(texts[0][:81], 0, feed=True)])
        for i in range(1, n_seq):
            session.copy(0, i)
        session.decode([Chunk(text[81:], 81, i, feed=True) for i, text in enumerate(texts)])
        last, together = session.logits.copy(), []
        for step, token in enumerate([5, *script[:-1]]):
            session.draft(step, K, [Chunk([token], len(text) + step, i) for i, text in enumerate(texts)])
            together.append(session.draft_logits.copy())
    for i, text in enumerate(texts):
        with opened(path, params) as session:
            session.decode([Chunk(text, 0, feed=True)])
            alone_last, alone = session.logits[0].copy(), draft(session, 5, len(text), script)
        off = 1e-4 if params is PARAMS else 5e-2
        np.testing.assert_allclose(last[i], alone_last, rtol=0, atol=off)
        np.testing.assert_allclose([logits[i] for logits in together], alone, rtol=0, atol=off)


@POOLS
def test_what_the_head_has_not_seen_of_a_copy_is_picked_of_the_original(write: Write, tmp_path: Path) -> None:
    path, script, text = write(tmp_path / "tiny.gguf", 19), tokens_of(6, K), tokens_of(1, 60)

    def begin(session: Session) -> None:
        for start, end, feed in ((0, 5, True), (5, 9, False), (9, 60, True)):
            session.decode([Chunk(text[start:end], start, feed=feed)])

    with opened(path, PARAMS, 2) as session:
        begin(session)
        alone = draft(session, 5, 60, script)
    with opened(path, PARAMS, 2) as session:
        begin(session)
        session.copy(0, 1)
        session.decode([Chunk(tokens_of(2, 4), 60, 1)])
        session.decode([Chunk(tokens_of(3, 2), 64, 1, feed=True)])  # what was missed is one gap, from 5 to 63
        beside = draft(session, 5, 66, script, 1)
        np.testing.assert_allclose(draft(session, 5, 60, script), alone, rtol=0, atol=1e-4)
    assert np.isfinite(beside).all()


@FLASH
@POOLS
@pytest.mark.parametrize("kv_unified", [True, False], ids=["one cache", "a stream each"])
@pytest.mark.parametrize("n", [8, 9, 10, 11, 12])
def test_a_row_sees_itself_where_the_head_has_seen_nothing_else(
    n: int, kv_unified: bool, write: Write, params: ContextParams, tmp_path: Path
) -> None:
    """Also if it ends a pool of which the rest was not seen, and beside a sequence that was."""
    path, params = write(tmp_path / "tiny.gguf", 19), replace(params, kv_unified=kv_unified)
    logits = []
    for texts in ((60, n), (0, n)):
        with opened(path, params, 2) as session:
            if texts[0]:
                session.decode([Chunk(tokens_of(1, texts[0]), 0, feed=True)])
            session.decode([Chunk(tokens_of(2, n), 0, 1)])
            chunks = [Chunk([5], end, i) for i, end in enumerate(texts) if end]
            session.draft(0, 1, chunks)
            logits.append(session.draft_logits[-1].copy())
    assert np.isfinite(logits[0]).all()
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-4 if params.flash_attn == "off" else 5e-2)


def test_what_is_left_of_pools_that_the_head_has_not_seen_whole_is_not_picked(tmp_path: Path) -> None:
    some, every = (write_glm5_flash(tmp_path / f"{n}.gguf", n) for n in (19, 4099))
    script, text, logits = tokens_of(6, K), tokens_of(1, 13), []
    for path in (some, every):
        with opened(path, PARAMS) as session:
            session.decode([Chunk(text[:5], 0, feed=True)])
            session.decode([Chunk(text[5:9], 5)])
            session.decode([Chunk(text[9:], 9, feed=True)])
            logits.append(draft(session, 5, len(text), script))
    # 4, 9, 10 and 11 are alone; without an index they are seen, and by later drafts of a text that is as short
    assert abs(logits[0][0] - logits[1][0]).max() > 1e-2


def test_positions_of_a_copy_do_not_move(tmp_path: Path) -> None:
    """They are those of the sequence that it is a copy of."""
    with opened(write_glm_dsa(tmp_path / "tiny.gguf"), PARAMS, 2) as session:
        session.decode([Chunk([*range(20)], 0, feed=True)])
        session.copy(0, 1)
        with pytest.raises(PymtpError, match="shares positions with a copy"):
            session.discard(0, 5)


@pytest.mark.parametrize("write", [write_deepseek32, write_glm5])
def test_positions_that_moved_are_picked_as_before(write: Write, tmp_path: Path) -> None:
    """Without the first ones, the others see one another the same wherever they are."""
    model = load(write(tmp_path / "tiny.gguf", 16))
    stay, (n, n_gone) = TwoContexts(model, PARAMS, 1), (100, 30)
    with Session(model, PARAMS, n_draft_max=K) as move:
        for start in range(0, n, PARAMS.n_ubatch):
            stay.decode(tokens_of(1, n)[start : start + PARAMS.n_ubatch], start)
        move.decode([Chunk(tokens_of(1, n), 0, feed=True)])
        stay.forget(0, n_gone)
        move.discard(0, n_gone)

        stay.draft(5, n, tokens_of(6, K))
        moved = draft(move, 5, n - n_gone, tokens_of(6, K))
        n_alike = K if write is write_deepseek32 else 1  # llama.cpp's later drafts pick for themselves
        np.testing.assert_allclose(moved[:n_alike], stay.draft_logits[:n_alike], rtol=0, atol=1e-3)
        move.decode([Chunk([5], n - n_gone)])
        stay.decode([5], n)
        np.testing.assert_allclose(move.logits, stay.logits, rtol=0, atol=1e-3)
    stay.close()
    llama_cpp.llama_model_free(model)
