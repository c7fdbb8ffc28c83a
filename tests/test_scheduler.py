"""Many sequences in a session's slots, without a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from fake_session import N_VOCAB, FakeSession, plain_text
from jobs import Ready, Report, scheduler_of
from pymtp.drafting.adaptive import AdaptiveDrafter
from pymtp.drafting.mtp import MtpDrafter
from pymtp.drafting.policy import REVIEW, DraftPolicy, PassCosts
from pymtp.engine.session import Counters
from pymtp.errors import BackendError, ContextFull
from pymtp.sampling.chain import Sampler
from pymtp.sampling.params import SamplingParams
from pymtp.serving.params import GenerationParams
from pymtp.serving.passes import _rows_of_prompts
from pymtp.serving.scheduler import Scheduler
from pymtp.serving.sequence import ShareResult, TokenSequence

GREEDY = SamplingParams(temperature=0)


class Ticks:
    """A clock that advances by one second at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def scheduler(session: FakeSession, clock: Callable[[], float] | None = None) -> Scheduler:
    return scheduler_of(session, MtpDrafter(session), clock=clock or Ticks())  # type: ignore[arg-type]


def sequence(session: FakeSession, prompt: list[int], max_tokens: int = 20, **options: object) -> TokenSequence:
    sampler = Sampler(options.pop("sampling", GREEDY), n_vocab=N_VOCAB)  # type: ignore[arg-type]
    params = options.pop("params", GenerationParams())
    return TokenSequence(
        list(prompt),
        sampler,
        options.pop("stop", frozenset()),  # type: ignore[arg-type]
        session.n_ctx,
        replace(params, max_tokens=max_tokens),  # type: ignore[type-var]
        **{"draft_max": 3, **options},  # type: ignore[arg-type]
    )


def submit(
    scheduler: Scheduler, *sequences: TokenSequence, report: Report | None = None, cache_scope: str | None = None
) -> list[Ready]:
    jobs = [Ready(one, report, cache_scope=cache_scope) for one in sequences]
    for job in jobs:
        scheduler.submit(job)
    return jobs


def steps(scheduler: Scheduler) -> Iterator[None]:
    while not scheduler.is_idle:
        yield scheduler.step()


def run(scheduler: Scheduler) -> None:
    for _ in steps(scheduler):
        pass


def texts(*sequences: TokenSequence) -> list[list[int]]:
    return [one.history[one.n_prompt :] for one in sequences]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_reported_is_the_text(is_async: bool) -> None:
    session = FakeSession(n_seq_max=2, is_async=is_async)
    two = [sequence(session, [1, 2]), sequence(session, [3, 4], 7)]
    work = scheduler(session)
    jobs = submit(work, *two)
    run(work)
    assert [job.emitted for job in jobs] == texts(*two) == [plain_text([1, 2], 20), plain_text([3, 4], 7)]
    assert [one.finish_reason for one in two] == ["length", "length"]


def test_where_a_device_computes_a_pass_is_reported_while_the_next_one_is_under_way() -> None:
    session = FakeSession(is_async=True)
    reports: list[tuple[int, int]] = []  # how many passes had begun, and tokens reported

    def report(one: TokenSequence, played: ShareResult | None) -> None:
        assert played
        reports.append((len(session.passes), len(played.tokens)))

    work = scheduler(session)
    one = sequence(session, [1, 2], 30)
    submit(work, one, report=report)
    run(work)
    n = len(session.passes)
    # the prompt's own pass, with the first token, and the last one are waited for
    assert [at for at, _ in reports] == [1, *range(3, n + 1), n]
    assert sum(n_tokens for _, n_tokens in reports) == 30
    assert one.stats.generated_tokens == work.stats.generated_tokens == 30


def test_a_short_prompt_overtakes_a_long_one_that_goes_on_all_the_same() -> None:
    session = FakeSession(n_seq_max=3, n_ubatch=8, n_ctx=200)
    work = scheduler(session)
    long, other = sequence(session, [5] * 150, 1), sequence(session, [6] * 100, 1)
    submit(work, long, other)
    work.step()
    assert (long.n_decoded, other.n_decoded) == (4, 4)
    short = sequence(session, [1, 2], 1)
    submit(work, short)
    work.step()
    assert short.finish_reason == "length"
    assert (long.n_decoded, other.n_decoded) == (8, 6)


