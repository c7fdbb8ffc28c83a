"""The engine against llama.cpp's own two-context scheme, on tiny random models.

Drafts are scripted: some right (what the target itself would emit), then wrong, so that every number of accepted
drafts occurs.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

import pymtp
from contexts import ONE_FREED, ONE_MADE, contexts
from jobs import Ready, scheduler_of
from log_level import logged
from pymtp.acceptance.interface import Verdict, Verified
from pymtp.binding.arrays import Logits
from pymtp.drafting.mtp import MtpDrafter
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, LogitsRow, Session
from pymtp.errors import ContextFull, PymtpError, UnsupportedModel
from pymtp.sampling.chain import Sampler
from pymtp.sampling.distribution import Distribution
from pymtp.sampling.params import SamplingParams
from pymtp.serving.params import GenerationParams
from pymtp.serving.passes import run_round
from pymtp.serving.sequence import ShareResult, TokenSequence
from random_gguf import (
    N_VOCAB,
    write_glm4moe,
    write_granite_hybrid,
    write_jamba,
    write_mimo2,
    write_qwen3next,
    write_qwen35,
)
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


class Scripted:
    """Sampler and acceptance of a sequence: drafts the script, emits the text, keeps all logits."""

    draft_ban = None

    def __init__(self, text: list[int], n_prompt: int) -> None:
        self.text = text
        self.sequence = TokenSequence(
            text[:n_prompt],
            self,  # type: ignore[arg-type]
            frozenset(),
            PARAMS.n_ctx,
            draft_max=K,
            accept=self.accept,
        )
        self.drafts, self.n_emitted = [], 1

    def script(self, drafts: list[int], n_emitted: int) -> None:
        """What the next round drafts, and how many tokens it then emits."""
        self.drafts, self.n_emitted = drafts, n_emitted
        self.sequence.draft_max = len(drafts)
        self.draft_logits: list[Logits] = []

    def draft_distribution(self, row: LogitsRow) -> Distribution:
        self.draft_logits.append(row.logits.copy())
        return Distribution(np.array(self.drafts[len(self.draft_logits) - 1 :][:1], np.int32), np.ones(1))

    def assume(self, token: int) -> None:
        pass

    def forget(self) -> None:
        pass

    def accept(self, sampler: object, trial: Verified) -> Verdict:
        self.logits = np.array([row.logits for row in trial.rows])
        n = len(self.sequence.history)
        return Verdict(self.text[n : n + self.n_emitted], self.n_emitted - 1, [])


def play_turns(session: Session, drafter: MtpDrafter, sequences: dict[int, TokenSequence]) -> list[ShareResult]:
    """One round of the sequences, by slot; a prompt is decoded whole."""
    shares = [sequence.share(slot, 1000) for slot, sequence in sequences.items()]
    rounds = run_round(session, drafter, shares, len(shares), list)
    for played in rounds:
        played.share.sequence.advance(played)
    return rounds


def random_tokens(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(N_VOCAB) for _ in range(n)]


def greedy(model: object, prompt: list[int], n_tokens: int) -> list[int]:
    """The prompt and the target's own continuation, by plain decoding."""
    tokens = list(prompt)
    with Session(model, PARAMS) as plain:
        plain.decode([Chunk(prompt, 0)])
        while len(tokens) < len(prompt) + n_tokens:
            tokens.append(int(plain.logits[-1].argmax()))
            plain.decode([Chunk(tokens[-1:], len(tokens) - 1)])
    return tokens


def scripted(right: list[int], n_right: int, rng: random.Random) -> list[int]:
    """Drafts of which exactly the first `n_right` are right."""
    wrong = [(token + rng.randrange(1, N_VOCAB)) % N_VOCAB for token in right[n_right:]]
    return right[:n_right] + wrong


