"""Plays the policy of drafting over recorded texts, with the costs of any machine: python bench/replay.py TRACES...

The traces are those of bench/traces.py. For each file, machine and number of sequences: tokens a second with the policy
over those of the best fixed length of the heads' drafts and of plain decoding, and likewise without lookup. With
--drift, the machine becomes 1.5 times as slow in the middle; with --bursts, it is 4 times as slow for 50 passes now and
then. With --constants, the table that justifies the policy's constants: what each is worth with other values, of the
best fixed length, geometric means over files and machines.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from pymtp.drafting import policy as policy_module
from pymtp.drafting.lookup import LookupIndex
from pymtp.drafting.policy import AUTO_DRAFT_MAX, Candidate, DraftPlan, DraftPolicy, Kind, Rates
from traces import Trace, read_traces


class Machine(NamedTuple):
    """Milliseconds of a pass."""

    rows: tuple[float, ...]
    """Of 1, 2, 4, 8, 16, 32, 64, 128, 256 rows."""
    step: float
    """Of a step of the heads for one sequence."""
    step_each: float
    """For each further row of its first step: a sequence, or a position that the heads have missed."""
    build: float
    """The first pass of its shape takes so much longer, as a graph is built: another one where more cells are seen."""
    pads: bool = False
    """Whether rows are added, so that there are few shapes."""

    def ms(self, steps: int, rows: int, n_sequences: int) -> float:
        """A pass after a draft of that many steps."""
        at = 2.0 ** np.arange(len(self.rows))
        return float(np.interp(rows, at, self.rows)) + steps * (self.step + self.step_each * (n_sequences - 1))

    def shape(self, steps: int, rows: int, n_sequences: int) -> Kind:
        """What is computed for these."""
        if not self.pads:
            return steps, rows, n_sequences
        return steps, _next_power(rows) if rows > 8 else rows, _next_power(n_sequences)


def _next_power(n: int) -> int:
    return 1 << (n - 1).bit_length() if n else 0


MACHINES = {
    "nano, 2 cores": Machine((0.87, 1.3, 1.9, 3.1, 5.6, 10.6, 21, 42, 84), 0.13, 0.06, 3),
    "1B, 2 cores": Machine((62, 75, 100, 155, 270, 500, 980, 1950, 3900), 7.0, 2.0, 4),
    "10.7B dense, H200": Machine((2.5, 2.8, 3.2, 3.6, 4.2, 5.5, 7.3, 10, 15.5), 0.31, 0.01, 8, pads=True),
    "13.8B MoE, H200": Machine((2.45, 3.1, 4.6, 7.2, 9.5, 11, 13, 17, 25), 0.40, 0.01, 8, pads=True),
    "8B, 1 TB/s": Machine((8.7, 8.8, 8.9, 9.2, 9.8, 11, 13.5, 19, 32), 0.75, 0.02, 8, pads=True),
}
"""Typed in by hand, to look at the shape of costs: those of this machine near what `bench/rounds.py` shows, those of
the H200 partly interpolated between the figures of bench/results, the last one on paper: what it reads, and its
multiplications at 200 Tflop/s."""


OTHERS: dict[str, tuple[Any, ...]] = {
    "LENGTHS": ((1, 2, 4, 8, 16), (1, 2, 3, 5, 7, 11, 15)),
    "MATCH_RATES": (tuple((least, 0.6) for least, _ in policy_module.MATCH_RATES),),
    "HEAD_RATE": (0.5, 0.6, 0.8),
    "MEMORY": (6, 25),
    "REVIEW": (4, 16),
    "CURIOSITY": (0.0001, 0.0004),
    "N_RECENT": (3, 15),
    "FORGET": (256, 4096),
    "NEW_SHARE": (0.05, 0.2),
}
"""Other values of the policy's constants."""


class Sequence_:
    """A text that is played."""

    def __init__(self, trace: Trace, rates: Rates) -> None:
        self.trace, self.rates, self.at = trace, rates, 1
        self.n_seen = 1  # tokens that the heads have seen
        self.index = LookupIndex(len(trace.prompt) + len(trace.answer))
        self.index.append([*trace.prompt, *trace.answer[:1]])

    def emit(self, n: int) -> int:
        """The next tokens; returns how many there were."""
        tokens = self.trace.answer[self.at : self.at + n]
        self.index.append(tokens)
        self.at += len(tokens)
        return len(tokens)


Choose = Callable[[DraftPolicy, list[Candidate], int], DraftPlan]
CATCH_UP = 56
"""Positions that the heads catch up with at most."""


def fixed(steps: int) -> Choose:
    """The heads draft that many tokens in every round."""
    return lambda policy, asked, n: DraftPlan(steps, [min(steps, each.room) for each in asked], [0] * len(asked))