@pytest.mark.parametrize(
    ("lengths", "n_rows", "shares"),
    [
        ([], 8, []),
        ([3], 8, [3]),
        ([100], 8, [8]),
        ([100, 2], 8, [6, 2]),
        ([100, 100], 9, [9, 0]),
        ([100, 99], 9, [5, 4]),
        ([2, 100], 8, [2, 6]),
        ([100, 50, 3], 8, [4, 1, 3]),
        ([100, 3, 3, 3], 8, [4, 3, 1, 0]),
        ([3, 3], 0, [0, 0]),
    ],
)
def test_rows_are_shared_between_the_oldest_prompt_and_the_shortest(
    lengths: list[int], n_rows: int, shares: list[int]
) -> None:
    assert _rows_of_prompts(lengths, n_rows) == shares


def test_reports_amid_texts_may_wait_for_those_that_are_due_with_them() -> None:
    session, now = FakeSession(n_seq_max=2), [100.0]
    work = scheduler(session, clock=lambda: now[0])
    two = [sequence(session, [1, 2], 60), sequence(session, [3, 4], 60)]
    jobs = submit(work, *two)
    for _ in range(7):
        work.step()
        now[0] += 0.0041  # the interval is 0.01
    for job in jobs:  # the first token at once, the others if 10 ms have gone by
        assert job.may_wait == [False, True, True, False, True, True]


def test_what_was_not_reported_yet_is_reported_before_a_sequence_is_removed() -> None:
    session = FakeSession(is_async=True)
    work = scheduler(session)
    (job,) = submit(work, one := sequence(session, [1, 2]))
    work.step()
    work.step()
    assert len(job.emitted) < len(texts(one)[0])
    work.remove(job)
    assert job.emitted == texts(one)[0]


@pytest.mark.parametrize("n_seq_max", [1, 2, 5])
def test_a_sequence_says_the_same_whoever_runs_beside_it(n_seq_max: int) -> None:
    sampling = [SamplingParams(temperature=1, seed=i) for i in range(5)]
    prompts = [list(range(1, 4 + 7 * i)) for i in range(5)]
    alone = []
    for i in range(5):
        session = FakeSession()
        alone.append(sequence(session, prompts[i], 15 + i, sampling=sampling[i]))
        work = scheduler(session)
        submit(work, alone[i])
        run(work)
    session = FakeSession(n_seq_max=n_seq_max, n_ubatch=32)
    together = [sequence(session, prompts[i], 15 + i, sampling=sampling[i]) for i in range(5)]
    for i, one in enumerate(together):
        one.draft_max = i % 4
    work = scheduler(session)
    submit(work, *together)
    run(work)
    assert texts(*together) == texts(*alone)
    assert any(one.stats.accepted for one in together)


def test_sequences_without_a_slot_wait_for_the_next_free_one() -> None:
    session = FakeSession(n_seq_max=2)
    three = [sequence(session, [i, 1], n) for i, n in enumerate((5, 30, 5))]
    work = scheduler(session)
    submit(work, *three)
    for _ in steps(work):
        assert len(session.passes[-1]) <= 2
        assert not (three[0].finish_reason is None and three[2].n_decoded)
    assert texts(*three) == [plain_text([i, 1], n) for i, n in enumerate((5, 30, 5))]


def test_a_sequence_can_come_while_others_run() -> None:
    session = FakeSession(n_seq_max=2)
    first, late = sequence(session, [1, 2]), sequence(session, list(range(40)))
    work = scheduler(session)
    submit(work, first)
    for _ in range(3):
        work.step()
    submit(work, late)
    work.step()
    # the prompt of the one and the round of the other were one pass
    assert [len(chunk.tokens) for chunk in session.passes[-1]] == [4, 40]
    run(work)
    assert texts(first, late) == [plain_text([1, 2], 20), plain_text(list(range(40)), 20)]


