"""The engine against llama.cpp's own two-context scheme, on tiny random models.

Drafts are scripted: some right (what the target itself would say), then wrong, so that every number of accepted
drafts occurs.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import pymtp
from pymtp._library import llama_cpp
from pymtp.drafting import MtpDrafter
from pymtp.errors import ContextFull, PymtpError, UnsupportedModel
from pymtp.sampling import Sampler, SamplingParams
from pymtp.session import ContextParams, Logits, Session
from random_gguf import N_VOCAB, write_glm4moe, write_mimo2, write_qwen3next, write_qwen35
from two_contexts import TwoContexts

PARAMS = ContextParams(n_ctx=512, n_ubatch=32, n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
K = 3

FAMILIES: dict[str, tuple[Callable[[Path], Path], int]] = {
    "plain": (write_glm4moe, 1),
    "sliding window": (write_mimo2, 1),
    "sliding window, chained heads": (lambda path: write_mimo2(path, n_heads=3), 3),
    "hybrid": (write_qwen35, 1),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[object, int]]:
    write, n_heads = FAMILIES[request.param]
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    # the tolerances are those of the CPU's F32: no GPU, not even for large products
    no_devices = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.addressof(no_devices)
    path = write(tmp_path_factory.mktemp("models") / "tiny.gguf")
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield model, n_heads
    llama_cpp.llama_model_free(model)


class Recorder:
    """Stands in for a sampler: drafts what the script says and keeps the logits."""

    def __init__(self) -> None:
        self.script: list[int] = []
        self.logits: list[Logits] = []

    def pick_draft(self, logits: Logits) -> int:
        self.logits.append(logits.copy())
        return self.script[len(self.logits) - 1]


def greedy(model: object, prompt: list[int], n_tokens: int) -> list[int]:
    """The target's own continuation, by plain decoding."""
    tokens = list(prompt)
    with Session(model, PARAMS) as plain:
        plain.decode(prompt, 0, logits="last")
        while len(tokens) < len(prompt) + n_tokens:
            tokens.append(int(plain.logits[-1].argmax()))
            plain.decode([tokens[-1]], len(tokens) - 1)
    return tokens


def test_head_logits_equal_those_of_a_second_context(family: tuple[object, int]) -> None:
    model, n_heads = family
    rng = random.Random(7)
    # longer than an ubatch, and than the sliding window
    prompt = [rng.randrange(N_VOCAB) for _ in range(77)]
    text = greedy(model, prompt, 200)
    recorder = Recorder()
    reference = TwoContexts(model, PARAMS, n_heads)
    with Session(model, PARAMS, n_draft_max=K) as session:
        assert session.mtp_memory == "shared"
        drafter = MtpDrafter(session, recorder, n_heads)  # type: ignore[arg-type]

        session.decode(prompt, 0, logits="last", prompt=True)
        drafter.begin(len(prompt))
        for start in range(0, len(prompt), PARAMS.n_ubatch):  # the reference takes one ubatch at a time
            reference.decode(prompt[start : start + PARAMS.n_ubatch], start)
        np.testing.assert_allclose(session.logits[0], reference.logits[-1], atol=1e-5)

        n = len(prompt) + 1  # tokens of the history; all but the last are decoded
        for n_right in [0, 1, 2, 3] * 15:
            recorder.script, recorder.logits = scripted(text[n : n + K], n_right, rng), []
            drafts = drafter.propose(text[:n], K)
            reference.draft(text[n - 1], n - 1, drafts)
            np.testing.assert_allclose(recorder.logits, reference.draft_logits, atol=1e-4)

            session.decode([text[n - 1], *drafts], n - 1, logits="all")
            reference.decode([text[n - 1], *drafts], n - 1)
            np.testing.assert_allclose(session.logits, reference.logits, atol=1e-5)
            assert session.logits[: n_right + 1].argmax(axis=1).tolist() == text[n : n + n_right + 1]

            n += n_right + 1
            session.truncate(n - 1)
            reference.truncate(n - 1)
    reference.close()


def scripted(right: list[int], n_right: int, rng: random.Random) -> list[int]:
    """Drafts of which exactly the first `n_right` are right."""
    wrong = [(token + rng.randrange(1, N_VOCAB)) % N_VOCAB for token in right[n_right:]]
    return right[:n_right] + wrong


def test_a_fused_draft_is_the_one_drafted_step_by_step(family: tuple[object, int]) -> None:
    model, n_heads = family
    if n_heads > 1:
        pytest.skip("chained heads draft step by step")
    rng = random.Random(5)
    prompt = [rng.randrange(N_VOCAB) for _ in range(40)]
    text = greedy(model, prompt, 120)
    sampler = Sampler(SamplingParams(temperature=0))
    with Session(model, PARAMS, n_draft_max=K) as one, Session(model, PARAMS, n_draft_max=K) as other:
        drafters = [MtpDrafter(s, sampler, 1, fused=fused) for s, fused in ((one, True), (other, False))]
        for session, drafter in zip((one, other), drafters, strict=True):
            session.decode(prompt, 0, prompt=True)
            drafter.begin(len(prompt))
        n = len(prompt) + 1
        for n_right in [0, 1, 2, 3] * 6:
            n_draft = rng.randrange(1, K + 1)
            fused, single = (drafter.propose(text[:n], n_draft) for drafter in drafters)
            assert fused == single
            rows = [text[n - 1], *scripted(text[n : n + K], n_right, rng)[:n_draft]]
            for session in (one, other):
                session.decode(rows, n - 1, logits="all")
            np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
            n += min(n_right, n_draft) + 1
            for session in (one, other):
                session.truncate(n - 1)
        assert one.counters.n_head_passes == 24


