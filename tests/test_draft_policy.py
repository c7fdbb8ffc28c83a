"""What a round drafts: costs that are measured, rates that are learned, and the plan that follows. Without a model."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from statistics import fmean, mode

import numpy as np
import pytest

from pymtp import Model
from pymtp.acceptance.forced import Forced
from pymtp.drafting.hints import DraftHints
from pymtp.drafting.policy import (
    AUTO_DRAFT_MAX,
    MATCH_KINDS,
    N_RECENT,
    NEW_SHARE,
    REVIEW,
    Candidate,
    DraftPlan,
    DraftPolicy,
    PassCosts,
    _fit,
)

Machine = Callable[[int, int, int], float]
"""Milliseconds of a pass by steps, rows and sequences."""


def n_drafts(plan: DraftPlan) -> int:
    return sum(plan.heads) + sum(plan.lookup)


def flat(steps: int, rows: int, n: int) -> float:
    """Memory-bound: further rows cost nearly nothing."""
    return 8 + 0.1 * rows + 0.5 * steps


def steep(steps: int, rows: int, n: int) -> float:
    """Compute-bound: no draft pays that is not nearly certain."""
    return 1 + 0.8 * (rows - n) + 0.2 * steps


def play(
    policy: DraftPolicy,
    machine: Machine,
    n_rounds: int,
    *,
    right: float = 0.7,
    n: int = 1,
    n_matched: int = 0,
    match_right: float = 0.9,
    seed: int = 1,
) -> tuple[list[DraftPlan], float]:
    """The plans of some rounds, and tokens a millisecond. Each draft is right with the probability that is given."""
    rng = random.Random(seed)
    rates = [policy.rates.begin() for _ in range(n)]
    plans, spent, n_tokens = [], 0.0, 0
    for _ in range(n_rounds):
        n_found = AUTO_DRAFT_MAX if n_matched else 0
        plan = policy.choose([Candidate(each, AUTO_DRAFT_MAX, n_matched, n_found) for each in rates], n)
        for each, heads, found in zip(rates, plan.heads, plan.lookup, strict=True):
            chance = right if heads else match_right
            kinds = list(range(heads)) if heads else MATCH_KINDS[n_matched : n_matched + found]
            n_tokens += 1
            shown: list[bool] = []
            while len(shown) < len(kinds) and all(shown):
                shown.append(rng.random() < chance)
            each.add(kinds, shown)
            policy.rates.add(kinds, shown)
            n_tokens += sum(shown)
        ms = machine(plan.steps, n + n_drafts(plan), n) * rng.uniform(0.95, 1.05)
        policy.costs.observe(plan.steps, n + n_drafts(plan), n, ms)
        plans.append(plan)
        spent += ms
    return plans, n_tokens / spent


def new(n_draft_max: int = AUTO_DRAFT_MAX, *, has_heads: bool = True, in_step: bool = False) -> DraftPolicy:
    return DraftPolicy(n_draft_max, has_heads=has_heads, in_step=in_step)


def best_fixed(machine: Machine, right: float, n: int = 1) -> float:
    return max(n * sum(right**i for i in range(k + 1)) / machine(k, n * (1 + k), n) for k in range(17))


@pytest.mark.parametrize("machine", [flat, steep])
@pytest.mark.parametrize("right", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("n", [1, 4])
def test_it_comes_close_to_the_best_fixed_length(machine: Machine, right: float, n: int) -> None:
    _, speed = play(new(), machine, 3000, right=right, n=n)
    assert speed > 0.94 * best_fixed(machine, right, n)


def test_plain_rounds_come_first_and_show_what_drafts_are_compared_with() -> None:
    plans, _ = play(new(), flat, 3)
    assert [n_drafts(plan) for plan in plans[:2]] == [0, 0]
    assert n_drafts(plans[2]) > 0


def test_other_lengths_are_tried_rarely_and_a_few_rounds_at_a_time() -> None:
    policy = new()
    play(policy, steep, 500, right=0.3)
    plans, _ = play(policy, steep, 2000, right=0.3)
    tried = [len(list(group)) for steps, group in groupby(plan.steps for plan in plans) if steps]
    assert 0 < sum(tried) < 60
    assert max(tried) <= REVIEW + 1


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("n_matched", [0, 24])
def test_many_sequences_begin_with_short_drafts(n_matched: int, in_step: bool) -> None:
    """What 64 or 512 rows cost is not known, even if drafts are hoped to be right."""
    plans, _ = play(new(in_step=in_step), flat, 200, right=0.95, n=32, n_matched=n_matched)
    most = [32]
    for rows in (32 + n_drafts(plan) for plan in plans):
        assert rows <= 2 * most[-1]
        most.append(max(most[-1], rows))
    assert most[-1] >= 128  # it goes on as far as pays


def test_a_length_that_pays_again_is_found_again() -> None:
    policy = new()
    play(policy, flat, 3000, right=0.02)
    _, speed = play(policy, flat, 3000, right=0.8)
    assert speed > 0.8 * best_fixed(flat, 0.8)


def test_without_a_match_and_without_heads_it_decodes_plainly() -> None:
    plans, _ = play(new(has_heads=False), flat, 50)
    assert not any(n_drafts(plan) for plan in plans)


def test_a_long_match_is_taken_before_the_heads_and_a_wrong_one_soon_is_not() -> None:
    policy = new()
    plans, _ = play(policy, flat, 100, right=0.3, n_matched=20, match_right=0.95)
    assert sum(plan.lookup[0] > 1 for plan in plans) > 80
    plans, _ = play(policy, flat, 100, right=0.8, n_matched=20, match_right=0.1)
    assert sum(plan.heads[0] > 0 for plan in plans[30:]) > 60


def test_each_sequence_of_a_batch_drafts_what_its_own_rates_are_worth() -> None:
    def price(steps: int, rows: int, n: int) -> float:
        return 8 + 2 * (rows - n) + 0.1 * steps

    policy = new(7)
    play(policy, price, 200, n=2)
    easy, hard = policy.rates.begin(), policy.rates.begin()
    for _ in range(50):
        for position in range(7):
            easy.add([position], [True])
            hard.add([position], [False])
    for steps in (0, 1, 3, 7):
        for rows in range(2, 2 + 2 * steps + 1):
            for _ in range(3 * N_RECENT):
                policy.costs.observe(steps, rows, 2, price(steps, rows, 2))
    plans = []
    for _ in range(10 * REVIEW):
        plan = policy.choose([Candidate(easy, 7), Candidate(hard, 7)], 2)
        policy.costs.observe(plan.steps, 2 + n_drafts(plan), 2, price(plan.steps, 2 + n_drafts(plan), 2))
        plans.append(plan)
    (of_easy, of_hard), _ = Counter(tuple(plan.heads) for plan in plans).most_common(1)[0]  # others are trials
    assert of_easy > 2
    assert of_hard == 0


def test_in_step_a_draft_of_one_sequence_costs_as_much_as_one_of_each() -> None:
    policy = new(4, in_step=True)
    rates = [policy.rates.begin() for _ in range(3)]
    for i, each in enumerate(rates):
        for _ in range(50):
            each.add([0], [i > 0])
    for _ in range(200):
        plan = policy.choose([Candidate(each, 4) for each in rates], 3)
        assert len(set(plan.heads)) == 1
        assert not any(plan.lookup)
        policy.costs.observe(plan.steps, 3 + n_drafts(plan), 3, flat(plan.steps, 3 + n_drafts(plan), 3))
    assert n_drafts(plan) > 0


def test_in_step_a_sequence_that_can_draft_little_does_not_hold_up_the_others() -> None:
    policy = new(7, in_step=True)
    plans = []
    for kind in range(7):
        for _ in range(200):
            policy.rates.add([kind], [True])
    for _ in range(200):
        asked = [Candidate(policy.rates.begin(), room) for room in (0, 1, 7)]
        plans.append(policy.choose(asked, 3))
        rows = 3 * (1 + max(plans[-1].heads))
        policy.costs.observe(plans[-1].steps, rows, 3, flat(plans[-1].steps, rows, 3))
    heads, _ = Counter(tuple(plan.heads) for plan in plans[50:]).most_common(1)[0]
    assert heads == (0, 1, 7)


def test_in_step_a_match_of_one_sequence_is_verified_if_as_many_rows_of_each_cost_little() -> None:
    def lookups(price: Callable[[int, int, int], float]) -> list[int]:
        policy = new(has_heads=False, in_step=True)
        for rows in (3, 3, 6, 6, 12, 12, 27, 27):
            policy.costs.observe(0, rows, 3, price(0, rows, 3))
        asked = [Candidate(policy.rates.begin(), 8), Candidate(policy.rates.begin(), 8, 20, 8)]
        return list(policy.choose(asked, 3).lookup)

    assert lookups(flat) == [0, 8]
    assert lookups(lambda steps, rows, n: float(rows)) == [0, 0]


def test_a_busy_moment_is_forgotten_within_64_rounds() -> None:
    speeds = []
    for seed in range(8):
        policy = new(has_heads=True)
        play(policy, lambda *key: 500 * flat(*key), 4, seed=seed)  # all that is known at first
        play(policy, flat, 64, right=0.8, seed=seed + 100)
        speeds.append(play(policy, flat, 500, right=0.8, seed=seed + 200)[1])
    assert fmean(speeds) > 0.94 * best_fixed(flat, 0.8)


def test_plain_rounds_that_a_busy_moment_made_look_slow_are_soon_measured_again() -> None:
    policy = new()
    play(policy, lambda *kind: 30 * steep(*kind), 4, right=0.5)
    plans, _ = play(policy, steep, 300, right=0.5)
    assert sum(plan.steps == 0 for plan in plans[100:]) > 150


@pytest.mark.parametrize("rows", [2, 5, 9, 16])
def test_a_first_figure_of_a_busy_moment_does_not_keep_lookup_from_long_drafts(rows: int) -> None:
    policy, seen = new(has_heads=True), Counter[int]()
    play(policy, flat, 20)

    def busy_once(steps: int, n_rows: int, n: int) -> float:
        seen[n_rows] += 1
        return flat(steps, n_rows, n) * (30 if n_rows == rows and seen[n_rows] == 1 else 1)

    plans, _ = play(policy, busy_once, 200, n_matched=20, match_right=1.0)
    assert all(n_drafts(plan) == AUTO_DRAFT_MAX for plan in plans[-50:])


def test_a_burst_of_load_does_not_move_a_median() -> None:
    costs = PassCosts()
    for ms in [1.0] * (N_RECENT + 1) + [50.0] * (N_RECENT // 2):
        costs.observe(0, 1, 1, ms)
    costs.table(0, 1, 0)
    for ms in [1.0] * 20:
        costs.observe(0, 1, 1, ms)
        assert costs.table(0, 1, 0) == [1.0]


def test_what_was_not_measured_lies_on_the_line_through_what_was() -> None:
    costs = PassCosts()
    for rows, ms in ((1, 10.0), (3, 12.0), (5, 14.0)):
        for _ in range(5):
            costs.observe(0, rows, 1, ms)
    assert costs.table(0, 1, 8)[:5] == pytest.approx([10, 11, 12, 13, 14], rel=0.01)
    assert costs.table(0, 1, 8)[8] == pytest.approx(18, rel=0.05)
    for _ in range(5):
        costs.observe(2, 3, 1, 20.0)
    assert costs.table(2, 1, 4)[2] == pytest.approx(20, rel=0.01)
    assert costs.table(2, 1, 4)[4] > 20
    assert 12 < costs.table(1, 1, 4)[1] < 20


@pytest.mark.parametrize("seed", range(10))
def test_the_fit_is_that_of_numpy(seed: int) -> None:
    rng = random.Random(seed)
    keys = sorted({(rng.choice([0, 1, 2, 4, 16]), rng.randint(1, 17), rng.choice([1, 2, 4])) for _ in range(20)})
    ms = [rng.uniform(0.3, 9) for _ in keys]
    points = [[1, rows, steps, steps * n] for steps, rows, n in keys]
    prior = np.diag([0.0, 1, 1, 1])
    of_row = min(each / rows for each, (_, rows, _) in zip(ms, keys, strict=True))
    target = NEW_SHARE * np.array([0, of_row, min(ms), 0])
    found = np.linalg.lstsq(np.vstack([points, prior]), np.concatenate([ms, target]), rcond=None)[0]
    assert _fit(dict(zip(keys, ms, strict=True))) == pytest.approx(np.maximum(found, 0).tolist(), rel=1e-6, abs=1e-9)


def test_more_rows_never_cost_less() -> None:
    costs = PassCosts()
    for rows, ms in ((1, 10.0), (2, 30.0), (3, 12.0)):
        for _ in range(5):
            costs.observe(0, rows, 1, ms)
    table = costs.table(0, 1, 6)
    assert table == sorted(table)


def test_a_short_match_of_one_sequence_in_a_batch_is_drafted() -> None:
    policy = new(has_heads=False)
    play(policy, flat, 20, n=8)
    rates = [policy.rates.begin() for _ in range(8)]
    asked = [Candidate(each, AUTO_DRAFT_MAX, *((40, 5) if i == 3 else ())) for i, each in enumerate(rates)]
    assert policy.choose(asked, 8).lookup == [0, 0, 0, 5, 0, 0, 0, 0]


def test_sequences_that_cannot_draft_count_as_rows_of_the_pass() -> None:
    policy = new()
    play(policy, flat, 300, n=4)
    asked = [Candidate(policy.rates.begin(), AUTO_DRAFT_MAX)]
    plans = [policy.choose(asked, 4) for _ in range(8 * REVIEW + 1)]
    assert {len(plan.heads) for plan in plans} == {1}
    assert max(plan.tokens for plan in plans) >= 4  # of those for which costs are looked at


def test_plain_rounds_of_a_busy_moment_do_not_look_slow_when_others_have_become_fast_again() -> None:
    def heads_look_better(steps: int, rows: int, n: int) -> float:
        return 1 + 0.4 * (rows - n) + 0.5 * steps

    policy = new()
    play(policy, heads_look_better, 200, right=0.2)  # plain rounds are known well
    costs = policy.costs
    for factor in (1, 4, 1):  # drafts before, in and after a busy moment, without a plain round
        for _ in range(3 * N_RECENT):
            policy.costs.observe(1, 2, 1, factor * heads_look_better(1, 2, 1))
        costs.refresh()
        assert costs.table(0, 1, 0)[0] * costs.pace == pytest.approx(factor * heads_look_better(0, 1, 1), rel=0.1)
        assert costs.table(0, 1, 0)[0] < costs.table(1, 1, 1)[1]


def test_prompts_are_left_to_the_trunk_once_the_heads_have_not_paid_for_a_while() -> None:
    policy = new()
    assert policy.heads_in_use(1) == AUTO_DRAFT_MAX
    play(policy, steep, 500, right=0.1)
    assert policy.heads_in_use(1) == 0
    assert policy.heads_in_use(8) == AUTO_DRAFT_MAX  # it is not sure yet
    policy = new()
    play(policy, flat, 500, right=0.8)
    assert policy.heads_in_use(1) >= 3


def padded(steps: int, rows: int, n: int) -> tuple[int, int, int]:
    """Fours of rows, and sequences by powers of two: as a device might compute them."""
    return steps, -(-rows // 4) * 4, 1 << (n - 1).bit_length()


def test_passes_that_are_computed_alike_cost_the_same_and_are_planned_alike() -> None:
    policy = DraftPolicy(AUTO_DRAFT_MAX, has_heads=True, shape=padded)
    plans, _ = play(policy, lambda *key: flat(*padded(*key)), 300, n=8)
    rates = [policy.rates.begin() for _ in range(7)]
    assert policy.choose([Candidate(each, AUTO_DRAFT_MAX) for each in rates], 7).steps == plans[-1].steps > 0
    costs = PassCosts(padded)
    for steps in (0, 0, 0, 2, 2, 2):
        costs.observe(steps, 16, 4, 10.0 + steps)
    costs.refresh()
    assert costs.table(2, 3, 13)[10:] == costs.table(2, 4, 12)[9:] == [12.0] * 4


def taught(machine: Machine, right: float, n: int = 1) -> DraftPolicy:
    policy = DraftPolicy(15, has_heads=True)
    play(policy, machine, 300, right=right, n=n)
    return policy


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(("machine", "right"), [(steep, 0.1), (flat, 0.9)])
def test_a_policy_goes_on_where_an_earlier_process_ended(
    machine: Machine, right: float, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, new, of_another = taught(machine, right, n), DraftPolicy(15, has_heads=True), DraftPolicy(15, has_heads=True)
    DraftHints("a model").keep(old)
    DraftHints("a model").give_to(new)
    DraftHints("another").give_to(of_another)
    assert new.heads_in_use(n) == old.heads_in_use(n) < of_another.heads_in_use(n)  # of prompts
    later, _ = play(old, machine, 40, right=right, n=n, seed=2)
    begun, _ = play(new, machine, 40, right=right, n=n, seed=2)
    fresh, _ = play(of_another, machine, 40, right=right, n=n, seed=2)
    lengths = [[plan.steps for plan in plans] for plans in (later, begun, fresh)]
    assert lengths[0].count(mode(lengths[0])) > 30
    assert lengths[1].count(mode(lengths[0])) > 30  # as if the process had not ended
    assert lengths[1][0] == mode(lengths[0]) and lengths[2][0] == 0


def test_hints_heal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which drafts took three times as long ends without them; later ones, of 60 rounds, find out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    DraftHints("a model").keep(taught(lambda steps, rows, n: (3 if steps else 1) * flat(steps, rows, n), 0.9))
    lengths = []
    for seed in range(7):
        policy = DraftPolicy(15, has_heads=True)
        DraftHints("a model").give_to(policy)
        lengths.append([plan.steps for plan in play(policy, flat, 60, right=0.9, seed=seed)[0]])
        DraftHints("a model").keep(policy)
    assert lengths[0].count(0) > 50
    assert sum(steps >= 3 for steps in lengths[-1]) > 50


@pytest.mark.parametrize(
    "change",
    [
        {"build": "another"},
        {"rates": []},
        {"rates": [2.0] * (AUTO_DRAFT_MAX + 6)},
        {"frequent": [3, 3, 3]},
        {"costs": [[0, 1, 1, float("nan"), 0]]},
        {"costs": [[0, 1, 1, -1.0, 0]]},
        {"costs": [[0, 1, 1, 1.0]]},
        {"costs": 7},
        {"costs": [[0, 1, 1, 5e-324, 0]], "frequent": [0, 1, 1]},
        {"choices": [[1, 2, 8, 8, [0] * 5]]},
        {"choices": [[1, 3, 1 << 70, 8, [0] * 5]]},
        {"choices": [[1, float("inf"), 8, 8, [0] * 5]]},
        {"choices": [[1, 3, 8, 9, [0] * 5]]},
        {"choices": [[1, 3, 8, 8, [0] * 4]]},
        {"choices": [[1, 3, 8, 8, [-5] * 5]]},
        {"choices": [[1, 3, 8, 8, [1 << 2000] * 5]]},
    ],
    ids=str,
)
def test_hints_that_are_not_sound_are_left(
    change: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hints, policy = DraftHints("a model"), DraftPolicy(15, has_heads=True)
    hints.keep(taught(flat, 0.9))
    (path,) = tmp_path.glob("**/*.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | change))
    hints.give_to(policy)
    assert not policy.costs.known and not policy.choices and policy.heads_in_use(1) == AUTO_DRAFT_MAX
    for text in ("", "[", "[]", "null", "[" * 10000):
        path.write_text(text)
        hints.give_to(policy)
        assert not policy.costs.known
    path.unlink()
    changes: list[Callable[[], object]] = [path.mkdir, lambda: path.symlink_to(path)]
    changes.append(lambda: monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null"))
    for spoil in changes:
        spoil()
        hints.give_to(policy)
        hints.keep(taught(flat, 0.9))  # has no place, and says nothing
        shutil.rmtree(path, ignore_errors=True)


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(*rest: object, **more: object) -> Path:
        raise RuntimeError("could not determine the home directory")

    def no_folder(*rest: object, **more: object) -> Path:
        return Path("~/.cache/pymtp")

    hints = DraftHints("a model")
    for find in (no_home, no_folder):
        monkeypatch.setattr("platformdirs.user_cache_path", find)
        hints.give_to(DraftPolicy(15, has_heads=True))
        hints.keep(taught(flat, 0.9))
    assert not Path("~").exists()


def test_the_pace_is_that_of_the_machine_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that begins with other kinds of passes than the last one mostly had, on a machine half as fast."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, new = taught(flat, 0.9), DraftPolicy(15, has_heads=True)
    rare = next(kind for kind in old.costs.known if kind != old.costs.frequent)
    DraftHints("a model").keep(old)
    DraftHints("a model").give_to(new)
    plain_ms = new.costs.known[0, 1, 1]
    for _ in range(5):
        new.costs.observe(*rare, 2 * new.costs.known[rare])
    assert new.costs.plain_ms == pytest.approx(2 * plain_ms)


def test_how_fast_plain_decoding_is_is_measured_again_once_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = []
    for _ in range(30):
        policy = DraftPolicy(15, has_heads=True)
        DraftHints("a model").give_to(policy)
        play(policy, flat, 60, right=0.95)
        known.append(bool(policy.costs.plain_ms))
        DraftHints("a model").keep(policy)
    assert sum(known) > 20 and True in known[-8:]


def test_what_was_accepted_by_chance_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for draft_hints, forced, n_files in ((False, None, 0), (True, Forced([1.0] * 15), 0), (True, None, 1)):
        with Model(draft_hints=draft_hints, n_ctx=256) as model:
            "".join(model.generate("One, two,", max_tokens=30, temperature=0, ignore_eos=True, forced=forced))
        assert len([*tmp_path.glob("**/*.json")]) == n_files
    with Model(draft_hints=True, n_ctx=512) as model:  # the context may be longer, the file is that one
        assert model.plain_tok_s
    with Model(draft_hints=True, n_ctx=512, n_seq_max=2) as model:
        assert model.plain_tok_s is None
    with Model(draft_hints=True, n_ctx=512, draft_max=2) as model:
        "".join(model.generate("One, two,", max_tokens=30, temperature=0, ignore_eos=True))
    assert len([*tmp_path.glob("**/*.json")]) == 1