def test_a_long_prompt_comes_in_pieces_that_leave_room_for_the_others() -> None:
    session = FakeSession(n_seq_max=2, n_ubatch=16)
    running, long = sequence(session, [1, 2], 100), sequence(session, [5] * 60, 1)
    work = scheduler(session)
    submit(work, running)
    work.step()
    submit(work, long)
    n_passes = len(session.passes)
    while long.finish_reason is None:
        n_before = len(running.history)
        work.step()
        assert len(running.history) > n_before
    passes = session.passes[n_passes:]
    assert [len(chunks[1].tokens) for chunks in passes] == [12] * 5
    assert [chunks[1].logits for chunks in passes] == ["none"] * 4 + ["last"]
    assert all(sum(len(chunk.tokens) for chunk in chunks) <= 16 for chunks in passes)


def test_prompts_share_a_pass_first_come_first_served() -> None:
    session = FakeSession(n_seq_max=3, n_ubatch=32)
    work = scheduler(session)
    submit(work, *(sequence(session, [i] * 14) for i in range(3)))
    work.step()
    assert [(chunk.sequence, len(chunk.tokens)) for chunk in session.passes[0]] == [(0, 14), (1, 14), (2, 4)]


def test_a_slot_that_is_used_again_carries_nothing_over() -> None:
    session = FakeSession()
    two = [sequence(session, [1, 2], sampling=SamplingParams(temperature=1, seed=4)) for _ in range(2)]
    work = scheduler(session)
    submit(work, two[0], sequence(session, [9, 8, 7, 6]), two[1])
    run(work)
    assert texts(two[0]) == texts(two[1])
    assert (session.slots[0].tokens, session.slots[0].seen_end) == ([], 0)


def test_drafting_can_pause_and_resume_in_the_middle_of_others() -> None:
    session = FakeSession(n_seq_max=3, n_ubatch=64)
    three = [sequence(session, [i, 1], 150) for i in range(3)]
    work = scheduler(session)
    submit(work, *three)
    for i, _ in enumerate(steps(work)):
        three[0].draft_max = 0 if i % 70 < 40 else 3
        three[1].draft_max = i % 4
    assert texts(*three) == [plain_text([i, 1], 150) for i in range(3)]
    assert three[0].stats.accepted > 0


def test_a_full_cache_takes_the_slot_of_the_newest_and_no_text_changes() -> None:
    session = FakeSession(n_seq_max=4, n_cells=150)
    many = [sequence(session, [i, 1, 2], 60) for i in range(6)]
    work = scheduler(session)
    submit(work, *many)
    slots = [{slot for slot, each in enumerate(session.slots) if each.tokens} for _ in steps(work)]
    assert texts(*many) == [plain_text([i, 1, 2], 60) for i in range(6)]
    assert max(map(len, slots)) > 2
    # 63 tokens each: two have room to the end, and others had begun
    assert sum(len(before - after) for before, after in itertools.pairwise(slots)) > 6
    assert all(each.error is None for each in many)


def test_a_sequence_without_room_ends_alone() -> None:
    session = FakeSession(n_seq_max=3, n_cells=70)
    small = [sequence(session, [i, 1], 10) for i in range(2)]
    large = sequence(session, [5] * 60, 40)
    work = scheduler(session)
    submit(work, small[0], large, small[1])
    run(work)
    assert texts(*small) == [plain_text([i, 1], 10) for i in range(2)]
    assert large.finish_reason == "context"
    assert isinstance(large.error, ContextFull)
    # what it had said by then stays
    assert texts(large) == [plain_text([5] * 60, len(texts(large)[0]))]
    assert session.slots[1].tokens == []
    submit(work, again := sequence(session, [5] * 60, 5))
    run(work)
    assert (again.error, texts(again)) == (None, [plain_text([5] * 60, 5)])


