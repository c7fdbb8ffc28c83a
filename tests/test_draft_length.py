"""How long drafts get, without a model: drafts are accepted at random, in rounds of known costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np
import pytest

from pymtp.drafting.length.adaptive import N_AT_FIRST, N_PLAIN_AT_FIRST, AdaptiveLength
from pymtp.drafting.length.costs import N_KNOWN, N_SETTLING, N_WARM_UP, RoundCosts
from pymtp.drafting.length.experience import Experience
from pymtp.drafting.length.policy import FixedLength

# a further row costs half as much as the first one, a draft step an eighth: as on a few CPU cores
VERIFY = {n: 1 + 0.5 * (n - 1) for n in range(1, 9)}
STEP = 0.125
WARM_UP = [77] * N_WARM_UP

Text = Callable[[np.random.Generator], float]
"""The confidence of a draft, which is also the probability that it is right."""
Outcome = tuple[list[int], list[float], list[bool]]


def easy(rng: np.random.Generator) -> float:
    return float(rng.beta(9, 1))


def hard(rng: np.random.Generator) -> float:
    return float(rng.beta(2, 6))


def mixed(rng: np.random.Generator) -> float:
    return easy(rng) if rng.random() < 0.5 else hard(rng)


def costs() -> RoundCosts:
    known = RoundCosts()
    for _ in range(N_SETTLING + N_WARM_UP + 1):
        known.observe(1, 0, verify_ms=VERIFY[1], draft_ms=0, rest_ms=0)
    for n_steps in range(1, 5):
        for n_rows, verify_ms in VERIFY.items():
            for _ in range(N_SETTLING + N_WARM_UP + 1):
                known.observe(n_rows, n_steps, verify_ms=verify_ms, draft_ms=STEP * n_steps, rest_ms=0)
    return known


new_tokens = count(10)


def new(i: int) -> int:
    """A token that no sequence has had yet."""
    return next(new_tokens)


def old(i: int) -> int:
    """A token that always follows the one before it."""
    return i % 10


def play(
    length: AdaptiveLength | FixedLength, text: Text, n_tokens: int, seed: int = 1, token: Callable[[int], int] = new
) -> tuple[float, list[int]]:
    """Tokens per millisecond, and the draft steps of each round."""
    rng = np.random.default_rng(seed)
    n_done, spent, drafted = 0, 0.0, []
    outcome: Outcome = [], [], []
    while n_done < n_tokens:
        n_steps = length.steps()
        length.begin_round()
        confidences = [text(rng) for _ in range(n_steps)]
        n = length.n_verified(confidences, drawn=False)
        length.observe(*outcome)
        n_right = 0
        while n_right < n_steps and rng.random() < confidences[n_right]:
            n_right += 1
        n_kept = min(n, n_right)
        tokens = [token(n_done + i) for i in range(1 + n_kept)]
        outcome = tokens, confidences, [i < n_right for i in range(min(n_kept + 1, n_steps))]
        n_done += 1 + n_kept
        spent += VERIFY[1 + n] + STEP * n_steps
        drafted.append(n_steps)
    return n_done / spent, drafted


@pytest.mark.parametrize("text", [easy, hard, mixed], ids=lambda text: text.__name__)
def test_it_is_about_as_fast_as_the_best_fixed_length_and_not_slower_than_plain(text: Text) -> None:
    fixed = [play(FixedLength(n), text, 4000)[0] for n in range(5)]
    adaptive, _ = play(AdaptiveLength(4, Experience(costs())), text, 4000)
    assert adaptive >= 0.95 * max(fixed)
    assert adaptive >= 0.97 * fixed[0]


def test_it_beats_every_fixed_length_on_a_mix_of_easy_and_hard_texts() -> None:
    """As on a list of prompts: each text is a sequence of its own."""

    def both(length: Callable[[], AdaptiveLength | FixedLength]) -> float:
        speeds = [play(length(), text, 300, seed)[0] for seed in range(10) for text in (easy, hard)]
        return len(speeds) / sum(1 / speed for speed in speeds)

    known = Experience(costs())
    assert both(lambda: AdaptiveLength(4, known)) > max(both(partial(FixedLength, n)) for n in range(5))


def test_it_notices_a_change_of_text_within_a_few_rounds() -> None:
    length = AdaptiveLength(4, Experience(costs()))
    _, before = play(length, easy, 300)
    assert np.mean(before[-20:]) > 1.5
    _, after = play(length, hard, 60)
    assert np.mean(after[20:]) < 1
    _, again = play(length, easy, 400)
    assert np.mean(again[-20:]) > 1.5
    # drafting was turned off recently, so it probes soon
    assert next(i for i, n in enumerate(again) if n > 0) <= 48


def test_it_only_probes_where_drafting_does_not_pay() -> None:
    _, drafted = play(AdaptiveLength(4, Experience(costs())), hard, 2000)
    n_probes = sum(n > 0 for n in drafted[200:])
    assert n_probes * STEP <= 0.02 * len(drafted[200:]) * VERIFY[1]


def test_expensive_probes_are_rare() -> None:
    known = costs()
    for _ in range(N_WARM_UP + 1):
        known.observe_probe(1, 3)
    length = AdaptiveLength(4, Experience(known))
    play(length, hard, 8000)
    _, drafted = play(length, hard, 4000)
    n_probes = sum(n > 0 for n in drafted)
    assert 0 < n_probes * 2 <= 0.006 * len(drafted)


def test_plain_rounds_are_measured_now_and_then_while_it_drafts() -> None:
    known = costs()
    length = AdaptiveLength(4, Experience(known))
    _, drafted = play(length, easy, 4000)
    assert 0 < drafted[400:].count(0) <= 0.04 * len(drafted[400:])
    speed = play(AdaptiveLength(4, Experience(costs())), easy, 4000)[0]
    assert speed > 0.97 * max(play(FixedLength(n), easy, 4000)[0] for n in range(5))
    # if they get cheaper and drafts do not, drafting is turned off
    for _ in range(20):
        known.observe(1, 0, verify_ms=0.3, draft_ms=0, rest_ms=0)
    for n_steps in range(1, 5):
        for n_rows, verify_ms in VERIFY.items():
            for _ in range(20):
                known.observe(n_rows, n_steps, verify_ms=verify_ms, draft_ms=STEP * n_steps, rest_ms=0)
    _, drafted = play(length, easy, 400)
    assert np.mean(drafted[-100:]) < 0.1


def test_it_turns_drafting_on_when_drafts_get_cheap() -> None:
    known = Experience(costs())
    for n in (1, 2, 3, 4):
        for _ in range(20):
            known.costs.observe(1 + n, n, verify_ms=1 + n, draft_ms=2 * n, rest_ms=0)
    play(AdaptiveLength(4, known), easy, 300)
    length, drafted = AdaptiveLength(4, known), []
    outcome: Outcome = [], [], []
    rng = np.random.default_rng(1)
    for _ in range(6000):
        n_steps = length.steps()
        length.begin_round()
        confidences = [easy(rng) for _ in range(n_steps)]
        n = length.n_verified(confidences, drawn=False)
        if n_steps == 1 and not length.keeps_up:
            known.costs.observe_probe(1 + n, 1.2)
        else:
            known.costs.observe(1 + n, n_steps, verify_ms=1 + 0.05 * n, draft_ms=0.1 * n_steps, rest_ms=0)
        length.observe(*outcome)
        outcome = [], confidences, [True] * n
        drafted.append(n_steps)
    assert np.mean(drafted[:100]) < 0.2
    assert np.mean(drafted[-100:]) > 1.5


def test_repetitive_passages_start_from_the_statistics_of_earlier_ones() -> None:
    known = Experience(costs())

    def lengths() -> tuple[list[int], list[int]]:
        """Draft steps of a hard passage, and of a repetitive, easy one after it."""
        length = AdaptiveLength(4, known)
        _, hard_ones = play(length, hard, 200)
        _, easy_ones = play(length, easy, 100, token=old)
        return hard_ones, easy_ones

    for _ in range(8):
        lengths()
    known.kinds[False].probe_plan.n_until = 1000  # so that no probe turns drafting on
    hard_ones, easy_ones = lengths()
    assert np.mean(hard_ones) < 0.2
    begin = next(i for i, n in enumerate(easy_ones) if n > 1)
    assert 10 <= begin <= 30  # as soon as the repetition shows
    assert np.mean(easy_ones[begin + 1 :]) > 1.5
    # statistics of repetitive passages do not affect other passages, in this sequence or the next
    _, after = play(AdaptiveLength(4, known), hard, 200)
    assert np.mean(after) < 0.2


def test_plain_rounds_are_measured_first() -> None:
    known = Experience()
    _, drafted = play(AdaptiveLength(4, known), easy, 60)
    assert drafted[: N_PLAIN_AT_FIRST + 1] == [*[0] * N_PLAIN_AT_FIRST, N_AT_FIRST]
    _, drafted = play(AdaptiveLength(4, Experience(costs())), easy, 60)
    assert drafted[0] == N_AT_FIRST


def test_whether_a_drawn_draft_is_verified_does_not_depend_on_those_after_it() -> None:
    length = AdaptiveLength(4, Experience(costs()))
    play(length, mixed, 400)
    first = [0.15, 0.2, 0.3, 0.5, 0.7, 0.9]
    for one in first:
        counts = [length.n_verified([one, *rest], drawn=True) for rest in ([0.01] * 3, [0.99] * 3)]
        assert (counts[0] > 0) == (counts[1] > 0)


def test_fixed_lengths_stop_at_drafts_of_low_confidence() -> None:
    assert FixedLength(3).n_verified([0.1, 0.1, 0.1], drawn=False) == 3
    assert FixedLength(3, p_min=0.5).n_verified([0.9, 0.6, 0.4, 0.9], drawn=False) == 2
    assert FixedLength(3, p_min=0.5, n_min=3).n_verified([0.9, 0.6, 0.4, 0.9], drawn=False) == 0
    # n_min would let the first draft's row depend on which token it became
    assert FixedLength(3, p_min=0.5, n_min=3).n_verified([0.9, 0.6, 0.4, 0.9], drawn=True) == 2


def test_the_table_shows_what_each_length_would_have_yielded() -> None:
    length = AdaptiveLength(2, Experience(costs()))
    play(length, easy, 300)
    none, one, two = length.table()
    assert (none.n_steps, none.draft_ms, none.verify_ms, none.n_verified, none.n_tokens) == (0, 0, 1, 0, 1)
    assert none.tok_s == pytest.approx(1000)
    assert (one.draft_ms, one.verify_ms, two.draft_ms, two.verify_ms) == (0.125, 1.5, 0.25, 2)
    assert 1 < one.n_tokens < two.n_tokens <= 3


def test_costs_are_medians_and_interpolated_where_nothing_was_measured() -> None:
    known = RoundCosts()
    assert known.verify_ms(3) == pytest.approx(1.3)
    assert known.draft_ms(2) == pytest.approx(0.2)
    for ms in (*[77] * N_SETTLING, *WARM_UP, 2, 2, 90):
        known.observe(1, 0, verify_ms=ms, draft_ms=0, rest_ms=0.5)
    assert (known.verify_ms(1), known.rest_ms(0), known.rest_ms(2)) == (2, 0.5, 0.5)
    assert known.verify_ms(2) == pytest.approx(2.3)
    for ms in (*[77] * N_SETTLING, *WARM_UP, 5):
        known.observe(4, 3, verify_ms=ms, draft_ms=0.9, rest_ms=0.8)
    assert known.verify_ms(2) == pytest.approx(3)
    assert known.verify_ms(5) == pytest.approx(6)
    assert (known.draft_ms(3), known.draft_ms(1)) == (0.9, pytest.approx(0.3))
    assert (known.rest_ms(3), known.rest_ms(1)) == (pytest.approx(0.8), pytest.approx(0.6))


def test_a_single_round_among_others_does_not_count() -> None:
    known = RoundCosts()
    for _ in range(40):
        known.observe(1, 0, verify_ms=3, draft_ms=0, rest_ms=0)
        known.observe(2, 1, verify_ms=4, draft_ms=1, rest_ms=0)
    assert not known.knows_plain
    assert not known.knows_drafts
    for _ in range(N_SETTLING + N_WARM_UP + N_KNOWN):
        known.observe(1, 0, verify_ms=1, draft_ms=0, rest_ms=0)
    assert (known.plain_ms, known.knows_drafts) == (1, False)
    for _ in range(N_SETTLING + N_WARM_UP + N_KNOWN):
        known.observe(2, 1, verify_ms=2, draft_ms=0.5, rest_ms=0)
    assert (known.plain_ms, known.verify_ms(2), known.draft_ms(1), known.knows_drafts) == (1, 2, 0.5, True)
    known.observe_probe(1, 9)
    for _ in range(N_SETTLING):
        known.observe(1, 0, verify_ms=9, draft_ms=0, rest_ms=0)
    assert known.plain_ms == 1


def test_costs_never_fall_with_more_rows_or_steps() -> None:
    known = RoundCosts()
    for n, ms in ((0, 1), (1, 99), (2, 2), (3, 99), (4, 4)):
        for _ in range(N_SETTLING + N_WARM_UP + 1):
            known.observe(1 + n, n, verify_ms=1 + ms, draft_ms=ms, rest_ms=ms)
    assert [known.verify_ms(n) for n in (1, 2, 3, 4, 5)] == [2, 3, 3, 5, 5]
    assert [known.draft_ms(n) for n in (1, 2, 3, 4)] == [2, 2, 4, 4]
    assert [known.rest_ms(n) for n in (1, 2, 3, 4)] == [2, 2, 4, 4]


def test_a_slower_machine_leaves_the_cost_of_drafts_in_plain_rounds_unchanged() -> None:
    known = RoundCosts()
    for pace in (1, 3):
        for n in (0, 2) if pace == 1 else (0,):
            for _ in range(20):
                known.observe(1 + n, n, verify_ms=pace * (1 + n), draft_ms=pace * n, rest_ms=pace * 0.5)
    assert known.plain_ms == pytest.approx(3 * 1.5)
    assert (known.verify_ms(3), known.draft_ms(2), known.rest_ms(2)) == pytest.approx((9, 6, 1.5))


def test_drafts_can_be_measured_before_plain_rounds() -> None:
    known = RoundCosts()
    for n in (2, 0):
        for _ in range(N_SETTLING + N_WARM_UP + 1):
            known.observe(1 + n, n, verify_ms=7 * (1 + n), draft_ms=7 * n, rest_ms=7)
        assert (known.verify_ms(3), known.draft_ms(2), known.rest_ms(2)) == pytest.approx((21, 14, 7))
    assert known.plain_ms == pytest.approx(14)


def test_several_sequences_can_be_measured_before_a_single_one() -> None:
    known = RoundCosts()
    for n_sequences in (2, 1):
        for _ in range(N_SETTLING + N_WARM_UP + 1):
            known.observe(n_sequences, 0, verify_ms=1 + 2 * n_sequences, draft_ms=0, rest_ms=0, n_sequences=n_sequences)
        if n_sequences == 2:
            for _ in range(N_SETTLING + N_WARM_UP + 1):
                known.observe(4, 1, verify_ms=9, draft_ms=2, rest_ms=1, n_sequences=2)
        assert (known.verify_ms(4 // n_sequences) * n_sequences, known.draft_ms(1)) == pytest.approx((9, 1))
    assert known.plain_ms == pytest.approx(3)


def test_sequences_share_the_cost_of_a_pass() -> None:
    known = RoundCosts()
    for _ in range(N_SETTLING + N_WARM_UP + 1):
        known.observe(4, 1, verify_ms=8, draft_ms=2, rest_ms=1, n_sequences=2)
        known.observe(2, 1, verify_ms=6, draft_ms=2, rest_ms=1, n_sequences=2)
    assert (known.verify_ms(1), known.verify_ms(2), known.draft_ms(1), known.rest_ms(1)) == (3, 4, 1, 0.5)


def test_a_probe_measures_what_it_adds_to_a_plain_round() -> None:
    known = costs()
    assert known.probe_ms == pytest.approx(1.5 * STEP)
    for ms in (*WARM_UP, 1.4):
        known.observe_probe(1, ms)
    assert known.probe_ms == pytest.approx(0.4)
    for _ in range(20):
        known.observe_probe(2, 9)  # its draft was kept
    assert known.probe_ms == pytest.approx(0.4)


def test_slow_first_passes_do_not_turn_drafting_off() -> None:
    """The first passes of several rows are slow, later ones cheap."""
    known = Experience()
    n_seen: Counter[int] = Counter()
    rng = np.random.default_rng(1)
    for _ in range(3):
        length, drafted = AdaptiveLength(4, known), []
        outcome: Outcome = [], [], []
        for _ in range(60):
            n_steps = length.steps()
            length.begin_round()
            confidences = [easy(rng) for _ in range(n_steps)]
            n = length.n_verified(confidences, drawn=False)
            n_seen[n] += 1
            verify_ms = 1 + 0.05 * n + (9 if n_seen[n] <= N_WARM_UP else 0)
            known.costs.observe(1 + n, n_steps, verify_ms=verify_ms, draft_ms=0.1 * n_steps, rest_ms=0.1)
            length.observe(*outcome)
            outcome = [], confidences, [True] * n
            drafted.append(n_steps)
    assert np.mean(drafted[-30:]) > 1.5