@pytest.mark.parametrize("n_rounds", [20, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n_sequences", "n_together", "kv_unified"),
    [(1, 1, True), (3, 1, True), (3, 1, False), (3, 3, True), (3, 3, False)],
    ids=["one", "three in turn", "three in turn, streams", "three together", "three together, streams"],
)
def test_logits_equal_those_of_llama_cpp_with_a_second_context(
    family: tuple[object, int], n_sequences: int, n_together: int, kv_unified: bool, n_rounds: int
) -> None:
    """Rounds of 0 to K drafts, of which none to all are right; each sequence has two contexts of its own to match."""
    model, n_heads = family
    rng = random.Random(7)
    # longer than an ubatch, and than the sliding window
    n_tokens = 4 * n_rounds + 10
    texts = [greedy(model, random_tokens(rng, n), n_tokens) for n in (77, 40, 101)[:n_sequences]]
    players = [Scripted(text, len(text) - n_tokens) for text in texts]
    references = [TwoContexts(model, PARAMS, n_heads) for _ in players]
    with Session(model, replace(PARAMS, kv_unified=kv_unified, n_seq_max=n_sequences), n_draft_max=K) as session:
        assert session.mtp_memory == "shared"
        drafter = MtpDrafter(session)
        play_turns(session, drafter, {slot: player.sequence for slot, player in enumerate(players)})
        for player, reference in zip(players, references, strict=True):
            prompt = player.sequence.history[:-1]
            for start in range(0, len(prompt), PARAMS.n_ubatch):  # the reference takes one ubatch at a time
                reference.decode(prompt[start : start + PARAMS.n_ubatch], start)
            np.testing.assert_allclose(player.logits[0], reference.logits[-1], atol=1e-5)

        pauses = [0] * n_sequences
        for _ in range(n_rounds * n_sequences // n_together):
            slots = sorted(rng.sample(range(n_sequences), n_together))
            for slot in slots:
                player, n = players[slot], len(players[slot].sequence.history)
                # often enough so long that no head is left behind by more than it catches up with
                pauses[slot] = 0 if pauses[slot] == 4 else pauses[slot] + 1
                n_draft = rng.choice([0, 1, K, K]) if pauses[slot] else K
                n_right = rng.randint(0, n_draft)
                player.script(scripted(player.text[n : n + n_draft], n_right, rng), n_right + 1)
            play_turns(session, drafter, {slot: players[slot].sequence for slot in slots})
            for slot in slots:
                check(players[slot], references[slot])
    for reference in references:
        reference.close()


def check(player: Scripted, reference: TwoContexts) -> None:
    """Play the player's last round in two contexts, and compare."""
    history = player.sequence.history[: -player.n_emitted]
    newest = len(history) - 1
    if player.drafts:
        reference.draft(history[-1], newest, player.drafts)
        np.testing.assert_allclose(player.draft_logits, reference.draft_logits, atol=1e-4)
    reference.decode([history[-1], *player.drafts], newest)
    np.testing.assert_allclose(player.logits, reference.logits, atol=1e-5)
    reference.truncate(len(player.sequence.history) - 1)


class Picker(Sampler):
    """Must be asked for every draft."""

    def __init__(self) -> None:
        super().__init__(SamplingParams(temperature=0), n_vocab=N_VOCAB)
        self.draft_ban = None


def test_heads_that_read_the_hidden_states_of_other_rows_give_other_logits(family: tuple[object, int]) -> None:
    """The comparison above can fail: with rows out of order, the logits differ a lot."""
    model, n_heads = family
    rng = random.Random(7)
    tokens = random_tokens(rng, 40)
    reference = TwoContexts(model, PARAMS, n_heads)
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk(tokens[:32], 0, feed=True)])
        reference.decode(tokens[:32], 0)
        session.draft(0, 1, [Chunk([5], 32)])
        reference.draft(5, 32, [1])
        np.testing.assert_allclose(session.draft_logits[0], reference.draft_logits[0], atol=1e-4)
        reference._hidden[0][-2:] = reference._hidden[0][[-1, -2]]
        reference.draft(5, 32, [1])
        assert np.abs(session.draft_logits[0] - reference.draft_logits[0]).max() > 1e-2
    reference.close()


def test_a_fused_draft_equals_one_drafted_step_by_step(family: tuple[object, int]) -> None:
    model, _ = family
    rng = random.Random(5)
    text = greedy(model, random_tokens(rng, 40), 120)
    samplers = [Sampler(SamplingParams(temperature=0), n_vocab=N_VOCAB), Picker()]
    with Session(model, PARAMS, n_draft_max=K) as one, Session(model, PARAMS, n_draft_max=K) as other:
        sequences = [TokenSequence(text[:40], sampler, frozenset(), 512, draft_max=K) for sampler in samplers]
        sessions = [(one, MtpDrafter(one)), (other, MtpDrafter(other))]
        for i in range(25):
            for sequence in sequences:
                sequence.draft_max = i % (K + 1)
            fused, single = (
                play_turns(session, drafter, {0: sequence})
                for (session, drafter), sequence in zip(sessions, sequences, strict=True)
            )
            assert fused[0].proposal.drafts == single[0].proposal.drafts
            assert fused[0].tokens == single[0].tokens
        assert sequences[0].history == text[: len(sequences[0].history)]
        assert one.counters.n_head_passes == 18


