"""Requests in, text out, without a model."""

from __future__ import annotations

import pytest

from fake_session import N_VOCAB, FakeSession, plain_text
from pymtp.binding.library import ffi
from pymtp.errors import BackendError, ContextFull, InvalidParameter
from pymtp.sampling.params import SamplingParams
from pymtp.serving.batch import Batch
from pymtp.serving.generation import Generation
from pymtp.serving.sequence import Round, TokenSequence
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


class Halves(Letters):
    """Of a character of two bytes."""

    def piece(self, token: int) -> bytes:
        return E_ACUTE[token % 2 :][:1]


def batch(**options: int) -> Batch:
    return Batch(FakeSession(**options), Letters())  # type: ignore[arg-type]


def session_of(batch: Batch) -> FakeSession:
    return batch._session  # type: ignore[return-value]


def said(tokens: list[int]) -> str:
    return b"".join(map(Letters().piece, tokens)).decode(errors="replace")


def expected(prompt: str, n_tokens: int) -> str:
    return said(plain_text(Letters().tokenize(prompt), n_tokens))


def test_pieces_come_with_the_generation_that_they_belong_to() -> None:
    requests = batch(n_seq_max=2)
    made = [requests.submit(prompt, sampling=GREEDY, max_tokens=20, ignore_eos=False) for prompt in ("ab", "cd", "efg")]
    pieces: dict[Generation, str] = dict.fromkeys(made, "")
    for generation, piece in requests:
        pieces[generation] += piece
    assert list(pieces.values()) == [generation.text for generation in made]
    assert [generation.text for generation in made] == [said(generation.tokens) for generation in made]
    assert all(generation.finish_reason for generation in made)
    assert requests.stats.generated_tokens == sum(len(generation.tokens) for generation in made)


def test_the_last_piece_says_that_a_generation_is_done_also_if_it_is_empty() -> None:
    requests = batch()
    requests.submit("ab", sampling=GREEDY, max_tokens=0)
    assert [(piece, generation.finish_reason) for generation, piece in requests] == [("", "length")]


def test_requests_can_be_submitted_while_others_run() -> None:
    requests = batch(n_seq_max=2)
    first = requests.submit("ab", sampling=GREEDY, max_tokens=12, ignore_eos=True)
    followers = []
    for generation, _ in requests:
        if generation is first and generation.finish_reason is None and not followers:
            followers.append(requests.submit("xyz", sampling=GREEDY, max_tokens=5))
    assert followers[0].text == expected("xyz", 5)
    late = requests.submit("ab", sampling=GREEDY, max_tokens=3)  # it runs again
    assert [generation for generation, _ in requests][-1] is late
    assert late.text == expected("ab", 3)


def test_waiting_for_one_generation_runs_all_and_loses_nothing() -> None:
    requests = batch(n_seq_max=2)
    one, other = (requests.submit(prompt, sampling=GREEDY, max_tokens=15) for prompt in ("ab", "cd"))
    assert "".join(one) == one.text
    assert other.tokens != []
    assert "".join(piece for generation, piece in requests if generation is other) == other.text
    assert list(one) == list(requests) == []


def test_a_generation_that_is_closed_makes_room() -> None:
    requests = batch()
    first = requests.submit("ab", sampling=GREEDY, max_tokens=50)
    second = requests.submit("cd", sampling=GREEDY, max_tokens=10)
    next(first)
    first.close()
    first.close()
    assert list(first) == []
    assert first.finish_reason is None
    assert {generation for generation, _ in requests} == {second}
    assert second.text == expected("cd", 10)


def test_each_request_has_its_own_limit_seed_and_draft_length() -> None:
    requests = batch(n_seq_max=4)
    sampling = SamplingParams(temperature=1, seed=3)
    options = {"ignore_eos": True, "draft_pick": "greedy"}
    plain = requests.submit("ab", sampling=sampling, max_tokens=25, draft_max=0, **options)
    short = requests.submit("ab", sampling=sampling, max_tokens=25, draft_max=1, **options)
    longest = requests.submit("ab", sampling=sampling, max_tokens=25, draft_max=99, **options)
    other = requests.submit("ab", sampling=SamplingParams(temperature=1, seed=4), max_tokens=9, **options)
    list(requests)
    assert plain.tokens == short.tokens == longest.tokens
    assert other.tokens != plain.tokens[:9]
    assert [len(generation.stats.acceptance_per_position) for generation in (plain, short, longest)] == [0, 1, 3]


def test_a_character_that_is_split_between_tokens_comes_out_whole() -> None:
    requests = Batch(FakeSession(), Halves())  # type: ignore[arg-type]
    generation = requests.submit("ab", sampling=GREEDY, max_tokens=40, ignore_eos=True)
    pieces = list(generation)
    assert "é" in generation.text
    assert len(pieces) > 10
    assert "".join(pieces) == b"".join(map(Halves().piece, generation.tokens)).decode(errors="replace")