def test_a_fused_draft_leaves_out_what_is_barred(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode(list(range(20)), 0, prompt=True)
        free = session.draft_greedy(0, [5], 20, K)
        session.bar(free[:1])
        session.truncate(20)
        barred = session.draft_greedy(0, [5], 20, K)
        assert free[0] not in barred
        session.bar([])
        session.truncate(20)
        assert session.draft_greedy(0, [5], 20, K) == free


def test_drafts_that_are_not_verified_leave_no_trace(family: tuple[object, int]) -> None:
    model, n_heads = family
    rng = random.Random(9)
    with Session(model, PARAMS, n_draft_max=K) as session, Session(model, PARAMS) as plain:
        history = [rng.randrange(N_VOCAB) for _ in range(30)]
        session.decode(history, 0, prompt=True)
        plain.decode(history, 0)
        recorder = Recorder()
        drafter = MtpDrafter(session, recorder, n_heads)  # type: ignore[arg-type]
        drafter.begin(len(history))
        for n_verified in [0, 2, 1, 0, 3, 0]:
            history.append(rng.randrange(N_VOCAB))
            recorder.script, recorder.logits = [rng.randrange(N_VOCAB) for _ in range(K)], []
            drafts = drafter.propose(history, K)[:n_verified]
            session.decode([history[-1], *drafts], len(history) - 1)
            session.truncate(len(history))
            plain.decode([history[-1]], len(history) - 1)
        history.append(7)
        session.decode([7], len(history) - 1)
        plain.decode([7], len(history) - 1)
        np.testing.assert_allclose(session.logits, plain.logits, atol=1e-4)


def test_sequences_do_not_disturb_each_other(family: tuple[object, int]) -> None:
    """Three sequences in turn in one session, each against a session of its own."""
    model, _ = family
    rng = random.Random(11)
    with Session(model, PARAMS, n_draft_max=K, n_seq_max=3) as together:
        alone = [Session(model, PARAMS, n_draft_max=K) for _ in range(3)]
        histories = [[rng.randrange(N_VOCAB) for _ in range(20 + 15 * i)] for i in range(3)]
        for i, (session, history) in enumerate(zip(alone, histories, strict=True)):
            session.decode(history, 0, prompt=True)
            together.decode(history, 0, prompt=True, sequence=i)
            np.testing.assert_allclose(together.logits, session.logits, atol=1e-5)
        seen = [len(history) for history in histories]
        for turn in range(45):
            i = rng.randrange(3)
            session, history = alone[i], histories[i]
            history.append(rng.randrange(N_VOCAB))
            rows = history[seen[i] :]
            for step in range(K):
                position = seen[i] if step == 0 else len(history) - 1 + step
                session.draft(0, rows, position)
                together.draft(0, rows, position, sequence=i)
                np.testing.assert_allclose(together.draft_logits, session.draft_logits, atol=1e-4)
                rows = [rng.randrange(N_VOCAB)]
            seen[i] = len(history)
            n_verified, n_accepted = rng.randrange(K + 1), turn % (K + 1)
            drafts = [rng.randrange(N_VOCAB) for _ in range(n_verified)]
            session.decode([history[-1], *drafts], len(history) - 1, logits="all")
            together.decode([history[-1], *drafts], len(history) - 1, logits="all", sequence=i)
            np.testing.assert_allclose(together.logits, session.logits, atol=1e-5)
            history += drafts[:n_accepted]
            session.truncate(len(history))
            together.truncate(len(history), sequence=i)
        for session in alone:
            session.close()


def test_a_prompt_cannot_go_on_where_its_hidden_state_is_gone(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode(list(range(10)), 0, prompt=True)
        session.decode([1, 2, 3], 10, prompt=True)  # right behind what came before
        session.truncate(0)
        session.decode(list(range(10)), 0, prompt=True)
        try:
            session.truncate(5)
        except PymtpError:
            return  # recurrent states cannot go back over a prompt: refused as well
        with pytest.raises(PymtpError, match="cannot go on at position 5.*again from 0"):
            session.decode([7, 8, 9], 5, prompt=True)
        with pytest.raises(PymtpError, match="no hidden state of position 15"):
            session.draft(0, [3], 16)
        session.truncate(0)
        session.decode([7, 8, 9], 0, prompt=True)


def test_small_ubatches_hold_the_passes_of_all_heads(family: tuple[object, int]) -> None:
    model, n_heads = family
    params = ContextParams(n_ctx=256, n_ubatch=1, n_batch=1, n_threads=1, flash_attn="off")
    with Session(model, params, n_draft_max=K) as session:
        play(session, n_heads, n_prompt=3, n_rounds=12)


def test_one_context_hosts_trunk_and_heads(family: tuple[object, int]) -> None:
    model, _ = family
    before = pymtp.n_contexts()
    with Session(model, PARAMS, n_draft_max=K):
        assert pymtp.n_contexts() == before + 1
    assert pymtp.n_contexts() == before


def test_trunk_passes_are_prompt_ubatches_and_rounds(family: tuple[object, int]) -> None:
    model, n_heads = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        play(session, n_heads, n_prompt=70, n_rounds=10)
        assert session.counters.n_trunk_passes == 3 + 10
        assert session.counters.n_head_passes == 10 * K
        assert session.counters.n_catch_up_passes == 3 * n_heads


def test_steady_rounds_rebuild_no_graph(family: tuple[object, int]) -> None:
    model, n_heads = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        assert session.counters.n_trunk_builds == 0
        history = play(session, n_heads, n_prompt=30, n_rounds=20)
        before = session.counters
        play(session, n_heads, n_prompt=0, n_rounds=60, history=history)
        after = session.counters
    builds = after.n_trunk_builds + after.n_head_builds - before.n_trunk_builds - before.n_head_builds
    # the view of the cache grows by 256 cells at a time
    assert builds <= 12


def test_a_model_whose_memory_is_not_shared_yet_decodes_plainly(tmp_path: Path) -> None:
    path = write_qwen3next(tmp_path / "tiny.gguf")
    with pymtp.Model(path) as model:
        assert model.session.mtp_memory == "none"
        assert model.draft_max == 0
        assert model.draft_note == ("the memory of qwen3next models is not shared with MTP heads yet: plain decoding")
        generation = model.generate([1, 2, 3], max_tokens=10, ignore_eos=True)
        list(generation)
        assert len(generation.tokens) == 10
        assert generation.stats.drafted == 0
    with pytest.raises(UnsupportedModel, match="not shared with MTP heads yet.*--draft none"):
        pymtp.Model(path, draft="mtp")


def play(
    session: Session, n_heads: int, *, n_prompt: int, n_rounds: int, history: list[int] | None = None
) -> list[int]:
    """Rounds that accept 0, 1, ... drafts in turn."""
    rng = random.Random(3)
    recorder = Recorder()
    drafter = MtpDrafter(session, recorder, n_heads)  # type: ignore[arg-type]
    if history is None:
        history = [rng.randrange(N_VOCAB) for _ in range(n_prompt)]
        session.decode(history, 0, logits="last", prompt=True)
        drafter.begin(n_prompt)
        history.append(1)
    else:
        drafter.begin(len(history) - 2)
    for i in range(n_rounds):
        recorder.script, recorder.logits = [rng.randrange(N_VOCAB) for _ in range(K)], []
        drafts = drafter.propose(history, K)
        session.decode([history[-1], *drafts], len(history) - 1, logits="all")
        history += [*drafts[: i % (K + 1)], 2]
        session.truncate(len(history) - 1)
    return history


def test_rollback_then_decode_equals_fresh_decode(family: tuple[object, int]) -> None:
    model, n_heads = family
    with Session(model, PARAMS, n_draft_max=K) as session, Session(model, PARAMS) as fresh:
        history = play(session, n_heads, n_prompt=40, n_rounds=12)
        session.decode([history[-1]], len(history) - 1)
        fresh.decode(history, 0, logits="last")
        np.testing.assert_allclose(session.logits[0], fresh.logits[0], atol=1e-4)


def test_a_full_context_is_refused_and_changes_nothing(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([5] * session.n_ctx, 0, logits="last", prompt=True)
        before = session.logits.copy()
        with pytest.raises(ContextFull):
            session.decode([5], session.n_ctx)
        session.truncate(session.n_ctx - 1)
        session.decode([5], session.n_ctx - 1)
        np.testing.assert_allclose(session.logits, before, atol=1e-4)


def test_bad_rows_are_refused(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([1, 2, 3], 0, prompt=False)
        for tokens, position, reason in (
            ([N_VOCAB], 3, "not in the vocabulary"),
            ([-1], 3, "not in the vocabulary"),
            ([1], 5, "position 5 of sequence 0, but 3 is next"),
            ([], 3, "0 rows"),
        ):
            with pytest.raises(PymtpError, match=reason):
                session.decode(tokens, position)
        with pytest.raises(PymtpError, match="9 rows with logits in a pass: at most 4"):
            session.decode([1] * 9, 3, logits="all")
        with pytest.raises(PymtpError, match="4 drafts: 1 to 3"):
            session.draft_greedy(0, [1], 3, 4)
        with pytest.raises(PymtpError, match="head 7 is not one of"):
            session.draft(7, [1], 3)
        with pytest.raises(PymtpError, match="no hidden state of position 8"):
            session.draft(0, [1], 9)
        with pytest.raises(PymtpError, match="sequence 1 is not one of 1"):
            session.decode([1], 3, sequence=1)