def test_a_fused_draft_of_several_sequences_equals_that_of_each_alone(family: tuple[object, int]) -> None:
    model, _ = family
    rng = random.Random(6)
    prompts = [random_tokens(rng, n) for n in (20, 35, 9)]
    with Session(model, replace(PARAMS, n_seq_max=3), n_draft_max=K) as session:
        session.decode([Chunk(prompt, 0, i, feed=True) for i, prompt in enumerate(prompts)])
        newest = [Chunk([5 + i], len(prompt), i) for i, prompt in enumerate(prompts)]
        drafts, likely = session.draft_tokens(newest, K, probs=True)
        probs = np.array(likely)
        assert np.shape(drafts) == probs.shape == (3, K)
        for i, prompt in enumerate(prompts):
            session.truncate(len(prompt), sequence=i)
        for i, chunk in enumerate(newest):
            assert session.draft_tokens([chunk], K)[0] == drafts[i : i + 1]
            session.truncate(len(prompts[i]), sequence=i)
        session.draft(0, 1, newest)
        exp = np.exp(session.draft_logits - session.draft_logits.max(axis=1, keepdims=True))
        np.testing.assert_allclose(probs[:, 0], exp.max(axis=1) / exp.sum(axis=1), rtol=1e-4)


def test_a_fused_draft_leaves_out_banned_tokens(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk(list(range(20)), 0, feed=True)])
        newest = [Chunk([5], 20)]
        (free,), _ = session.draft_tokens(newest, K)
        session.ban_tokens(free[:1])
        session.truncate(20)
        assert free[0] not in session.draft_tokens(newest, K)[0][0]
        session.ban_tokens([])
        session.truncate(20)
        assert session.draft_tokens(newest, K)[0] == [free]


def test_drafts_that_are_not_verified_leave_no_trace(family: tuple[object, int]) -> None:
    model, _ = family
    rng = random.Random(9)
    with Session(model, PARAMS, n_draft_max=K) as session, Session(model, PARAMS) as plain:
        history = random_tokens(rng, 30)
        session.decode([Chunk(history, 0, feed=True)])
        plain.decode([Chunk(history, 0)])
        for n_verified in [0, 2, 1, 0, 3, 0]:
            history.append(rng.randrange(N_VOCAB))
            newest = len(history) - 1
            (drafts,), _ = session.draft_tokens([Chunk(history[-1:], newest)], K)
            session.decode([Chunk([history[-1], *drafts[:n_verified]], newest, feed=True)])
            session.truncate(len(history))
            plain.decode([Chunk(history[-1:], newest)])
        session.decode([Chunk([7], len(history))])
        plain.decode([Chunk([7], len(history))])
        np.testing.assert_allclose(session.logits, plain.logits, atol=1e-4)


def test_a_slot_that_is_used_again_leaves_the_other_sequences_where_they_can_go_back(
    family: tuple[object, int],
) -> None:
    """Sequences of different lengths in a pass: recurrent states swap places when a new one comes between them."""
    model, _ = family
    rng = random.Random(8)
    with Session(model, replace(PARAMS, n_seq_max=3), n_draft_max=K) as session, Session(model, PARAMS) as fresh:
        histories = {slot: random_tokens(rng, 10 + 17 * slot) for slot in range(3)}
        for slot, history in histories.items():
            session.decode([Chunk(history, 0, slot)])
        session.truncate(0)
        late = Chunk(random_tokens(rng, 27), 0, 0, "none")
        for others in ([], [late]):
            rounds = [
                Chunk([7] + [9] * n_wrong, len(histories[slot]), slot, "all") for slot, n_wrong in ((1, 1), (2, 2))
            ]
            session.decode([*rounds, *others])
            for slot in (1, 2):
                histories[slot].append(7)
                session.truncate(len(histories[slot]), sequence=slot)
        for slot in (1, 2):
            session.decode([Chunk([11], len(histories[slot]), slot)])
            fresh.truncate(0)
            fresh.decode([Chunk([*histories[slot], 11], 0)])
            np.testing.assert_allclose(session.logits, fresh.logits, atol=1e-4)


