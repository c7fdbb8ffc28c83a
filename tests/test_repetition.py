"""How much a text repeats itself."""

from __future__ import annotations

from pymtp.drafting.length.repetition import N_LOOKED_BACK, Repetition


def test_a_text_that_says_new_things_does_not() -> None:
    text = Repetition()
    text.observe(range(500))
    assert text.share == 0
    text.observe([7, 300])  # old tokens, a new pair
    assert text.share == 0


def test_one_that_says_the_same_again_does() -> None:
    text = Repetition()
    text.observe([1, 2, 3, 4, 5] * 2)
    assert 0 < text.share < 0.3
    text.observe([1, 2, 3, 4, 5] * 8)
    assert text.share > 0.95
    text.observe(range(100, 120))
    assert text.share < 0.2


def test_what_followed_last_counts() -> None:
    text = Repetition()
    text.observe([1, 2, 3, 8, 1, 2, 4, 9, 1, 2])
    assert text.share == 0
    text.observe([4])
    after_the_last = text.share
    assert after_the_last > 0
    text.observe([7, 1, 2, 3])
    assert text.share < after_the_last


def test_a_text_can_repeat_its_prompt() -> None:
    prompt = list(range(100))
    text = Repetition(prompt * 3)
    assert text.share == 0  # the prompt's own repetitions are not the text's
    text.observe([40])
    assert text.share == 0
    text.observe(range(41, 80))
    assert text.share > 0.9


def test_of_a_long_prompt_the_end_can_be_repeated() -> None:
    text = Repetition(range(2 * N_LOOKED_BACK))
    text.observe(range(100, 200))
    assert text.share == 0
    text.observe(range(N_LOOKED_BACK + 100, N_LOOKED_BACK + 200))
    assert text.share > 0.9
