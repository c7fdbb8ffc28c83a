"""A round of one and of several sequences, without a model."""

from __future__ import annotations

import pytest

from fake_session import N_VOCAB, FakeSession, plain_text
from pymtp.acceptance.interface import Verdict, Verified
from pymtp.acceptance.rejection import BLOCK_REJECTION
from pymtp.drafting.interface import DrafterTraits, DraftOutcome, DraftRequest, Proposal
from pymtp.drafting.mtp import MtpDrafter
from pymtp.errors import PymtpError
from pymtp.sampling.chain import Sampler
from pymtp.sampling.params import SamplingParams
from pymtp.serving.params import GenerationParams
from pymtp.serving.passes import run_round
from pymtp.serving.sequence import ShareResult, TokenSequence

GREEDY = SamplingParams(temperature=0)


class Scripted:
    """Proposes given drafts."""

    traits = DrafterTraits("scripted")

    def __init__(self, *drafts: list[int]) -> None:
        self.drafts = drafts
        self.observed: list[DraftOutcome] = []

    def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
        return [Proposal(list(drafts)) for drafts in self.drafts]

    def observe(self, outcomes: list[DraftOutcome]) -> None:
        self.observed = outcomes


def sequence(session: FakeSession, slot: int, prompt: list[int], **options: object) -> TokenSequence:
    """A sequence whose prompt is decoded, with its first token sampled."""
    made = TokenSequence(list(prompt), Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx, draft_max=3)
    for name, value in options.items():
        setattr(made, name, value)
    play(session, Scripted([]), (slot, made))
    return made


def play(session: FakeSession, drafter: object, *seated: tuple[int, TokenSequence]) -> list[ShareResult]:
    turns = [sequence.share(slot, 64) for slot, sequence in seated]
    rounds = run_round(session, drafter, turns, len(turns), list)  # type: ignore[arg-type]
    for played in rounds:
        played.share.sequence.advance(played)
    return rounds


@pytest.mark.parametrize("n_right", [0, 1, 2, 3])
def test_accepted_drafts_and_one_more_token_are_emitted_and_the_rest_rolled_back(n_right: int) -> None:
    session = FakeSession()
    one = sequence(session, 0, [1, 2])
    right = plain_text(one.history, 4)
    drafts = right[:n_right] + [(token + 1) % 32 for token in right[n_right:3]]
    (played,) = play(session, Scripted(drafts), (0, one))
    assert played.tokens == right[: n_right + 1]
    assert played.n_accepted == n_right
    assert session.slots[0].tokens == one.history[:-1]
    assert one.n_decoded == len(one.history) - 1


def test_sequences_with_different_accepted_lengths_share_one_pass() -> None:
    session = FakeSession(n_seq_max=3)
    seated = [(i, sequence(session, i, [i, 5])) for i in range(3)]
    right = [plain_text(one.history, 4) for _, one in seated]
    drafter = Scripted(right[0][:3], [], [right[2][0], right[2][1] + 1])
    n_passes = len(session.passes)
    rounds = play(session, drafter, *seated)
    assert len(session.passes) == n_passes + 1
    assert [played.n_accepted for played in rounds] == [3, 0, 1]
    assert [played.tokens for played in rounds] == [right[0], right[1][:1], right[2][:2]]
    assert [(each.tokens, each.n_accepted) for each in drafter.observed] == [
        (each.tokens, each.n_accepted) for each in rounds
    ]
    for slot, one in seated:
        assert session.slots[slot].tokens == one.history[:-1]


def test_a_prompt_shares_the_pass_and_samples_nothing_before_its_end() -> None:
    session = FakeSession(n_seq_max=2)
    running = sequence(session, 0, [1, 2])
    prompt = TokenSequence(list(range(10)), Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx)
    turns = [running.share(0, 64), prompt.share(1, 6)]
    drafter = Scripted([3, 4])
    rounds = run_round(session, drafter, turns, len(turns), list)  # type: ignore[arg-type]
    assert [chunk.logits for chunk in session.passes[-1]] == ["all", "none"]
    assert rounds[1].tokens == []
    for played in rounds:
        played.share.sequence.advance(played)
    assert prompt.n_to_decode
    assert [outcome.tokens for outcome in drafter.observed] == [rounds[0].tokens]  # nobody asked for the prompt's
    play(session, Scripted([]), (0, running), (1, prompt))
    assert [chunk.logits for chunk in session.passes[-1]] == ["all", "last"]
    assert prompt.history[10:] == plain_text(list(range(10)), 1)


