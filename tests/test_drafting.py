"""What the MTP drafter asks of a session, without a model."""

from __future__ import annotations

import numpy as np
import pytest

from fake_session import N_VOCAB, FakeSession, head_logits, plain_text
from pymtp.drafting.adaptive import AdaptiveDrafter
from pymtp.drafting.interface import ChainPicker, DraftRequest, NoDrafter
from pymtp.drafting.mtp import CATCH_UP, MtpDrafter
from pymtp.drafting.policy import AUTO_DRAFT_MAX, REVIEW
from pymtp.sampling.chain import Row, Sampler
from pymtp.sampling.distribution import Distribution
from pymtp.sampling.params import SamplingParams
from pymtp.serving.params import GenerationParams
from pymtp.serving.passes import run_round
from pymtp.serving.sequence import ShareResult, TokenSequence

GREEDY = SamplingParams(temperature=0)
PROMPT = [3, 1, 4, 1, 5]


class Picker(Sampler):
    """Must be asked for every draft, as a sampler with a history would be."""

    def __init__(self) -> None:
        super().__init__(GREEDY, n_vocab=N_VOCAB)
        self.draft_ban = None


def begin(
    session: FakeSession,
    drafter: MtpDrafter,
    *,
    slot: int = 0,
    prompt: list[int] = PROMPT,
    sampler: Sampler | None = None,
    draft_max: int = 3,
) -> TokenSequence:
    """A sequence whose prompt is decoded, with its first token sampled."""
    sampler = sampler or Sampler(GREEDY, n_vocab=N_VOCAB)
    sequence = TokenSequence(list(prompt), sampler, frozenset(), session.n_ctx, draft_max=draft_max)
    play(session, drafter, (slot, sequence))
    return sequence


def play(session: FakeSession, drafter: MtpDrafter, *seated: tuple[int, TokenSequence]) -> list[ShareResult]:
    shares = [sequence.share(slot, 64) for slot, sequence in seated]
    rounds = run_round(session, drafter, shares, len(shares), list)  # type: ignore[arg-type]
    for played in rounds:
        played.share.sequence.advance(played)
    return rounds


def pair(**options: int) -> tuple[FakeSession, MtpDrafter]:
    session = FakeSession(**options)
    return session, MtpDrafter(session)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", [Sampler(GREEDY, n_vocab=N_VOCAB), Picker()], ids=["fused", "step by step"])
def test_each_draft_is_the_heads_top_token_after_those_before_it(sampler: Sampler) -> None:
    session, drafter = pair()
    sequence = begin(session, drafter, sampler=sampler)
    prefix = list(sequence.history)
    (played,) = play(session, drafter, (0, sequence))
    assert len(played.proposal.drafts) == 3
    for draft in played.proposal.drafts:
        assert draft == head_logits(prefix).argmax()
        prefix.append(draft)


def test_a_draft_starts_from_the_newest_token_alone() -> None:
    session, drafter = pair()
    sequence = begin(session, drafter)
    for _ in range(10):
        newest = (sequence.history[-1], len(sequence.history) - 1)
        play(session, drafter, (0, sequence))
        ((chunk,),) = session.drafts[-1:]
        assert ([newest[0]], newest[1]) == (chunk.tokens, chunk.position)


def test_greedy_drafts_of_several_sequences_run_in_one_call() -> None:
    session, drafter = pair(n_seq_max=3)
    seated = [(slot, begin(session, drafter, slot=slot, prompt=[slot, 7])) for slot in range(3)]
    n_calls = len(session.drafts)
    play(session, drafter, *seated)
    assert len(session.drafts) == n_calls + 1


@pytest.mark.parametrize("kind", [Sampler, Picker])
def test_each_sequence_has_its_own_draft_length(kind: type[Sampler]) -> None:
    session, drafter = pair(n_seq_max=4)
    samplers = [Picker() if kind is Picker else Sampler(GREEDY, n_vocab=N_VOCAB) for _ in range(4)]
    seated = [(i, begin(session, drafter, slot=i, prompt=[i, 7], sampler=samplers[i])) for i in range(4)]
    before = len(session.drafts)
    for (_, sequence), n in zip(seated, (2, 0, 3, 1), strict=True):
        sequence.draft_max = n
    rounds = play(session, drafter, *seated)
    assert [len(played.proposal.drafts) for played in rounds] == [2, 0, 3, 1]
    rows = [[chunk.sequence for chunk in call] for call in session.drafts[before:]]
    # step by step, those that have all their drafts drop out
    assert rows == ([[0, 2, 3], [0, 2], [2]] if kind is Picker else [[0, 2, 3]])


