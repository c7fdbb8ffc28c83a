"""Requests in, text out, without a model."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from fake_session import N_VOCAB, FakeSession, plain_text
from jobs import scheduler_of
from pymtp.binding.library import ffi
from pymtp.drafting.mtp import MtpDrafter
from pymtp.errors import BackendError, Closed, ContextFull, InvalidParameter, PymtpError
from pymtp.sampling.params import SamplingParams
from pymtp.serving import scheduler as scheduler_module
from pymtp.serving.generation import Generation
from pymtp.serving.loop import EngineLoop
from pymtp.serving.make_sequence import ModelTraits
from pymtp.serving.params import GenerationParams, with_options
from pymtp.serving.request import Request
from pymtp.serving.sequence import ShareResult
from pymtp.text.stream import TextStream

GREEDY = SamplingParams(temperature=0)
EOG = 31
E_ACUTE = "é".encode()


class Letters:
    """A vocabulary: a letter for each token but the end."""

    size = N_VOCAB
    native = ffi.NULL
    suppressed: tuple[int, ...] = ()
    thinking_tags = None
    end_of_generation = frozenset({EOG})

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def piece(self, token: int) -> bytes:
        return b"" if token == EOG else bytes([ord("a") + token % 26])

    def piece_with(self, special: tuple[str, ...]) -> Callable[[int], bytes]:
        assert not special
        return self.piece


class Halves(Letters):
    """Of a character of two bytes."""

    def piece(self, token: int) -> bytes:
        return E_ACUTE[token % 2 :][:1]


class Engine:
    """What a model has of an engine: requests, a scheduler and its thread, on a session without an engine."""

    def __init__(self, session: FakeSession, vocabulary: Letters | None = None) -> None:
        self.session, self.vocabulary = session, vocabulary or Letters()
        self.scheduler = scheduler_of(session, MtpDrafter(session))  # type: ignore[arg-type]
        self.loop = EngineLoop(self.scheduler)
        self.setup = ModelTraits(
            self.vocabulary,  # type: ignore[arg-type]
            MtpDrafter.traits,
            session.n_ctx,
            session.n_draft_max,
        )

    def submit(
        self,
        prompt: Any,
        params: GenerationParams | None = None,
        *,
        on_prompt: Any = None,
        **options: object,
    ) -> Generation:
        asked = with_options(params or GenerationParams(), options)
        request = Request(prompt, asked, self.setup)  # type: ignore[arg-type]
        made = Generation(request, self.loop, self.vocabulary, on_prompt, owner=self)  # type: ignore[arg-type]
        self.loop.submit(request)
        return made

    def together(self, *requests: Callable[[], Generation]) -> list[Generation]:
        """Submitted in one go: all of them are in the first pass."""
        return self.loop.call(lambda: [request() for request in requests])


engines: list[Engine] = []


@pytest.fixture(autouse=True)
def closed_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scheduler_module, "REPORT_INTERVAL_S", 0.0)  # an update for each pass
    monkeypatch.setattr(scheduler_module, "REPORT_SHARE_S", 0.0)
    yield
    while engines:
        engines.pop().loop.close()


def engine(vocabulary: Letters | None = None, **options: int) -> Engine:
    engines.append(Engine(FakeSession(**options), vocabulary))
    return engines[-1]


def said(tokens: list[int]) -> str:
    return b"".join(map(Letters().piece, tokens)).decode(errors="replace")


def expected(prompt: str, n_tokens: int) -> str:
    return said(plain_text(Letters().tokenize(prompt), n_tokens))


def test_more_requests_than_slots_are_all_answered() -> None:
    requests = engine(n_seq_max=2)
    made = [requests.submit(prompt, sampling=GREEDY, max_tokens=20, ignore_eos=False) for prompt in ("ab", "cd", "efg")]
    assert ["".join(generation) for generation in made] == [generation.text for generation in made]
    assert [generation.text for generation in made] == [said(generation.tokens) for generation in made]
    assert all(generation.finish_reason for generation in made)
    n_tokens = requests.loop.call(lambda: requests.scheduler.report() or requests.scheduler.stats.generated_tokens)
    assert n_tokens == sum(len(generation.tokens) for generation in made)


def test_requests_can_be_submitted_while_others_run() -> None:
    requests = engine(n_seq_max=2)
    first = requests.submit("ab", sampling=GREEDY, max_tokens=300, ignore_eos=True)
    followers = []
    for _ in first:
        if not followers:
            followers.append(requests.submit("xyz", sampling=GREEDY, max_tokens=5))
    assert "".join(followers[0]) == expected("xyz", 5)
    late = requests.submit("ab", sampling=GREEDY, max_tokens=3)  # it runs again
    assert "".join(late) == expected("ab", 3)


def test_waiting_for_one_generation_runs_all_and_loses_nothing() -> None:
    requests = engine(n_seq_max=2)
    one, other = (requests.submit(prompt, sampling=GREEDY, max_tokens=15) for prompt in ("ab", "cd"))
    assert "".join(one) == one.text
    assert other.stats.generated_tokens > 0
    assert "".join(other) == other.text
    assert list(one) == list(other) == []


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_generation_cannot_be_copied(duplicate: Callable[[Generation], object]) -> None:
    """The end of the copy would be the end of the text."""
    generation = engine().submit("ab", sampling=GREEDY, max_tokens=15)
    with pytest.raises(TypeError, match="a generation cannot be copied"):
        duplicate(generation)
    assert "".join(generation) == generation.text != ""


def test_a_generation_that_is_closed_makes_room() -> None:
    requests = engine()
    first = requests.submit("ab", sampling=GREEDY, max_tokens=50)
    second = requests.submit("cd", sampling=GREEDY, max_tokens=10)
    next(first)
    first.close()
    first.close()
    assert list(first) == []
    assert first.finish_reason is None
    assert "".join(second) == expected("cd", 10)


def test_each_request_has_its_own_limit_seed_and_draft_length() -> None:
    requests = engine(n_seq_max=4)
    sampling = SamplingParams(temperature=1, seed=3)
    options = {"ignore_eos": True, "draft_pick": "greedy"}
    plain = requests.submit("ab", sampling=sampling, max_tokens=25, draft_max=0, **options)
    short = requests.submit("ab", sampling=sampling, max_tokens=25, draft_max=1, **options)
    longest = requests.submit("ab", sampling=sampling, max_tokens=25, draft_max=99, **options)
    other = requests.submit("ab", sampling=SamplingParams(temperature=1, seed=4), max_tokens=9, **options)
    for generation in (plain, short, longest, other):
        list(generation)
    assert plain.tokens == short.tokens == longest.tokens
    assert other.tokens != plain.tokens[:9]
    assert [len(generation.stats.acceptance_per_position) for generation in (plain, short, longest)] == [0, 1, 3]


def test_a_character_that_is_split_between_tokens_comes_out_whole() -> None:
    requests = engine(Halves())
    generation = requests.submit("ab", sampling=GREEDY, max_tokens=40, ignore_eos=True)
    pieces = list(generation)
    assert "é" in generation.text
    assert len(pieces) > 10
    assert "".join(pieces) == b"".join(map(Halves().piece, generation.tokens)).decode(errors="replace")


@pytest.mark.parametrize("draft_max", [0, 1, 3])
def test_a_stop_string_ends_a_text_before_its_first_character(draft_max: int) -> None:
    """Wherever it lies in the tokens of a round, its last one included."""
    options = {"sampling": GREEDY, "max_tokens": 30, "ignore_eos": True, "draft_max": draft_max}
    requests = engine()
    whole = requests.submit("ab", **options)
    list(whole)
    for at in range(26):
        for n in (1, 2, 4):
            stop = whole.text[at : at + n]
            first = whole.text.index(stop)
            generation = requests.submit("ab", stop=("never", stop), **options)
            pieces = list(generation)
            assert "".join(pieces) == generation.text == whole.text[:first]
            assert generation.tokens == whole.tokens[: first + n]
            assert generation.finish_reason == "stop"
            assert generation.stats.generated_tokens == len(generation.tokens)
            assert generation.stats.accepted <= len(generation.tokens)


def test_what_may_begin_a_stop_string_comes_out_when_the_text_ends_otherwise() -> None:
    requests = engine()
    whole = requests.submit("ab", sampling=GREEDY, max_tokens=10)
    list(whole)
    generation = requests.submit("ab", sampling=GREEDY, max_tokens=10, stop=whole.text[-3:] + "!")
    assert "".join(generation) == whole.text
    assert generation.finish_reason == "length"


@pytest.mark.parametrize("vocabulary", [Letters(), Halves()])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_parts_tell_accepted_drafts_from_what_the_target_sampled(
    vocabulary: Letters, stops: bool, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = engine(vocabulary, is_async=is_async)
    options = {"sampling": GREEDY, "max_tokens": 60, "ignore_eos": True, "draft_max": 3}
    whole = "".join(requests.submit("ab", **options))
    stop = (whole[-8:-4],) if stops else ()
    drafted: list[bool] = []  # of each token

    def report(request: Request, played: ShareResult | None, *, may_wait: bool) -> None:
        drafted.extend(i < played.n_accepted for i in range(len(played.tokens)))  # type: ignore[union-attr]
        original(request, played, may_wait=may_wait)

    original = Request.report
    monkeypatch.setattr(Request, "report", report)
    generation = requests.submit("ab", stop=stop, **options)
    parts, at = [], 0
    for piece in generation:
        parts += generation.parts(at, at + len(piece))
        at += len(piece)
    assert "".join(part for part, _ in parts) == generation.text
    assert (generation.text == whole) == (not stops)
    assert len({is_drafted for _, is_drafted in parts}) == 2
    found = [is_drafted for part, is_drafted in parts for _ in part]
    assert found == [is_drafted for part, is_drafted in generation.parts() for _ in part]
    decoder = TextStream()
    expected = []
    for token, is_drafted in zip(generation.tokens, drafted, strict=True):
        expected += [is_drafted] * len(decoder.push(vocabulary.piece(token)))
    assert found == [*expected, False][: len(generation.text)]


def test_a_request_that_cannot_be_met_is_refused_and_disturbs_nobody() -> None:
    requests = engine(n_ctx=32)
    running = requests.submit("ab", sampling=GREEDY, max_tokens=10)
    with pytest.raises(
        ContextFull, match=r"the prompt has 32 tokens, the context only 32: shorten it or raise.*\(n_ctx, -c\)"
    ):
        requests.submit([1] * 32)
    for options in ({"max_tokens": -2}, {"draft_max": -1}, {"prompt": ""}):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            requests.submit(**{"prompt": "ab", **options})  # type: ignore[arg-type]
    assert "".join(running) == expected("ab", 10)


def test_a_generation_without_room_raises_and_the_others_go_on() -> None:
    requests = engine(n_seq_max=2, n_cells=70)
    large = requests.submit([5] * 60, sampling=GREEDY, max_tokens=40, ignore_eos=True)
    small = requests.submit("ab", sampling=GREEDY, max_tokens=30, ignore_eos=True)
    with pytest.raises(ContextFull):
        list(large)
    assert large.finish_reason == "context"
    assert large.text == said(large.tokens) != ""
    list(small)
    assert (small.error, len(small.tokens)) == (None, 30)


def test_a_failure_of_the_model_ends_all_with_its_error_and_frees_the_session() -> None:
    work = engine(n_seq_max=2, n_ctx=50_000)
    request = partial(work.submit, sampling=GREEDY, ignore_eos=True)
    made = work.together(*(partial(request, prompt) for prompt in ("ab", "cd", "ef")))
    next(made[0])
    work.session.failure = BackendError("out of memory")
    for each in made:
        with pytest.raises(BackendError, match="out of memory"):
            list(each)
        assert list(each.tokens) == each.tokens
    assert [slot.tokens for slot in work.session.slots] == [[], []]
    # and it continues
    assert "".join(work.submit("ab", sampling=GREEDY, max_tokens=10)) == expected("ab", 10)


def test_a_listener_is_called_with_how_far_a_prompt_is_before_there_is_text() -> None:
    requests = engine(n_ubatch=16)
    calls: list[tuple[int, int]] = []
    options = {"max_tokens": 3, "cache_prompt": True, "on_prompt": lambda *progress: calls.append(progress)}
    list(requests.submit([5] * 30 + [6] * 10, ignore_eos=True, **options))
    assert calls == [(16, 40), (32, 40), (40, 40)]
    calls.clear()
    again = requests.submit([5] * 30 + [7] * 9, **options)
    list(again)
    assert calls == [(39, 39)]
    assert again.n_cached == 30


def test_what_a_listener_raises_ends_its_generation_alone() -> None:
    def refuse(done: int, total: int) -> None:
        raise KeyboardInterrupt

    work = engine(n_ubatch=16, n_seq_max=2)
    refused, other = (
        work.submit([5] * 40, on_prompt=refuse, ignore_eos=True),
        work.submit("ab", sampling=GREEDY, max_tokens=10),
    )
    with pytest.raises(KeyboardInterrupt):
        list(refused)
    assert "".join(other) == expected("ab", 10)
    work.loop.call(lambda: None)
    assert work.scheduler.is_idle
    assert [slot.tokens for slot in work.session.slots] == [[], []]


#
# threads and tasks
#


def test_four_threads_each_get_the_text_that_they_get_alone() -> None:
    for n_seq_max in (1, 4):
        work = engine(n_seq_max=n_seq_max)
        texts: dict[tuple[int, int], str] = {}

        def talk(i: int, work: Engine = work, texts: dict[tuple[int, int], str] = texts) -> None:
            for j in range(10):
                texts[i, j] = "".join(work.submit("ab" + "cdefghijklmn"[i] * j, sampling=GREEDY, max_tokens=5 + j))

        threads = [threading.Thread(target=talk, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for (i, j), text in texts.items():
            alone = engine().submit("ab" + "cdefghijklmn"[i] * j, sampling=GREEDY, max_tokens=5 + j)
            assert text == "".join(alone)
        assert len(texts) == 40


def test_a_text_that_two_threads_read_is_refused_to_the_second() -> None:
    work, gate = engine(), threading.Event()
    busy = threading.Thread(target=work.loop.call, args=(gate.wait,))
    busy.start()
    generation = work.submit("ab", sampling=GREEDY, max_tokens=10)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append("".join(generation)))
    reader.start()
    while not generation._is_read.locked():
        assert reader.is_alive()
    try:
        with pytest.raises(PymtpError, match="have one thread read it"):
            next(generation)
    finally:
        gate.set()
    for thread in (busy, reader):
        thread.join(30)
    assert found == [expected("ab", 10)]


def test_twenty_tasks_share_the_places() -> None:
    work = engine(n_seq_max=4)

    async def talk(i: int) -> str:
        return "".join([piece async for piece in work.submit("ab" + "c" * i, sampling=GREEDY, max_tokens=12)])

    async def main() -> list[str]:
        return await asyncio.gather(*(talk(i) for i in range(20)))

    alone = engine()
    assert asyncio.run(main()) == [
        "".join(alone.submit("ab" + "c" * i, sampling=GREEDY, max_tokens=12)) for i in range(20)
    ]


def test_a_text_that_is_wanted_whole_wakes_its_task_for_the_first_and_the_last_token_only() -> None:
    async def take(holds: bool) -> list[str]:
        generation = requests.submit("ab", **options)
        if holds:
            generation.hold_pieces()
        return [piece async for piece in generation]

    requests = engine()
    options = {"sampling": GREEDY, "max_tokens": 40, "ignore_eos": True, "draft_max": 0}
    whole = "".join(requests.submit("ab", **options))
    held = asyncio.run(take(True))
    assert "".join(held) == whole and len(held) <= 2 < len(asyncio.run(take(False)))


def test_a_task_that_is_cancelled_frees_its_place() -> None:
    work = engine(n_ctx=100_000)

    async def main() -> None:
        generation = work.submit("ab", sampling=GREEDY, ignore_eos=True)

        async def endless() -> None:
            async for _ in generation:
                pass

        task = asyncio.create_task(endless())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "".join([piece async for piece in work.submit("cd", sampling=GREEDY, max_tokens=10)]) == expected(
            "cd", 10
        )

    asyncio.run(main())


def test_a_generation_that_nobody_holds_any_more_frees_its_place() -> None:
    work = engine(n_ctx=100_000)
    next(work.submit("ab", sampling=GREEDY, ignore_eos=True))
    gc.collect()
    assert "".join(work.submit("cd", sampling=GREEDY, max_tokens=10)) == expected("cd", 10)


def test_closing_the_engine_ends_all_generations_with_a_clear_error() -> None:
    work = engine(n_ctx=100_000)
    running, waiting = (work.submit(prompt, sampling=GREEDY, ignore_eos=True) for prompt in ("ab", "cd"))
    next(running)
    work.loop.close()
    work.loop.close()
    for generation in (running, waiting):
        with pytest.raises(Closed, match="the model was closed before the text was complete"):
            list(generation)
    with pytest.raises(Closed):
        work.submit("ab")
    with pytest.raises(Closed):
        work.loop.call(lambda: None)


def test_a_generation_can_be_closed_in_any_callback() -> None:
    work = engine(n_seq_max=2, n_ubatch=16)
    made: list[Generation] = []

    def close_other(done: int, total: int) -> None:
        made[0 if done == total else 1].close()  # the other one while the prompt comes in, then itself

    made += work.together(
        lambda: work.submit([5] * 40, on_prompt=close_other, sampling=GREEDY, max_tokens=8, ignore_eos=True),
        lambda: work.submit([6] * 40, sampling=GREEDY, max_tokens=8, ignore_eos=True),
    )
    assert len(list(made[0])) <= 1  # what came with the end of the prompt
    assert list(made[1]) == []
    assert "".join(work.submit("cd", sampling=GREEDY, max_tokens=10)) == expected("cd", 10)


@pytest.mark.parametrize("waits", ["iterating", "in a task", "for a slot"])
def test_closing_a_generation_wakes_whoever_waits_for_it_in_another_thread(waits: str) -> None:
    work = engine(n_ctx=100_000)
    hold = threading.Event()
    blocked = threading.Thread(target=lambda: work.loop.call(hold.wait))  # the engine does nothing meanwhile
    blocked.start()
    generation = work.submit("ab", sampling=GREEDY, ignore_eos=True)

    async def task() -> None:
        async for _ in generation:
            pass

    def wait() -> None:
        if waits == "in a task":
            asyncio.run(task())
        else:
            list(generation)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    generation.close()
    waiting.join(10)
    assert not waiting.is_alive()
    hold.set()
    blocked.join()


def test_two_hundred_requests_of_which_a_third_is_cancelled() -> None:
    rng = random.Random(1)
    work = engine(n_seq_max=4, n_ubatch=48)
    expected_texts = {(n, m): expected("ab" + "c" * n, m) for n in range(8) for m in range(1, 30)}
    results: list[bool] = []

    def talk(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(50):
            n, m = rng.randrange(8), rng.randrange(1, 30)
            generation = work.submit("ab" + "c" * n, sampling=GREEDY, max_tokens=m, ignore_eos=False)
            if rng.random() < 1 / 3:
                for _ in range(rng.randrange(3)):
                    next(generation, None)
                generation.close()
                continue
            text = "".join(generation)
            results.append(text == expected_texts[n, m][: len(text)] and generation.finish_reason in ("eog", "length"))

    threads = [threading.Thread(target=talk, args=(rng.randrange(10**6),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) > 100
    assert all(results)
    work.loop.call(lambda: None)
    assert work.scheduler.is_idle
    assert all(slot.tokens == [] for slot in work.session.slots)


def test_a_request_that_waits_is_small() -> None:
    work = engine()
    params = GenerationParams(SamplingParams(temperature=1, dry_multiplier=0.8), max_tokens=100)
    block = threading.Event()
    started = threading.Thread(target=lambda: work.loop.call(block.wait))
    started.start()
    try:
        work.submit("ab", params).close()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        waiting = [work.submit("ab" * 50, params) for _ in range(200)]
        size = (tracemalloc.get_traced_memory()[0] - before) / len(waiting)
    finally:
        tracemalloc.stop()
        block.set()
        started.join()
    assert size < 4096


def test_a_text_goes_on_where_the_loop_that_began_it_was_closed() -> None:
    generation = engine().submit("abc", sampling=GREEDY, max_tokens=30)
    begun = asyncio.run(generation.take())
    rest = "".join(generation)
    assert begun is not None and begun + rest == generation.text == expected("abc", 30)