def play(
    traces: Sequence[Trace],
    machine: Machine,
    n_sequences: int,
    choose: Choose,
    options: argparse.Namespace,
    *,
    lookup: bool,
) -> float:
    """Tokens a second."""
    n_draft_max = max(AUTO_DRAFT_MAX // n_sequences, 3)
    rng, policy = random.Random(1), DraftPolicy(n_draft_max, has_heads=True, shape=machine.shape)
    waiting, running = list(traces)[::-1], []  # type: ignore[var-annotated]
    n_tokens, spent, burst, built = 0, 0.0, 0, set[tuple[int, ...]]()
    n_all = sum(len(trace.answer) for trace in traces)
    while waiting or running:
        while waiting and len(running) < n_sequences:
            running.append(Sequence_(waiting.pop(), policy.rates.begin()))
        asked = [candidate(each, lookup=lookup) for each in running]
        plan = choose(policy, asked, len(running))
        rows, done, n_first = len(running), 0, 0
        for each, heads, n_lookup in zip(running, plan.heads, plan.lookup, strict=True):
            right = each.trace.n_right(each.at) if heads else 0
            drafts = heads
            kinds = list(range(heads))
            if n_lookup:
                match = each.index.find(n_lookup)
                drafts = len(match.tokens)
                text = each.trace.answer[each.at :]
                right = next(
                    (i for i, (a, b) in enumerate(zip(match.tokens, text, strict=False)) if a != b),
                    min(drafts, len(text)),
                )
                kinds = policy_module.MATCH_KINDS[match.n_matched : match.n_matched + drafts]
            shown = [i < right for i in range(right + 1)]
            each.rates.add(kinds, shown)
            policy.rates.add(kinds, shown)
            rows += drafts
            n_first += min(each.at - each.n_seen, CATCH_UP) if heads else 0
            done += each.emit(min(right, drafts) + 1)
            each.n_seen = each.at if heads else each.n_seen
        ms = machine.ms(*machine.shape(plan.steps, rows, len(running))) + machine.step_each * n_first
        ms *= rng.lognormvariate(0, 0.05) * (3 if rng.random() < 0.01 else 1)
        n_kv = n_seen(sum(len(each.trace.prompt) + each.at for each in running))
        shapes = [(0, rows)] + [(plan.steps, len(running) + n_first)] * (plan.steps > 0)
        new = {(*machine.shape(steps, n, 0), n_kv) for steps, n in shapes} - built
        built |= new
        ms += machine.build * len(new)
        if options.bursts:
            burst = 50 if not burst and rng.random() < 0.001 else max(burst - 1, 0)
            ms *= 4 if burst else 1
        if options.drift and n_tokens > n_all / 2:
            ms *= 1.5
        if not new:
            policy.costs.observe(plan.steps, rows, len(running), ms)
        n_tokens += done
        spent += ms
        running = [each for each in running if each.at < len(each.trace.answer)]
    return 1000 * n_tokens / spent


def n_seen(n_cells: int) -> int:
    """How many cells of the cache a graph sees."""
    pad = 1024
    while 8 * pad < n_cells:
        pad *= 2
    return -(-n_cells // pad) * pad


def candidate(each: Sequence_, *, lookup: bool) -> Candidate:
    """What the policy knows of a sequence."""
    room = min(AUTO_DRAFT_MAX, len(each.trace.answer) - each.at - 1)
    match = each.index.find(AUTO_DRAFT_MAX) if lookup else None
    return Candidate(each.rates, max(room, 0), match.n_matched if match else 0, len(match.tokens) if match else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--machines", nargs="+", default=list(MACHINES))
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--bursts", action="store_true")
    parser.add_argument("--constants", nargs="*", choices=OTHERS, help="these, or all of them if none is named")
    options = parser.parse_args()
    if options.constants is not None:
        compare_constants(options)
        return
    print("| texts | machine | sequences | of best K | K | of plain | without lookup |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for path, machine, n, traces in cases(options):
        speed = {k: play(traces, MACHINES[machine], n, fixed(k), options, lookup=False) for k in range(5)}
        k = max(speed, key=lambda k: speed[k])
        auto, alone = (
            play(traces, MACHINES[machine], n, DraftPolicy.choose, options, lookup=on) for on in (True, False)
        )
        ratios = f"{auto / speed[k]:.3f} | {k} | {auto / speed[0]:.3f} | {alone / speed[k]:.3f}"
        print(f"| {path.stem} | {machine} | {n} | {ratios} |", flush=True)


def cases(options: argparse.Namespace) -> Iterator[tuple[Path, str, int, list[Trace]]]:
    """Files, machines, numbers of sequences, and the texts."""
    for path in options.traces:
        traces = read_traces(path)
        for machine, n in product(options.machines, options.sequences):
            yield path, machine, n, traces


def compare_constants(options: argparse.Namespace) -> None:
    """Each constant of the policy with other values."""
    found = list(cases(options))
    best = [
        max(play(traces, MACHINES[machine], n, fixed(k), options, lookup=False) for k in range(5))
        for _, machine, n, traces in found
    ]

    def row(name: str, value: object) -> None:
        cells = []
        for n_sequences, lookup in product(options.sequences, (True, False)):
            ratios = [
                play(traces, MACHINES[machine], n, DraftPolicy.choose, options, lookup=lookup) / fixed_speed
                for (_, machine, n, traces), fixed_speed in zip(found, best, strict=True)
                if n == n_sequences
            ]
            cells.append(f"{geometric_mean(ratios):.3f} | {min(ratios):.3f}")
        print(f"| {name} | {value} | {' | '.join(cells)} |", flush=True)

    heads = [f"{n}, {kind} | worst" for n, kind in product(options.sequences, ("with lookup", "heads alone"))]
    print(f"| constant | value | {' | '.join(heads)} |")
    print("|---|---|" + "--:|" * 2 * len(heads))
    row("as they are", "")
    for name, values in ((name, OTHERS[name]) for name in options.constants or OTHERS):
        kept = getattr(policy_module, name)
        for value in (*values, kept):
            setattr(policy_module, name, value)
            if value != kept:
                row(name, value)


if __name__ == "__main__":
    main()
