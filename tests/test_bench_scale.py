"""The simulation of many machines: what can be worked out by hand, and what a router is for."""

from __future__ import annotations

import pytest

from scale import ROUTERS, Costs, Split, Traffic, n_tokens_per_s, simulate

COSTS = Costs()


def test_a_busy_machine_makes_what_its_rounds_allow() -> None:
    """One long answer in each slot, all at once: nothing but rounds."""
    traffic = Traffic(n_turns=1, n_system=0, n_asked=1, n_answered=100_000)
    found = simulate(1, 200, 3, COSTS, traffic, ROUTERS["anywhere"])
    n_tokens = sum(found.first_s)  # requests wait for those before them
    assert found.n_requests > COSTS.n_slots and n_tokens > 0
    assert n_tokens_per_s(COSTS) == pytest.approx(16 * 2.8 / (2.8 + 3 * 0.35 + 64 * 0.33) * 1000)


def test_every_request_is_answered_once() -> None:
    traffic = Traffic(n_turns=3, pause_s=1)
    found = simulate(4, 2, 60, COSTS, traffic, ROUTERS["lighter"])
    assert found.n_requests == len(found.first_s) == pytest.approx(4 * 2 * 40, rel=0.15)
    assert min(found.first_s) > 0


def test_the_same_seed_gives_the_same() -> None:
    runs = [simulate(3, 2, 30, COSTS, Traffic(), ROUTERS["home"], seed=7).first_s for _ in range(2)]
    assert runs[0] == runs[1]


def test_conversations_that_come_home_find_their_prompts() -> None:
    found = {
        name: (lambda each: each.n_found / each.n_prompt)(simulate(20, 2, 60, COSTS, Traffic(), ROUTERS[name]))
        for name in ("anywhere", "home")
    }
    assert found["home"] > 0.8 > 0.6 > found["anywhere"]


def test_a_cache_that_is_too_small_keeps_nothing() -> None:
    costs = Costs(n_cache=500)
    found = simulate(1, 1, 60, costs, Traffic(n_system=0), ROUTERS["home"])
    assert found.n_found / found.n_prompt < 0.1


def test_drafting_gains_the_more_the_slower_the_network_is() -> None:
    gains = [
        Split(2, trip).tokens_per_s(COSTS, drafts=True) / Split(2, trip).tokens_per_s(COSTS, drafts=False)
        for trip in (0, 0.2, 1, 5, 1000)
    ]
    assert gains == sorted(gains)
    assert gains[-1] == pytest.approx(COSTS.length, rel=0.01)