def test_a_failure_of_the_backend_is_raised() -> None:
    session = FakeSession(n_seq_max=2)
    work = scheduler(session)
    jobs = submit(work, sequence(session, [1, 2]), sequence(session, [3, 4]), sequence(session, [5, 6]))
    work.step()
    session.failure = BackendError("out of memory")
    with pytest.raises(BackendError) as failure:
        work.step()
    work.fail(failure.value)
    assert [job.error for job in jobs] == [failure.value] * 3
    assert work.is_idle
    assert [slot.tokens for slot in session.slots] == [[], []]
    submit(work, again := sequence(session, [1, 2]))
    run(work)
    assert texts(again) == [plain_text([1, 2], 20)]


def test_a_job_that_cannot_start_ends_alone() -> None:
    class Refused(Ready):
        def start(self) -> TokenSequence:
            raise ValueError("no")

    session = FakeSession()
    work = scheduler(session)
    refused = Refused(sequence(session, [1, 2]))
    work.submit(refused)
    submit(work, one := sequence(session, [3, 4]))
    run(work)
    assert str(refused.error) == "no"
    assert texts(one) == [plain_text([3, 4], 20)]


def test_planning_changes_nothing() -> None:
    session = FakeSession(n_seq_max=2)
    work = scheduler(session)
    sequences = [sequence(session, [i, 1], 30, draft_max=3) for i in range(2)]
    submit(work, *sequences)
    for _ in range(12):
        work.step()
        before = [one.history[:] for one in sequences], [slot.tokens[:] for slot in session.slots]
        plans = [work.plan() for _ in range(50)]
        assert all(plan == plans[0] for plan in plans)
        assert before == ([one.history for one in sequences], [slot.tokens for slot in session.slots])


def test_sequences_keep_their_own_draft_lengths_where_only_equal_rows_share_a_pass() -> None:
    session = FakeSession(n_seq_max=3)
    session.needs_equal_rows = True
    work = scheduler(session)
    three = [sequence(session, [i, 1], 40, draft_max=i) for i in range(3)]
    submit(work, *three)
    work.step()
    for _ in range(5):
        work.step()
        assert [len(chunk.tokens) for chunk in session.passes[-1]] == [1, 2, 3]
    run(work)
    assert texts(*three) == [plain_text([i, 1], 40) for i in range(3)]


def test_a_fixed_length_next_to_an_adaptive_one_stays_what_was_asked_for() -> None:
    """A row costs a second, so that drafts do not pay. The fixed one begins later than the other, and ends before."""
    session = FakeSession(n_seq_max=2)
    drafter = AdaptiveDrafter(session, MtpDrafter(session), None)  # type: ignore[arg-type]

    def clock() -> float:
        return sum(len(chunk.tokens) for chunks in session.passes for chunk in chunks)

    work = scheduler_of(session, drafter, policy=drafter.policy, clock=clock)  # type: ignore[arg-type]
    adaptive, fixed = sequence(session, [0, 1], 200, adapts=True), sequence(session, [1, 1], 60, draft_max=2)
    submit(work, adaptive)
    lengths: dict[int, list[int]] = {0: [], 1: []}
    for i, _ in enumerate(steps(work)):
        if i == 30:
            submit(work, fixed)
        for chunk in session.passes[-1]:
            lengths[chunk.sequence].append(len(chunk.tokens))
    assert texts(adaptive, fixed) == [plain_text([0, 1], 200), plain_text([1, 1], 60)]
    prompt, *rounds, _ = lengths[1]
    assert prompt == 2 and set(rounds) == {3}
    assert adaptive.stats.drafted > 0 and lengths[0][30 : 30 + len(rounds)].count(1) > len(rounds) / 2


def test_prompts_go_through_the_heads_that_all_who_run_will_use() -> None:
    """Also where few of them have rows in a pass yet."""
    session = FakeSession(n_seq_max=3, n_ubatch=8, n_ctx=100)
    drafter = AdaptiveDrafter(session, MtpDrafter(session), None)  # type: ignore[arg-type]
    drafter.policy.choices[3].n_wait = 8 * REVIEW  # sure of plain decoding, with three sequences
    work = scheduler_of(session, drafter, policy=drafter.policy, clock=Ticks())  # type: ignore[arg-type]
    submit(work, *(sequence(session, [i] * 8, 4, adapts=True) for i in range(3)))
    while not session.slots[2].tokens:
        work.step()
    assert {chunk.n_heads for chunks in session.passes for chunk in chunks if len(chunk.tokens) > 1} == {0}
    assert len(session.passes) >= 3