@pytest.mark.parametrize("kind", [Sampler, Picker])
def test_a_draft_is_as_long_with_a_least_length_as_without(kind: type[Sampler]) -> None:
    session, drafter = pair()
    sequence = begin(session, drafter, sampler=Picker() if kind is Picker else Sampler(GREEDY, n_vocab=N_VOCAB))
    sequence.params = GenerationParams(draft_min=2)
    assert len(play(session, drafter, (0, sequence))[0].proposal.drafts) == 3


def test_sequences_that_ban_different_tokens_draft_in_separate_graphs() -> None:
    session, drafter = pair(n_seq_max=2)
    prompts = [[1, 7], [2, 7]]
    most_likely = int(head_logits([*prompts[1], plain_text(prompts[1], 1)[0]]).argmax())
    samplers = [Sampler(GREEDY, n_vocab=N_VOCAB), Sampler(GREEDY, n_vocab=N_VOCAB, banned=[most_likely])]
    seated = [(i, begin(session, drafter, slot=i, prompt=prompts[i], sampler=samplers[i])) for i in range(2)]
    n_calls = len(session.drafts)
    rounds = play(session, drafter, *seated)
    assert most_likely not in rounds[1].proposal.drafts
    assert [[chunk.sequence for chunk in call] for call in session.drafts[n_calls:]] == [[0], [1]]
    assert session.banned == [[], [most_likely]]
    n_calls = len(session.drafts)
    play(session, drafter, *seated)
    assert len(session.drafts) == n_calls + 2


def test_a_sequence_that_drafts_step_by_step_does_not_affect_the_fused_draft_of_others() -> None:
    session, drafter = pair(n_seq_max=3)
    samplers = [Sampler(GREEDY, n_vocab=N_VOCAB), Picker(), Sampler(GREEDY, n_vocab=N_VOCAB)]
    seated = [(i, begin(session, drafter, slot=i, prompt=[i, 7], sampler=samplers[i])) for i in range(3)]
    n_calls = len(session.drafts)
    rounds = play(session, drafter, *seated)
    assert [[chunk.sequence for chunk in call] for call in session.drafts[n_calls:]] == [[0, 2], [1], [1], [1]]
    for (_, sequence), one in zip(seated, rounds, strict=True):
        prefix = sequence.history[: one.share.end]
        for draft in one.proposal.drafts:
            assert draft == head_logits(prefix).argmax()
            prefix = [*prefix, draft]


def test_rounds_without_drafts_are_single_rows_that_skip_the_heads() -> None:
    session, drafter = pair()
    sequence = begin(session, drafter)
    sequence.draft_max = 0
    n_calls = len(session.drafts)
    for _ in range(5):
        play(session, drafter, (0, sequence))
        (chunk,) = session.passes[-1]
        assert (len(chunk.tokens), chunk.feed) == (1, False)
    assert len(session.drafts) == n_calls


@pytest.mark.parametrize("n_rounds", [3, 30, 300])
def test_the_first_draft_after_a_pause_catches_up_on_the_last_missed_positions(n_rounds: int) -> None:
    session, drafter = pair(n_ubatch=CATCH_UP + 1)
    sequence = begin(session, drafter)
    sequence.draft_max = 0
    n_calls = len(session.drafts)
    for _ in range(n_rounds):
        play(session, drafter, (0, sequence))
    assert len(session.drafts) == n_calls
    sequence.draft_max = 3
    tail = sequence.history[max(-1 - CATCH_UP, -1 - n_rounds) :]
    play(session, drafter, (0, sequence))
    (chunk,) = session.drafts[-1]
    assert chunk.tokens == tail
    assert session.passes[-1][0].feed
    play(session, drafter, (0, sequence))
    assert len(session.drafts[-1][0].tokens) == 1


