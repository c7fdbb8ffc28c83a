"""How much a sequence repeats itself."""

from __future__ import annotations

from pymtp.drafting.length.repetition import N_LOOKBACK, Repetition


def test_new_pairs_of_tokens_are_no_repetition() -> None:
    repetition = Repetition()
    repetition.observe(range(500))
    assert repetition.share == 0
    repetition.observe([7, 300])  # old tokens, a new pair
    assert repetition.share == 0


def test_a_repeated_phrase_raises_the_share_and_new_tokens_lower_it() -> None:
    repetition = Repetition()
    repetition.observe([1, 2, 3, 4, 5] * 2)
    assert 0 < repetition.share < 0.3
    repetition.observe([1, 2, 3, 4, 5] * 8)
    assert repetition.share > 0.95
    repetition.observe(range(100, 120))
    assert repetition.share < 0.2


def test_only_the_last_follower_of_a_pair_counts() -> None:
    repetition = Repetition()
    repetition.observe([1, 2, 3, 8, 1, 2, 4, 9, 1, 2])
    assert repetition.share == 0
    repetition.observe([4])
    after_the_last = repetition.share
    assert after_the_last > 0
    repetition.observe([7, 1, 2, 3])
    assert repetition.share < after_the_last


def test_a_sequence_can_repeat_its_prompt() -> None:
    prompt = list(range(100))
    repetition = Repetition(prompt * 3)
    assert repetition.share == 0  # repetitions within the prompt do not count
    repetition.observe([40])
    assert repetition.share == 0
    repetition.observe(range(41, 80))
    assert repetition.share > 0.9


def test_only_the_end_of_a_long_prompt_counts() -> None:
    repetition = Repetition(range(2 * N_LOOKBACK))
    repetition.observe(range(100, 200))
    assert repetition.share == 0
    repetition.observe(range(N_LOOKBACK + 100, N_LOOKBACK + 200))
    assert repetition.share > 0.9