@pytest.mark.parametrize("draft_max", [0, 1, 3])
def test_a_stop_string_ends_a_text_before_its_first_character(draft_max: int) -> None:
    """Wherever it lies in the tokens of a round, its last one included."""
    options = {"sampling": GREEDY, "max_tokens": 30, "ignore_eos": True, "draft_max": draft_max}
    requests = batch()
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
    requests = batch()
    whole = requests.submit("ab", sampling=GREEDY, max_tokens=10)
    list(whole)
    generation = requests.submit("ab", sampling=GREEDY, max_tokens=10, stop=whole.text[-3:] + "!")
    assert "".join(generation) == whole.text
    assert generation.finish_reason == "length"


@pytest.mark.parametrize("vocabulary", [Letters(), Halves()])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_parts_tell_accepted_drafts_from_what_the_target_sampled(
    vocabulary: Letters, stops: bool, is_async: bool
) -> None:
    requests = Batch(FakeSession(is_async=is_async), vocabulary)  # type: ignore[arg-type]
    options = {"sampling": GREEDY, "max_tokens": 60, "ignore_eos": True, "draft_max": 3}
    whole = "".join(requests.submit("ab", **options))
    stop = (whole[-8:-4],) if stops else ()
    drafted: list[bool] = []  # of each token

    def report(sequence: TokenSequence, played: Round | None) -> object:
        drafted.extend(i < played.n_accepted for i in range(len(played.tokens)))  # type: ignore[union-attr]
        return original(sequence, played)

    original, requests._scheduler._report = requests._scheduler._report, report
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
    requests = batch(n_ctx=32)
    running = requests.submit("ab", sampling=GREEDY, max_tokens=10)
    with pytest.raises(
        ContextFull, match=r"the prompt has 32 tokens, the context only 32: shorten it or raise.*\(-c\)"
    ):
        requests.submit([1] * 32)
    for options in ({"max_tokens": -2}, {"draft_max": -1}, {"prompt": ""}):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            requests.submit(**{"prompt": "ab", **options})  # type: ignore[arg-type]
    assert "".join(running) == expected("ab", 10)


def test_a_generation_without_room_raises_and_the_others_go_on() -> None:
    requests = batch(n_seq_max=2, n_cells=70)
    large = requests.submit([5] * 60, sampling=GREEDY, max_tokens=40, ignore_eos=True)
    small = requests.submit("ab", sampling=GREEDY, max_tokens=30, ignore_eos=True)
    with pytest.raises(ContextFull):
        list(large)
    assert large.finish_reason == "context"
    assert large.text == said(large.tokens) != ""
    list(requests)
    assert (small.error, len(small.tokens)) == (None, 30)


@pytest.mark.parametrize("failure", [BackendError("out of memory"), KeyboardInterrupt()])
def test_a_failure_ends_the_batch_and_frees_the_session(failure: BaseException) -> None:
    requests = batch(n_seq_max=2)
    made = [requests.submit(prompt, sampling=GREEDY) for prompt in ("ab", "cd")]
    next(made[0])
    session_of(requests).failure = failure  # type: ignore[assignment]
    with pytest.raises(type(failure)):
        list(requests)
    assert [slot.tokens for slot in session_of(requests).slots] == [[], []]
    assert list(requests) == list(made[1]) == []
    assert made[0].tokens != []


def test_a_listener_is_told_how_far_a_prompt_is_before_there_is_text() -> None:
    requests = Batch(FakeSession(n_ubatch=16), Letters(), keep=True)  # type: ignore[arg-type]
    told: list[tuple[int, int]] = []
    list(requests.submit([5] * 40, max_tokens=3, ignore_eos=True, on_prompt=lambda *progress: told.append(progress)))
    assert told == [(16, 40), (32, 40), (40, 40)]
    told.clear()
    list(requests.submit([5] * 30 + [6] * 9, max_tokens=3, on_prompt=lambda *progress: told.append(progress)))
    assert told == [(39, 39)]  # 30 were in the cache


def test_what_a_listener_raises_ends_the_batch() -> None:
    def refuse(done: int, total: int) -> None:
        raise KeyboardInterrupt

    requests = batch(n_ubatch=16)
    generation = requests.submit([5] * 40, on_prompt=refuse)
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert session_of(requests).slots[0].tokens == []


def test_progress_shows_between_the_pieces_of_a_prompt() -> None:
    requests = batch(n_ubatch=16)
    generation = requests.submit([5] * 100, max_tokens=1)
    seen = []
    for _ in range(7):
        requests._step()
        seen.append(generation.stats.prompt_tokens)
    assert seen == [16, 32, 48, 64, 80, 96, 100]