@pytest.mark.parametrize(("draft_max", "n_heads"), [(0, 0), (1, 1), (3, 2)])
def test_only_heads_that_draft_see_the_prompt(draft_max: int, n_heads: int) -> None:
    session, drafter = pair(n_draft_max=3)
    begin(session, drafter, draft_max=draft_max)
    assert session.n_heads == 2
    assert (session.passes[-1][0].n_heads if draft_max else session.passes[-1][0].feed) == n_heads


@pytest.mark.parametrize("n_wait", [REVIEW, 4 * REVIEW])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_heads_that_surely_do_not_pay_do_not_see_prompts(steps: int, n_wait: int) -> None:
    session = FakeSession(n_draft_max=3, n_seq_max=2)
    drafter = AdaptiveDrafter(session, MtpDrafter(session), None)  # type: ignore[arg-type]
    choice = drafter.policy.choices[2]
    choice.steps, choice.n_wait = steps, n_wait
    picker = ChainPicker(Sampler(GREEDY, n_vocab=N_VOCAB), draws=False)
    fixed = DraftRequest(PROMPT, 0, 0, 0, len(PROMPT), picker, n_fed=3, n_sequences=2)
    adaptive = fixed._replace(n_fed=AUTO_DRAFT_MAX, adapts=True, slot=1)
    made = drafter.propose([fixed, adaptive])
    assert [each.n_heads for each in made] == [2, min(steps, 2) if n_wait > REVIEW else 2]


def test_only_heads_that_draft_see_verified_rows() -> None:
    session, drafter = pair(n_draft_max=3)
    sequence = begin(session, drafter)
    for n, n_heads in ((3, 2), (1, 1), (2, 2), (0, 0)):
        sequence.draft_max = n
        play(session, drafter, (0, sequence))
        assert session.passes[-1][0].n_heads == n_heads


def test_one_pass_of_the_heads_holds_all_sequences_that_catch_up() -> None:
    session, drafter = pair(n_ubatch=20, n_seq_max=4)
    seated = [(i, begin(session, drafter, slot=i, prompt=[i, 7])) for i in range(4)]
    for n in (0, 1):
        for _, sequence in seated:
            sequence.draft_max = n
        for _ in range(10):
            play(session, drafter, *seated)
    assert max(sum(len(chunk.tokens) for chunk in call) for call in session.drafts) == session.n_ubatch


def test_a_sequence_that_never_drafts_never_runs_the_heads() -> None:
    session, drafter = pair()
    sequence = TokenSequence(list(PROMPT), Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx, draft_max=0)
    for _ in range(100):
        play(session, drafter, (0, sequence))
    assert session.drafts == []
    assert session.slots[0].seen_end == 0


def test_plain_decoding_proposes_nothing() -> None:
    session = FakeSession()
    sequence = TokenSequence(list(PROMPT), Sampler(GREEDY, n_vocab=N_VOCAB), frozenset(), session.n_ctx, draft_max=3)
    rounds = run_round(session, NoDrafter(session), [sequence.share(0, 64)], 1, list)  # type: ignore[arg-type]
    assert not rounds[0].proposal.drafts
    assert not session.passes[0][0].feed


def test_a_draft_ends_where_no_token_is_allowed() -> None:
    class Barring(Picker):
        """Allows no token after `n_most` drafts."""

        def __init__(self, n_most: int) -> None:
            super().__init__()
            self.n_most = n_most

        def draft_distribution(self, row: Row) -> Distribution:
            self.n_most -= 1
            return super().draft_distribution(row if self.n_most >= 0 else np.full(N_VOCAB, -np.inf, np.float32))

    session = FakeSession(n_seq_max=3)
    drafter = MtpDrafter(session)  # type: ignore[arg-type]
    samplers = [Barring(0), Barring(1), Picker()]
    made = [begin(session, drafter, slot=i, prompt=[i, 5], sampler=one) for i, one in enumerate(samplers)]
    proposals = drafter.propose([one.draft_request(one.share(i, 64)) for i, one in enumerate(made)])
    assert [len(proposal.drafts) for proposal in proposals] == [0, 1, 3]
    assert [len(proposal.distributions) for proposal in proposals] == [0, 1, 3]
    assert [len(chunks) for chunks in session.drafts[-3:]] == [3, 2, 1]
