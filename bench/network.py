"""Drafts over a network of this machine: python bench/network.py MODEL.gguf PROMPTS.jsonl [-k 3] [--ms 0 0.2 1 5].

Makes network namespaces, each with an RPC server, joins them to this one by veth, and divides the model's layers
among them; heads and output stay here. Measures tokens/s with K drafts and without, at several round trips, in turn.
Drafting should gain the more, the slower the network, as it needs fewer passes. Needs root, ip and tc (iproute2); where
namespaces are not allowed it says so and ends.

Round trips are made by netem; where the kernel has none, by relay.py in the namespaces, which can hold data back but
can neither drop it nor limit the rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from provenance import machine, model_text
from pymtp import GenerationParams, Model, RemoteError, SamplingParams, version_text

PORT, RELAY_PORT = 50052, 50053
PATIENCE_S = 60


class NotAllowed(Exception):
    """There can be no namespaces here. The message says why."""


class Place:
    """A namespace with an RPC server, at the other end of a veth."""

    def __init__(self, number: int) -> None:
        self.name = f"pymtp-{number}"
        self._here, self._there = f"pymtp-h{number}", f"pymtp-n{number}"
        self._subnet = f"10.213.{number}"
        self._processes: list[subprocess.Popen[str]] = []
        self._relay: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Raises NotAllowed."""
        _must("ip", "netns", "add", self.name)
        _must("ip", "link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.name)
        _must("ip", "addr", "add", f"{self._subnet}.1/24", "dev", self._here)
        _must("ip", "link", "set", self._here, "up")
        for command in (
            f"ip addr add {self._subnet}.2/24 dev {self._there}",
            f"ip link set {self._there} up",
            "ip link set lo up",
        ):
            _must(*self._inside(*command.split()))
        server = (sys.executable, "-m", "pymtp_cli", "rpc-server", "-H", "0.0.0.0", "-p", str(PORT), "-t", "1")
        self._start(*server, "-dev", "none")

    @property
    def endpoint(self) -> str:
        return f"{self._subnet}.2:{RELAY_PORT if self._relay else PORT}"

    def slow(self, round_trip_ms: float, rate: str | None, loss: float) -> bool:
        """Delay both ways by half of it. Returns False if the kernel cannot, and a relay does it."""
        options = ["delay", f"{round_trip_ms / 2}ms", "limit", "100000"]
        options += ["rate", rate] if rate else []
        options += ["loss", f"{loss}%"] if loss else []
        here = ("tc", "qdisc", "replace", "dev", self._here, "root", "netem", *options)
        there = self._inside("tc", "qdisc", "replace", "dev", self._there, "root", "netem", *options)
        if self._relay is None and _does(*here) and _does(*there):
            return True
        if rate or loss:
            raise NotAllowed("this kernel has no netem, which --rate and --loss need")
        if self._relay is None:
            relay = Path(__file__).with_name("relay.py")
            addresses = (f"0.0.0.0:{RELAY_PORT}", f"127.0.0.1:{PORT}")
            self._relay = self._start(sys.executable, str(relay), *addresses)
        assert self._relay.stdin
        self._relay.stdin.write(f"{round_trip_ms / 2}\n")
        self._relay.stdin.flush()
        return False

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        _does("ip", "netns", "del", self.name)
        _does("ip", "link", "del", self._here)

    def _start(self, *command: str) -> subprocess.Popen[str]:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(self._inside(*command), stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True)
        self._processes.append(process)
        return process

    def _inside(self, *command: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name, *command)


@contextmanager
def places(n: int) -> Iterator[list[Place]]:
    """`n` namespaces with servers, until the block ends. Raises NotAllowed."""
    with ExitStack() as stack:
        found = []
        for number in range(1, n + 1):
            place = Place(number)
            stack.callback(place.close)
            place.open()
            found.append(place)
        yield found


def _does(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _must(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotAllowed(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise NotAllowed(f"{' '.join(command)}: {done.stderr.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("prompts", type=Path, metavar="PROMPTS.jsonl")
    parser.add_argument("-k", type=int, default=3, help="drafts (default: 3)")
    parser.add_argument("--ms", type=float, nargs="+", default=[0, 0.2, 1, 5], help="round trips (default: 0 0.2 1 5)")
    parser.add_argument("--places", type=int, default=2, help="RPC servers (default: 2)")
    parser.add_argument("--category", default="code", help="of the prompts (default: code)")
    parser.add_argument("--n", type=int, default=6, help="prompts (default: 6)")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (default: 64)")
    parser.add_argument("--rate", help="of each link, as tc writes it: 1gbit")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of packets")
    given = parser.parse_args()
    try:
        with places(given.places) as found:
            measure(given, found)
    except NotAllowed as error:
        print(f"skipped: {error}")


def measure(given: argparse.Namespace, found: list[Place]) -> None:
    """Print a table. Raises NotAllowed."""
    lines = given.prompts.read_text("utf-8").splitlines()
    chosen = [each for each in map(json.loads, lines) if each["category"] == given.category]
    prompts = [each.get("messages") or each["prompt"] for each in chosen[: given.n]]
    has_netem = all(place.slow(0, given.rate, given.loss) for place in found)
    endpoints = [place.endpoint for place in found]
    print(f"{machine(1, [])}\n{version_text()}\n{model_text(given.model)}")
    print(f"{len(prompts)} {given.category} prompts, {given.tokens} tokens, greedy; {len(found)} servers; ", end="")
    print("netem" if has_netem else "delays by relay.py (no netem in this kernel)")
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "rpc": endpoints, "tensor_split": [1.0] * len(found)}
    with (
        _patient(lambda: Model(given.model, draft="none", **options)) as plain,
        Model(given.model, draft_max=given.k, **options) as drafting,
    ):
        for model in (plain, drafting):  # graphs are built and sent
            for prompt in prompts:
                _tok_s(model, prompt, given.tokens)
        speeds: dict[float, list[tuple[float, float]]] = {ms: [] for ms in given.ms}
        texts_differ = 0
        for prompt in prompts:
            for ms in given.ms:
                for place in found:
                    place.slow(ms, given.rate, given.loss)
                without, text = _tok_s(plain, prompt, given.tokens)
                with_drafts, drafted = _tok_s(drafting, prompt, given.tokens)
                speeds[ms].append((without, with_drafts))
                texts_differ += text != drafted
    print(f"\n| round trip, ms | tokens/s without drafts | K = {given.k} | gain (range) |")
    print("|--:|--:|--:|--:|")
    for ms, pairs in speeds.items():
        gains = [b / a for a, b in pairs]
        medians = [statistics.median(each) for each in zip(*pairs, strict=True)]
        print(
            f"| {ms:g} | {medians[0]:.0f} | {medians[1]:.0f} | {statistics.median(gains):.2f} "
            f"({min(gains):.2f}-{max(gains):.2f}) |"
        )
    print(f"\ntexts that differ: {texts_differ}")


def _patient(load: Callable[[], Model]) -> Model:
    """The servers may not listen yet."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return load()
        except RemoteError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _tok_s(model: Model, prompt: str | list[dict[str, str]], n: int) -> tuple[float, list[int]]:
    """Speed after the prompt, and the tokens. `prompt`: a text, or the messages of a chat."""
    params = GenerationParams(sampling=SamplingParams(temperature=0), max_tokens=n, ignore_eos=True)
    generation = model.generate(prompt, params) if isinstance(prompt, str) else model.chat(prompt, params)
    pieces = iter(generation)
    next(pieces)
    began, n_first = time.perf_counter(), len(generation.tokens)
    for _ in pieces:
        pass
    seconds = time.perf_counter() - began
    return (len(generation.tokens) - n_first) / seconds, generation.tokens


if __name__ == "__main__":
    main()