class NotingCosts(PassCosts):
    """Notes the rows of passes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def observe(self, steps: int, rows: int, n_sequences: int, ms: float) -> None:
        self.rows.append(rows)


def with_noted_costs(session: FakeSession) -> tuple[Scheduler, NotingCosts]:
    policy = DraftPolicy(4, has_heads=True)
    policy.costs = costs = NotingCosts()
    return scheduler_of(session, MtpDrafter(session), policy=policy), costs  # type: ignore[arg-type]


@pytest.mark.parametrize("needs_equal_rows", [True, False])
def test_a_pass_costs_the_policy_the_rows_that_were_computed(needs_equal_rows: bool) -> None:
    session = FakeSession(n_seq_max=2)
    session.needs_equal_rows = needs_equal_rows
    work, costs = with_noted_costs(session)
    submit(work, *(sequence(session, [i, 1], 40, draft_max=n) for i, n in enumerate((1, 3))))
    for _ in range(4):
        work.step()
    assert costs.rows[-1] == (8 if needs_equal_rows else 6)


def test_the_policy_learns_what_passes_cost_in_which_heads_catch_up() -> None:
    """Where lookup drafts for some sequences of a batch, the heads have always missed something."""
    session = FakeSession()
    work, costs = with_noted_costs(session)
    one = sequence(session, [0, 1], 40, draft_max=0)
    submit(work, one)
    for n in (0, 0, 0, 3, 3):
        one.draft_max = n
        work.step()
    n_rows = [len(chunk.tokens) for (chunk,) in session.drafts]
    assert n_rows == [5, 1]
    assert costs.rows == [1, 1, 4]  # not of the prompt, and the last pass is not counted yet


def test_what_is_prepared_of_logits_follows_the_sequences_that_run() -> None:
    session = FakeSession(n_seq_max=2)
    work = scheduler(session)
    few = sequence(session, [1, 2], 40)
    many = sequence(session, [3, 4], 5)
    few.sampler = Counting(10)
    many.sampler = Counting(900)
    submit(work, few)
    work.step()
    assert session.n_reduced == 10
    submit(work, many)
    work.step()
    assert session.n_reduced == 960
    while many.finish_reason is None:
        work.step()
    assert session.n_reduced == 10


class Counting(Sampler):
    """Looks at a given number of candidates."""

    def __init__(self, n: int) -> None:
        super().__init__(GREEDY, n_vocab=N_VOCAB)
        self._n = n

    @property
    def n_candidates(self) -> int:
        return self._n


def test_a_sequence_that_is_removed_frees_its_slot_or_its_place_in_the_queue() -> None:
    session = FakeSession()
    running, waiting, last = (sequence(session, [i, 1]) for i in range(3))
    work = scheduler(session)
    jobs = submit(work, running, waiting, last)
    work.step()
    work.remove(jobs[1])
    work.remove(jobs[0])
    work.remove(jobs[0])
    assert session.slots[0].tokens == []
    run(work)
    assert texts(last) == [plain_text([2, 1], 20)]
    assert texts(waiting) == [[]]


def test_a_prompt_is_decoded_also_if_no_token_is_wanted() -> None:
    session = FakeSession()
    work = scheduler(session)
    submit(work, none := sequence(session, [1, 2, 3], 0, stop=frozenset({3})))
    run(work)
    assert none.finish_reason == "length"
    assert (none.stats.prompt_tokens, none.stats.generated_tokens) == (3, 0)
    assert session.passes[0][0].logits == "none"


def test_a_text_ends_where_the_context_does() -> None:
    session = FakeSession(n_ctx=40)
    work = scheduler(session)
    submit(work, one := sequence(session, [1, 2, 3], -1))
    run(work)
    assert one.finish_reason == "context"
    assert len(one.history) == 41  # the last token needs no position
    assert texts(one) == [plain_text([1, 2, 3], 38)]


def test_counts_add_up_and_the_time_of_a_pass_is_shared_out() -> None:
    session = FakeSession(n_seq_max=3, n_ubatch=16)
    three = [sequence(session, [i] * 20, 10 + i) for i in range(3)]
    work = scheduler(session)
    submit(work, *three)
    run(work)
    parts = [one.stats for one in three]
    for name in ("prompt_tokens", "generated_tokens", "rounds", "drafted", "accepted"):
        assert getattr(work.stats, name) == sum(getattr(stats, name) for stats in parts)
    assert work.stats.prompt_tokens == 60
    assert work.stats.generated_tokens == 33
    # a second each
    assert work.stats.prompt_s + work.stats.generation_s == pytest.approx(len(session.passes))
    assert all(stats.prompt_s + stats.generation_s <= len(session.passes) for stats in parts)
    assert parts[0].prompt_s == 2


def n_prompt_rows(session: FakeSession, n_passes: int) -> int:
    """Rows of the passes from `n_passes` on that no round has."""
    chunks = [chunk for one in session.passes[n_passes:] for chunk in one]
    return sum(len(chunk.tokens) for chunk in chunks if chunk.logits != "all")


def test_a_kept_text_is_continued_with_what_is_new() -> None:
    session = FakeSession()
    work = scheduler(session)
    first = sequence(session, list(range(100)), 50)
    submit(work, first, cache_scope="")
    run(work)
    n_passes = len(session.passes)
    prompt = [*first.history, 7, 8, 9]
    second = sequence(session, prompt, 30)
    submit(work, second, cache_scope="")
    run(work)
    assert second.n_cached == len(first.history) - 1  # the last token was never decoded
    assert n_prompt_rows(session, n_passes) == second.stats.prompt_tokens == len(prompt) - second.n_cached
    assert texts(second) == [plain_text(prompt, 30)]
    assert second.stats.accepted


@pytest.mark.parametrize("draft_max", [0, 3])
@pytest.mark.parametrize("n_back", [1, 20, 145])
def test_a_kept_text_is_continued_from_anywhere(n_back: int, draft_max: int) -> None:
    session = FakeSession()
    work = scheduler(session)
    first = sequence(session, list(range(100)), 50)
    first.draft_max = 3 - draft_max  # the heads need not have seen it
    submit(work, first, cache_scope="")
    run(work)
    prompt = [*first.history[: len(first.history) - 1 - n_back], -1, 5]
    second = sequence(session, prompt, 30)
    second.draft_max = draft_max
    submit(work, second, cache_scope="")
    run(work)
    assert second.n_cached == len(prompt) - 2
    assert texts(second) == [plain_text(prompt, 30)]
    assert bool(second.stats.accepted) == (draft_max > 0)


def test_a_memory_that_cannot_go_back_begins_anew() -> None:
    session = FakeSession()
    session.goes_back = False
    work = scheduler(session)
    first = sequence(session, list(range(50)), 20)
    submit(work, first, cache_scope="")
    session.goes_back = True  # rounds go back over their own drafts
    run(work)
    session.goes_back = False
    prompt = [*first.history[:-5], -1, 2]
    second = sequence(session, prompt, 0)
    submit(work, second, cache_scope="")
    run(work)
    assert second.n_cached == 0
    assert session.slots[0].tokens == prompt


def test_a_text_goes_where_most_of_it_is_kept() -> None:
    session = FakeSession(n_seq_max=3)
    work = scheduler(session)
    firsts = [sequence(session, [i] * 30, 10) for i in range(3)]
    submit(work, *firsts, cache_scope="")
    run(work)
    for i in (1, 0, 2):
        again = sequence(session, [*firsts[i].history, 4], 5)
        submit(work, again, cache_scope="")
        run(work)
        assert again.n_cached >= len(firsts[i].history) - 2
        assert texts(again) == [plain_text([*firsts[i].history, 4], 5)]


def test_what_is_forgotten_leaves_the_cache() -> None:
    session = FakeSession(n_seq_max=2)
    work = scheduler(session)
    submit(work, sequence(session, [1, 2, 3]), sequence(session, [4, 5, 6]), cache_scope="")
    run(work)
    assert all(slot.tokens for slot in session.slots)
    work.admission.slots.empty()
    assert not any(slot.tokens for slot in session.slots)


class BusySession(FakeSession):
    """Half of a pass is the trunk's, a quarter the heads', an eighth the samplers'."""

    n_looks = 0

    @property
    def counters(self) -> Counters:
        self.n_looks += 1
        times = {
            f"t_{part}_us": us * self.n_looks
            for part, us in (("trunk", 500_000), ("head", 250_000), ("sample", 125_000))
        }
        return super().counters._replace(**times)