@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "streams"])
def test_the_same_seed_gives_the_same_text_alone_and_together(family: tuple[object, int], kv_unified: bool) -> None:
    """Five sequences in three slots: prompts share passes with rounds, K from 0 to 3, slots are used again."""
    model, _ = family
    rng = random.Random(11)
    prompts = [random_tokens(rng, 10 + 9 * i) for i in range(5)]

    def generate(n_seq_max: int, *numbers: int) -> list[list[int]]:
        with Session(model, replace(PARAMS, kv_unified=kv_unified, n_seq_max=n_seq_max), n_draft_max=K) as session:
            scheduler = scheduler_of(session, MtpDrafter(session))
            sequences = []
            for i in numbers:
                sampler = Sampler(SamplingParams(temperature=0.5 * (i % 2), seed=i), n_vocab=N_VOCAB)
                sequences.append(
                    TokenSequence(
                        list(prompts[i]),
                        sampler,
                        frozenset(),
                        512,
                        GenerationParams(max_tokens=10 + 5 * i),
                        i % (K + 1),
                    )
                )
                scheduler.submit(Ready(sequences[-1]))
            while not scheduler.is_idle:
                scheduler.step()
        return [sequence.history for sequence in sequences]

    assert generate(3, 0, 1, 2, 3, 4) == [generate(1, i)[0] for i in range(5)]


def go_back(session: Session, position: int) -> None:
    try:
        session.truncate(position)
    except PymtpError as error:
        pytest.skip(str(error))


def test_heads_never_attend_to_positions_that_they_missed(family: tuple[object, int]) -> None:
    """Whatever the cells of the gap hold."""
    model, n_heads = family
    tokens = list(range(100, 200))
    logits = []
    for other in ([], [7] * 40, [9] * 40):
        with Session(model, PARAMS, n_draft_max=K, mtp_context="chained" if n_heads > 1 else "target") as session:
            session.decode([Chunk(tokens[:50], 0, feed=True)])
            if other:  # leaves the heads' K/V of another text in the cells
                session.decode([Chunk(other, 50, feed=True)])
                go_back(session, 50)
            session.decode([Chunk(tokens[50:90], 50)])
            assert (session.seen_end(0, 1), session.seen_end(0, K)) == (50, 50)
            session.draft(0, K, [Chunk(tokens[82:91], 82)])
            assert session.seen_end(0, K) == 50  # a draft alone leaves no trace
            session.decode([Chunk(tokens[90:95], 90, feed=True)])
            assert session.seen_end(0, K) == 95
            [drafts], [probs] = session.draft_tokens([Chunk([tokens[95]], 95)], K, probs=True)
            session.draft(0, K, [Chunk([tokens[95]], 95)])
            logits.append(np.concatenate([drafts, probs, np.ravel(session.draft_logits)]))
    np.testing.assert_array_equal(logits[1], logits[0])
    np.testing.assert_array_equal(logits[2], logits[0])


def test_heads_continue_without_the_hidden_state_of_a_dropped_row(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk(list(range(100)), 0)])
        go_back(session, 20)
        session.decode([Chunk([7, 8, 9], 20, feed=True)])
        assert session.seen_end(0, K) == 23
        drafts = session.draft_tokens([Chunk([3], 23)], K)
        session.truncate(0)
        session.decode([Chunk([*range(20), 7], 0)])
        session.decode([Chunk([8, 9], 21, feed=True)])
        assert session.draft_tokens([Chunk([3], 23)], K) == drafts


def test_heads_catch_up_from_where_hidden_states_are_kept_and_lose_nothing_before(family: tuple[object, int]) -> None:
    model, n_heads = family
    logits = []
    with Session(model, PARAMS, n_draft_max=K) as session:
        for catches_up in (False, True):
            session.decode([Chunk(list(range(100)), 0, feed=True, n_heads=1)])
            go_back(session, 30)  # hidden states are kept of the last positions only
            session.decode([Chunk([7, 8, 9], 30, feed=True, n_heads=1)])
            begin = session.seen_end(0, K)
            assert begin == (33 if n_heads == 1 else 31)
            if catches_up:
                session.draft_tokens([Chunk([*range(30), 7, 8, 9, 3][begin:], begin)], K)
            session.draft(0, 1, [Chunk([3], 33)])
            logits.append(session.draft_logits)
            session.truncate(0)
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-5)


def test_ubatches_are_at_least_large_enough_for_a_round_of_all_sequences(family: tuple[object, int]) -> None:
    model, _ = family
    params = ContextParams(n_ctx=256, n_ubatch=1, n_batch=1, n_seq_max=2, n_threads=1, flash_attn="off")
    with Session(model, params, n_draft_max=K) as session:
        assert session.n_ubatch >= 2 * (K + 1)
        play(session, n_prompt=3, n_rounds=12)


def test_one_context_hosts_trunk_and_heads(family: tuple[object, int], capfd: pytest.CaptureFixture[str]) -> None:
    model, _ = family
    with logged("debug"):
        with Session(model, PARAMS, n_draft_max=K):
            assert contexts(capfd) == ONE_MADE
        assert contexts(capfd) == ONE_FREED