def test_a_stop_token_inside_an_accepted_block_ends_the_sequence_there() -> None:
    session = FakeSession()
    one = sequence(session, 0, [1, 2])
    right = plain_text(one.history, 3)
    one.stop = frozenset({right[1]})
    (played,) = play(session, Scripted(right), (0, one))
    assert played.tokens == right[:2]
    assert played.n_accepted == 2
    assert one.finish_reason == "eog"
    assert session.slots[0].tokens == one.history[:-1]


@pytest.mark.parametrize("n_kept", [1, 2, 3, 4])
def test_a_cut_inside_an_accepted_block_leaves_a_matching_cache(n_kept: int) -> None:
    session = FakeSession()
    drafter = MtpDrafter(session)  # type: ignore[arg-type]
    one = sequence(session, 0, [1, 2])
    right = plain_text(one.history, 4)
    one.cut = lambda tokens: n_kept
    (played,) = play(session, Scripted(right[:3]), (0, one))
    assert played.tokens == right[:n_kept]
    assert played.n_accepted == min(n_kept, 3)
    assert one.finish_reason == "stop"
    assert session.slots[0].tokens == one.history[:-1]

    # the next turn continues after it, and its drafts follow from what was emitted
    turn = TokenSequence(
        [*one.history, 7, 8], Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx, draft_max=3
    )
    turn.n_decoded = one.n_decoded
    session.slots[0].seen_end = len(session.slots[0].tokens)
    for _ in range(20):
        play(session, drafter, (0, turn))
    assert turn.history[turn.n_prompt :] == plain_text([*one.history, 7, 8], len(turn.history) - turn.n_prompt)
    assert len(session.drafts) > 10


def test_each_sequence_has_its_own_acceptance_method() -> None:
    session = FakeSession(n_seq_max=2)

    def anything(sampler: object, trial: Verified) -> Verdict:
        return Verdict([*trial.drafts, 0], len(trial.drafts), [])

    lenient = sequence(session, 0, [1, 2], accept=anything)
    strict = sequence(session, 1, [1, 3])
    wrong = [(token + 1) % 32 for token in plain_text(strict.history, 1)]
    rounds = play(session, Scripted([8, 8], wrong), (0, lenient), (1, strict))
    assert [played.n_accepted for played in rounds] == [2, 0]


def test_drafts_stay_within_the_context_and_max_tokens() -> None:
    session = FakeSession(n_ctx=8)
    full = sequence(session, 0, [1] * 6)
    assert full.share(0, 64).n_draft == 1  # one position is left after the newest token's
    session = FakeSession()
    short = TokenSequence(
        [1, 2],
        Sampler(GREEDY, n_vocab=N_VOCAB),
        frozenset(),
        session.n_ctx,
        GenerationParams(max_tokens=3),
        draft_max=3,
    )
    play(session, Scripted([]), (0, short))
    assert short.share(0, 64).n_draft == 1  # two tokens are left, and a round emits one besides its drafts


def test_tokens_with_drafts_equal_plain_decoding() -> None:
    session = FakeSession()
    drafter = MtpDrafter(session)  # type: ignore[arg-type]
    one = TokenSequence([1, 2, 3], Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx, draft_max=3)
    accepted = sum(play(session, drafter, (0, one))[0].n_accepted for _ in range(60))
    assert accepted > 60
    assert one.history[3:] == plain_text([1, 2, 3], len(one.history) - 3)


def test_a_drafter_that_breaks_its_contract_is_named() -> None:
    session = FakeSession()
    one = sequence(session, 0, [1, 2])
    with pytest.raises(PymtpError, match="the drafter scripted proposed 4 tokens, 3 were asked for"):
        play(session, Scripted([1, 2, 3, 4]), (0, one))
    with pytest.raises(PymtpError, match="the drafter scripted made 2 proposals for 1 requests"):
        play(session, Scripted([1], [2]), (0, one))
    prompt = TokenSequence([1, 2, 3], Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx, draft_max=3)
    with pytest.raises(PymtpError, match="proposed 1 tokens, 0 were asked for"):
        play(session, Scripted([1]), (0, prompt))


def test_what_a_drafter_proposes_after_the_end_of_a_sequence_is_left_out() -> None:
    session = FakeSession()
    one = sequence(session, 0, [1, 2])
    right = plain_text(one.history, 3)
    one.stop = frozenset({right[0]})
    one.accept = BLOCK_REJECTION
    (played,) = play(session, Scripted(right), (0, one))
    assert played.proposal.drafts == right[:1]
    assert played.tokens == right[:1]
    assert one.finish_reason == "eog"