def test_a_generations_time_is_drafting_verifying_and_sampling() -> None:
    session = BusySession(n_seq_max=2)
    work = scheduler(session)
    one = sequence(session, [1, 2, 3], 20)
    submit(work, one)
    run(work)
    # the prompt's pass is none of it
    assert one.stats.generation_s == one.stats.rounds
    assert (one.stats.verify_s, one.stats.draft_s) == (one.stats.rounds / 2, one.stats.rounds / 4)
    assert (one.stats.sample_s, one.stats.python_s) == (one.stats.rounds / 8, one.stats.rounds / 8)
    # two that run together share a pass
    before, n_passes = work.stats.verify_s, len(session.passes)
    submit(work, *(sequence(session, [1, 2, 3], 20) for _ in range(2)))
    run(work)
    assert work.stats.verify_s - before == pytest.approx((len(session.passes) - n_passes - 1) / 2)


def test_two_conversations_keep_their_slots() -> None:
    session = FakeSession(n_seq_max=2)
    work = scheduler(session)
    texts_so_far = [[1, *[i + 5] * 30] for i in range(2)]
    for turn in range(4):
        for i in range(2):
            one = sequence(session, texts_so_far[i], 5)
            submit(work, one, cache_scope="")
            run(work)
            assert (one.n_cached > 20) == (turn > 0)
            texts_so_far[i] = [*one.history, 3]


