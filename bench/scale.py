"""Many machines that answer conversations, simulated: python bench/scale.py [--machines 1 10 100] [--router home].

What a router is worth: the requests/s that a machine can take while all but one of a hundred first tokens come in time,
what that makes of a million tokens, and which share of the prompts its cache still had. Then a model that is divided
among machines: tokens/s by network round trip, with drafts and without.

A machine runs rounds: a pass for all of its sequences, whose time grows with its rows, and the steps of the drafts. New
parts of prompts are computed between rounds. It keeps conversations until its cache is full, and drops the one that was
used least recently. Conversations come at random; each has several turns, and a pause before each. Nothing else is
modelled: no failures, no network between router and machines.

The defaults are those of one machine that was measured (docs/scale.md); the price and the shape of the conversations
are assumptions.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Costs:
    """What a machine takes for its work, in ms; and what it has."""

    pass_ms: float = 2.8
    row_ms: float = 0.33
    step_ms: float = 0.35
    prompt_ms: float = 0.1
    """For each token of a prompt."""
    n_draft: int = 3
    length: float = 2.8
    """Tokens of a sequence that a round emits, on average."""
    n_slots: int = 16
    n_cache: int = 700_000
    """Tokens that fit into its cache."""
    price: float = 3.0
    """Of an hour."""

    def round_ms(self, n: int) -> float:
        """Of a round of n sequences."""
        return self.pass_ms + self.n_draft * self.step_ms + n * (self.n_draft + 1) * self.row_ms


@dataclass(frozen=True)
class Traffic:
    """Conversations: exponential pauses and numbers of tokens with these means."""

    n_turns: int = 4
    pause_s: float = 20.0
    n_system: int = 600
    """Tokens that the prompts of all conversations begin with."""
    n_asked: int = 150
    n_answered: int = 250


@dataclass
class Turn:
    """A request."""

    conversation: int
    n_before: int
    """Tokens of the conversation before it, the answers included."""
    n_asked: int
    n_answered: int
    turns_left: int
    asked_at: float
    is_counted: bool


class Machine:
    """Its sequences, its queue and its cache. Times in seconds.

    Sequences share rounds, so `clock` counts the tokens that each of them has got; one ends at a value of it.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.now = 0.0
        self.clock = 0.0
        self.running: list[tuple[float, int, Turn]] = []
        self.waiting: list[Turn] = []
        self.kept: OrderedDict[int, int] = OrderedDict()
        self.n_kept = 0
        self.has_system = False
        self.version = 0
        """Of what it will do next."""

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def tokens_per_s(self) -> float:
        """Of each sequence."""
        return 1000 * self.costs.length / self.costs.round_ms(len(self.running))

    def advance(self, now: float) -> None:
        """Up to `now`; while it computes prompts it is ahead already."""
        if now > self.now:
            if self.running:
                self.clock += (now - self.now) * self.tokens_per_s
            self.now = now

    def next_end(self) -> float | None:
        if not self.running:
            return None
        return self.now + max(self.running[0][0] - self.clock, 0.0) / self.tokens_per_s

    def start(self, turn: Turn, n_system: int, results: Results) -> None:
        """Compute what it lacks of the prompt; the others wait."""
        n_prompt = n_system + turn.n_before + turn.n_asked
        n_known = self.kept.pop(turn.conversation, 0)
        self.n_kept -= n_known
        n_has = n_known or (n_system if self.has_system else 0)
        self.has_system = True
        self.now += (n_prompt - n_has) * self.costs.prompt_ms / 1000
        if turn.is_counted:
            results.n_requests += 1
            results.n_prompt += n_prompt
            results.n_found += n_has
            results.first_s.append(self.now + self.costs.round_ms(len(self.running) + 1) / 1000 - turn.asked_at)
        heapq.heappush(self.running, (self.clock + turn.n_answered, turn.conversation, turn))

    def keep(self, conversation: int, n: int) -> None:
        self.kept[conversation] = n
        self.n_kept += n
        while self.n_kept > self.costs.n_cache:
            self.n_kept -= self.kept.popitem(last=False)[1]


@dataclass
class Results:
    """Of the requests to all machines after the beginning, in which caches fill."""

    n_requests: int = 0
    n_prompt: int = 0
    n_found: int = 0
    first_s: list[float] = field(default_factory=list)

    def late(self, share: float) -> float:
        """Seconds to the first token that this share of the requests exceeds."""
        return sorted(self.first_s)[int(len(self.first_s) * (1 - share))]


Router = Callable[[Sequence[Machine], int, random.Random], int]


def anywhere(machines: Sequence[Machine], conversation: int, rng: random.Random) -> int:
    """A random machine."""
    return rng.randrange(len(machines))


def lighter(machines: Sequence[Machine], conversation: int, rng: random.Random) -> int:
    """The one with less to do, of two random ones."""
    first, second = rng.randrange(len(machines)), rng.randrange(len(machines))
    return first if machines[first].load <= machines[second].load else second


def home(machines: Sequence[Machine], conversation: int, rng: random.Random) -> int:
    """A conversation's own machine, which its name gives; while all slots there are taken, the lighter of two."""
    own = zlib.crc32(conversation.to_bytes(8, "little")) % len(machines)
    machine = machines[own]
    return own if machine.load < machine.costs.n_slots else lighter(machines, conversation, rng)


ROUTERS: dict[str, Router] = {"anywhere": anywhere, "lighter": lighter, "home": home}


