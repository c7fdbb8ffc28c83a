"""The figures of a report follow from its counts."""

from __future__ import annotations

import json

import pytest

from pymtp.serving.statistics import Stats


def stats_of(*rounds: tuple[int, int]) -> Stats:
    stats = Stats()
    for drafted, accepted in rounds:
        stats.add_round(drafted, accepted)
    return stats


def test_a_generation_without_rounds_has_no_rates() -> None:
    stats = Stats()
    assert (stats.rounds, stats.drafted, stats.accepted) == (0, 0, 0)
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length is None
    assert stats.acceptance_per_position == []


def test_a_difference_holds_what_was_added_since() -> None:
    earlier = Stats(3, 1.0, 5, 2.0, 0.5, 0.75, 0.25) + stats_of((2, 1))
    later = earlier + Stats(1, 0.5, 7, 4.0, 1.0, 2.0, 0.25) + stats_of((2, 1), (2, 0))
    since = later - earlier
    assert since == Stats(1, 0.5, 7, 4.0, 1.0, 2.0, 0.25) + stats_of((2, 1), (2, 0))
    assert (since.python_s, since.round_tokens) == (0.75, 3)


def test_rounds_without_drafts_count_but_have_no_acceptance_rate() -> None:
    stats = stats_of((0, 0), (0, 0))
    assert stats.rounds == 2
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length == 1


def test_acceptance_rate_is_accepted_over_drafted() -> None:
    stats = stats_of((3, 3), (3, 0), (2, 1))
    assert (stats.rounds, stats.drafted, stats.accepted) == (3, 8, 4)
    assert stats.acceptance_rate == pytest.approx(4 / 8)


def test_mean_acceptance_length_counts_the_recovered_or_bonus_token_of_every_round() -> None:
    assert stats_of((3, 3), (3, 0), (2, 1), (0, 0)).mean_acceptance_length == pytest.approx(1 + 4 / 4)


def test_a_positions_rate_counts_only_rounds_that_drafted_it() -> None:
    stats = stats_of((3, 3), (3, 1), (1, 1), (1, 0), (0, 0))
    assert stats.acceptance_per_position == pytest.approx([3 / 4, 1 / 2, 1 / 2])


def test_no_round_accepts_more_than_it_drafted() -> None:
    with pytest.raises(ValueError, match="cannot accept 2 of 1"):
        stats_of((1, 2))
    with pytest.raises(ValueError, match="cannot accept -1"):
        stats_of((1, -1))


def test_speeds_need_a_time() -> None:
    stats = Stats(prompt_tokens=10, generated_tokens=30)
    assert stats.prompt_tok_s is None
    assert stats.generation_tok_s is None
    stats.prompt_s, stats.generation_s = 0.5, 1.5
    assert stats.prompt_tok_s == pytest.approx(20)
    assert stats.generation_tok_s == pytest.approx(20)


def test_the_dictionary_is_json_under_the_documented_keys() -> None:
    stats = stats_of((2, 1))
    assert list(json.loads(json.dumps(stats.as_dict()))) == [
        "prompt_tokens",
        "prompt_tok_s",
        "generated_tokens",
        "generation_tok_s",
        "rounds",
        "drafted",
        "accepted",
        "acceptance_rate",
        "mean_acceptance_length",
        "acceptance_per_position",
    ]
    assert stats.as_dict()["acceptance_per_position"] == [1, 0]


def test_statistics_of_two_generations_are_separate() -> None:
    first, second = stats_of((1, 1)), stats_of((2, 0))
    assert (first.drafted, second.drafted) == (1, 2)