class Immovable(FakeSession):
    """Its backend fails when positions shall move."""

    def discard(self, position: int, n: int, *, sequence: int = 0) -> None:
        raise BackendError("out of memory")


def test_a_backend_that_fails_while_positions_move_is_no_full_context() -> None:
    session = Immovable(n_ctx=16)
    work = scheduler(session)
    submit(work, sequence(session, [1, 2], 100, params=GenerationParams(n_keep=1)))
    with pytest.raises(BackendError, match="out of memory"):
        run(work)


def test_all_jobs_are_told_of_a_failure_also_one_that_has_just_ended() -> None:
    session = Immovable(n_ctx=16, n_seq_max=2)
    work = scheduler(session)
    short = sequence(session, [1, 2], 14, draft_max=0)
    long = sequence(session, [1, 2], 100, draft_max=0, params=GenerationParams(n_keep=1))
    jobs = submit(work, short, long)
    short.n_left += 1  # both end in the pass that fills the context
    with pytest.raises(BackendError) as caught:
        run(work)
    assert short.finish_reason and work.admission.running
    work.fail(caught.value)
    assert [job.error for job in jobs] == [caught.value] * 2
    assert work.is_idle


def test_a_job_whose_admission_fails_is_told_and_leaves_its_slot() -> None:
    class Broken(FakeSession):
        def truncate(self, position: int, *, sequence: int = 0) -> None:
            if self.failure:
                failure, self.failure = self.failure, None
                raise failure
            super().truncate(position, sequence=sequence)

    session = Broken()
    work = scheduler(session)
    (job,) = submit(work, sequence(session, [1, 2]))
    session.failure = RuntimeError("no")
    with pytest.raises(RuntimeError) as failure:
        work.step()
    work.fail(failure.value)
    assert job.error is failure.value
    submit(work, again := sequence(session, [1, 2]))
    run(work)
    assert texts(again) == [plain_text([1, 2], 20)]