def simulate(
    n_machines: int, per_s: float, seconds: float, costs: Costs, traffic: Traffic, router: Router, seed: int = 1
) -> Results:
    """`per_s`: requests of all conversations a second, for each machine. Ends when all that came are answered.

    Conversations begin during `seconds`; requests of the last two thirds count.
    """
    rng = random.Random(seed)
    machines = [Machine(costs) for _ in range(n_machines)]
    results = Results()
    events: list[tuple[float, int, str, object]] = []
    n_events = 0

    def at(time: float, kind: str, what: object) -> None:
        nonlocal n_events
        n_events += 1
        heapq.heappush(events, (time, n_events, kind, what))

    def some(mean: float) -> int:
        return 1 + int(rng.expovariate(1 / mean))

    def ask(time: float, conversation: int, n_before: int, turns_left: int) -> None:
        is_counted = seconds / 3 <= time < seconds
        n_asked, n_answered = some(traffic.n_asked), some(traffic.n_answered)
        at(time, "ask", Turn(conversation, n_before, n_asked, n_answered, turns_left, time, is_counted))

    def plan(i: int) -> None:
        machine = machines[i]
        machine.version += 1
        end = machine.next_end()
        if end is not None:
            at(end, "end", (i, machine.version))

    conversation, time = 0, 0.0
    while (time := time + rng.expovariate(per_s * n_machines / traffic.n_turns)) < seconds:
        ask(time, conversation, 0, traffic.n_turns - 1)
        conversation += 1
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "ask":
            assert isinstance(what, Turn)
            i = router(machines, what.conversation, rng)
            machine = machines[i]
            machine.advance(now)
            machine.waiting.append(what)
        else:
            assert isinstance(what, tuple)
            i, version = what
            machine = machines[i]
            if version != machine.version:
                continue
            machine.advance(now)
            machine.clock = max(machine.clock, machine.running[0][0])  # rounding
            turn = heapq.heappop(machine.running)[2]
            n_all = traffic.n_system + turn.n_before + turn.n_asked + turn.n_answered
            machine.keep(turn.conversation, n_all)
            if turn.turns_left:
                later = machine.now + rng.expovariate(1 / traffic.pause_s)
                ask(later, turn.conversation, n_all - traffic.n_system, turn.turns_left - 1)
        while machine.waiting and len(machine.running) < costs.n_slots:
            machine.start(machine.waiting.pop(0), traffic.n_system, results)
        plan(i)
    return results


def most_per_s(
    n_machines: int, seconds: float, costs: Costs, traffic: Traffic, router: Router, limit_s: float
) -> float:
    """Requests a second that each machine can take while 99 of 100 first tokens come within `limit_s`."""
    low, high = 0.0, 2.0 * n_tokens_per_s(costs) / traffic.n_answered
    for _ in range(8):
        middle = (low + high) / 2
        found = simulate(n_machines, middle, seconds, costs, traffic, router)
        low, high = (middle, high) if found.late(0.01) <= limit_s else (low, middle)
    return low


def n_tokens_per_s(costs: Costs) -> float:
    """Of a machine whose slots are all in use, without prompts."""
    return 1000 * costs.length * costs.n_slots / costs.round_ms(costs.n_slots)


class Split(NamedTuple):
    """A model whose layers are divided among machines."""

    n_hops: int
    """Times that a pass waits for the network: once for each machine that has layers."""
    trip_ms: float
    """To a machine and back."""

    def tokens_per_s(self, costs: Costs, *, drafts: bool) -> float:
        """Of a single sequence. Heads and output are where the drafts are made, so that steps need no network."""
        network_ms = self.n_hops * self.trip_ms
        if drafts:
            return 1000 * costs.length / (costs.round_ms(1) + network_ms)
        return 1000 / (costs.pass_ms + costs.row_ms + network_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--router", choices=ROUTERS, nargs="+", default=list(ROUTERS))
    parser.add_argument("--seconds", type=float, default=300, help="during which conversations begin (default: 300)")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds to a first token (default: 1)")
    _add_fields(parser, Costs())
    _add_fields(parser, Traffic())
    given = parser.parse_args()
    costs = Costs(**{name: getattr(given, name) for name in Costs.__dataclass_fields__})
    traffic = Traffic(**{name: getattr(given, name) for name in Traffic.__dataclass_fields__})

    print(
        "| machines | router | requests/s of each | prompts found | first token, s: median, 99 % | a million tokens |"
    )
    print("|--:|---|--:|--:|--:|--:|")
    for n_machines in given.machines:
        for name in given.router:
            router = ROUTERS[name]
            most = most_per_s(n_machines, given.seconds, costs, traffic, router, given.limit)
            found = simulate(n_machines, most, given.seconds, costs, traffic, router)
            price = 1e6 * costs.price / 3600 / (most * traffic.n_answered)
            print(
                f"| {n_machines} | {name} | {most:.1f} | {found.n_found / found.n_prompt:.0%} "
                f"| {statistics.median(found.first_s):.2f}, {found.late(0.01):.2f} | {price:.2f} |"
            )
    print("\n| round trip, ms | tokens/s without drafts | with | gain |\n|--:|--:|--:|--:|")
    for trip_ms in (0, 0.2, 1, 5, 20):
        split = Split(2, trip_ms)
        plain, drafted = (split.tokens_per_s(costs, drafts=drafts) for drafts in (False, True))
        print(f"| {trip_ms} | {plain:.0f} | {drafted:.0f} | {drafted / plain:.2f} |")


def _add_fields(parser: argparse.ArgumentParser, defaults: object) -> None:
    for name, value in vars(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default: {value}")


if __name__ == "__main__":
    main()