def test_there_is_one_trunk_pass_per_prompt_ubatch_and_round(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        play(session, n_prompt=70, n_rounds=10)
        assert session.counters.n_trunk_passes == 3 + 10
        assert session.counters.n_head_passes == 10 * K


@pytest.mark.parametrize("write", [write_qwen3next, write_granite_hybrid])
def test_recurrent_states_go_back_over_rejected_drafts(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "tiny.gguf")
    sampling = SamplingParams(temperature=0, logit_bias=dict.fromkeys(range(5, 9), 100))  # for lookup to find something
    texts = []
    for options in ({"draft": "none"}, {"draft": "lookup", "draft_max": K}):
        with pymtp.Model(path, flash_attn="off", type_k="f32", type_v="f32", **options) as model:  # type: ignore[arg-type]
            drafts = options["draft"] != "none"
            generation = model.generate([5, 6, 7, 8, 5, 6, 8] * 4, sampling=sampling, max_tokens=60, ignore_eos=True)
            list(generation)
            texts.append(generation.tokens)
            assert (generation.stats.drafted > generation.stats.accepted) == drafts
    assert texts[0] == texts[1]


def test_a_model_whose_states_have_no_snapshots_decodes_plainly(tmp_path: Path) -> None:
    path = write_jamba(tmp_path / "tiny.gguf")
    with pymtp.Model(path, n_ctx=256) as model:
        assert list(model.generate([5, 6, 7, 8] * 4, temperature=0, max_tokens=20, ignore_eos=True))
        assert (model.stats.drafted, model.draft_note) == (0, None)
        with pytest.raises(PymtpError, match="keeps no snapshots of the states of jamba models; use n_draft_max = 0"):
            Session(model.vocabulary.native_model, PARAMS, n_draft_max=K, uses_heads=False)
    with pytest.raises(UnsupportedModel, match="no snapshots of the states of jamba models.*; use --draft none"):
        pymtp.Model(path, n_ctx=256, draft="lookup")


def play(session: Session, *, n_prompt: int, n_rounds: int) -> Callable[[int], list[int]]:
    """Rounds that accept 0, 1, ... drafts in turn. Returns what plays more of them; it returns the history."""
    rng = random.Random(3)
    player = Scripted(random_tokens(rng, 600), n_prompt)
    drafter = MtpDrafter(session)
    play_turns(session, drafter, {0: player.sequence})

    def rounds(n: int) -> list[int]:
        for i in range(n):
            n, n_right = len(player.sequence.history), i % (K + 1)
            player.script(scripted(player.text[n : n + K], n_right, rng), n_right + 1)
            play_turns(session, drafter, {0: player.sequence})
        return player.sequence.history

    rounds(n_rounds)
    return rounds


def test_rollback_then_decode_equals_fresh_decode(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session, Session(model, PARAMS) as fresh:
        history = play(session, n_prompt=40, n_rounds=12)(0)
        session.decode([Chunk(history[-1:], len(history) - 1)])
        fresh.decode([Chunk(history, 0)])
        np.testing.assert_allclose(session.logits[0], fresh.logits[0], atol=1e-4)


def test_a_full_context_is_refused_and_changes_nothing(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk([5] * session.n_ctx, 0, feed=True)])
        before = session.logits.copy()
        with pytest.raises(ContextFull):
            session.decode([Chunk([5], session.n_ctx)])
        session.truncate(session.n_ctx - 1)
        session.decode([Chunk([5], session.n_ctx - 1)])
        np.testing.assert_allclose(session.logits, before, atol=1e-4)


def test_bad_rows_are_refused(family: tuple[object, int]) -> None:
    model, _ = family
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk([1, 2, 3], 0)])
        for tokens, position, reason in (
            ([N_VOCAB], 3, "not in the vocabulary"),
            ([-1], 3, "not in the vocabulary"),
            ([1], 5, "position 5 of sequence 0, but 3 is next"),
            ([], 3, "at least one token long"),
        ):
            with pytest.raises(PymtpError, match=reason):
                session.decode([Chunk(tokens, position)])
        with pytest.raises(PymtpError, match="9 rows with logits in a pass: at most 4"):
            session.decode([Chunk([1] * 9, 3, logits="all")])
        with pytest.raises(PymtpError, match="a draft of 4: 1 to 3"):
            session.draft_tokens([Chunk([1], 3)], 4)
        with pytest.raises(PymtpError, match="step 2 of a draft of 2"):
            session.draft(2, 2, [Chunk([1], 3)])
        with pytest.raises(PymtpError, match="no hidden state of position 8"):
            session.draft(0, 1, [Chunk([1], 9)])
        with pytest.raises(PymtpError, match="sequence 1 is not one of 1"):
            session.decode([Chunk([1], 3, 1)])
