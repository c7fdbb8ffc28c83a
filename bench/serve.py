"""`pymtp serve` beside llama-server, with many clients at once:

    python bench/serve.py --llama-server build/programs/bin/llama-server [--model FILE] [--clients 1 4 16] [--rate R]

Each client asks for one answer after another (closed loop); with --rate requests come at random times, R a second on
average (Poisson), whatever is running. All servers get the same prompts, sampling is greedy, and answers have a random
number of tokens, half of --n-predict to half as much again, so that not all of them end in the same pass. Servers are
measured in turn, again and again, each in a new process and after some answers for each client (--warm-up), in which
graphs are built and costs become known; prints medians over these repetitions of tokens a second, of the time to the
first token (50th and 99th percentile of the requests) and between tokens. Prompts are never taken from a cache.
`Model.generate()` answers the same requests in one process, without HTTP, as a reference; it gets all of them at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from provenance import machine, model_text
from pymtp import version_text
from pymtp.benchmark.prompts import BUILT_IN
from pymtp.embedded import model_path
from pymtp.engine.cores import n_cores

START_S = 60
N_CTX = 512


@dataclass
class Load:
    """What the clients do."""

    n_clients: int
    n_requests: int
    n_predict: int
    rate: float | None = None
    n_warm_up: int = 0

    @property
    def before(self) -> Load:
        """What they do before it is measured."""
        return Load(self.n_clients, self.n_warm_up, self.n_predict)


@dataclass
class Outcome:
    """What they saw."""

    n_tokens: int = 0
    seconds: float = 0.0
    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)

    @property
    def tok_s(self) -> float:
        return self.n_tokens / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, help="left out: pymtp alone")
    parser.add_argument("--model", type=Path, default=model_path(), help="default: the embedded one")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=4, help="of each client (default: 4)")
    parser.add_argument("--warm-up", type=int, default=3, help="requests of each client before that (default: 3)")
    parser.add_argument("--n-predict", type=int, default=64, help="tokens of an answer, on average (default: 64)")
    parser.add_argument("--draft-max", type=int, default=3, help="of llama-server (default: 3)")
    parser.add_argument("--rate", type=float, help="requests a second; default: a closed loop")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--flags", type=shlex.split, default=[], help="for both servers, in quotes: '-sm tensor'")
    parser.add_argument("--forced-length", metavar="L", help="accept drafts at random, to this mean length")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="of the second column; default: all")
    asked = parser.parse_args()
    print(f"{model_text(asked.model)}; {machine(n_cores(), [])}; {version_text()}\n")
    print("| clients | server | tokens/s | first token p50 ms | p99 ms | between tokens ms |")
    print("|--:|---|--:|--:|--:|--:|")
    for n in asked.clients:
        load = Load(n, asked.requests * n, asked.n_predict, asked.rate, asked.warm_up * n)
        arms = arms_of(asked, n)
        found: dict[str, list[Outcome]] = {name: [] for name in arms if not asked.arms or name in asked.arms}
        for _ in range(asked.repeat):
            for name, outcomes in found.items():
                outcomes.append(arms[name](load))
        for name, outcomes in found.items():
            print(row(n, name, outcomes), flush=True)


Arm = Callable[[Load], Outcome]


def arms_of(asked: argparse.Namespace, n_slots: int) -> dict[str, Arm]:
    """What is measured; each slot has 512 tokens of context."""
    context = ["-np", str(n_slots), "-c", str(N_CTX * n_slots)]
    common = ["-m", str(asked.model.resolve()), *context, "--cache-ram", "0", *asked.flags]
    pymtp = [sys.executable, "-m", "pymtp_cli", "serve", "-q", *common]
    forced = ["--spec-synth-len", asked.forced_length] if asked.forced_length else []
    limit = ["--draft-max", str(asked.draft_max), *forced] if forced else []
    commands = {"pymtp": [*pymtp, *limit], "pymtp, no drafts": [*pymtp, "--draft", "none"]}
    if asked.llama_server:
        theirs = [str(asked.llama_server.resolve()), *common, "--fit", "off", "--no-ui"]
        drafts = ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(asked.draft_max), *forced]
        commands |= {"llama-server": theirs, "llama-server, draft-mtp": [*theirs, *drafts]}
    arms: dict[str, Arm] = {name: partial(measure, command) for name, command in commands.items()}
    arms["Model.generate()"] = partial(measure_in_process, asked.model, "auto")
    arms["Model.generate(), no drafts"] = partial(measure_in_process, asked.model, "none")
    return arms


def measure(command: Sequence[str], load: Load) -> Outcome:
    """One repetition with one server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [*command, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent,  # Python imports from the current folder: in a checkout a pymtp that is not built
    ) as process:
        try:
            await_ready(port, process)
            asyncio.run(run(port, load.before, seed=1))
            return asyncio.run(run(port, load, seed=2))
        finally:
            process.terminate()


def await_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers. Raises SystemExit if it does not."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{process.args} did not start")  # type: ignore[str-bytes-safe]


def questions(load: Load, chance: random.Random) -> list[tuple[str, int]]:
    """A message for each request, and the tokens of its answer."""
    texts = [str(text.messages[0]["content"]) for text in BUILT_IN]
    messages = [f"{chance.randrange(1000)}. {texts[i % len(texts)]}" for i in range(load.n_requests)]
    n = load.n_predict
    return [(message, chance.randint(max(n // 2, 1), n * 3 // 2)) for message in messages]


async def run(port: int, load: Load, seed: int) -> Outcome:
    """Send all requests and wait for the answers."""
    outcome, chance = Outcome(), random.Random(seed)
    asked = questions(load, chance)
    began = time.perf_counter()
    if load.rate is None:
        left = iter(asked)

        async def client() -> None:
            for prompt, n_tokens in left:
                await ask(port, prompt, n_tokens, outcome)

        await asyncio.gather(*(client() for _ in range(load.n_clients)))
    else:
        tasks = []
        for prompt, n_tokens in asked:
            tasks.append(asyncio.create_task(ask(port, prompt, n_tokens, outcome)))
            await asyncio.sleep(chance.expovariate(load.rate))
        await asyncio.gather(*tasks)
    outcome.seconds = time.perf_counter() - began
    return outcome


async def ask(port: int, prompt: str, n_predict: int, outcome: Outcome) -> None:
    """One request; its tokens are counted as they come."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": prompt}],
            **{"max_tokens": n_predict, "temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    began = time.perf_counter()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    first = last = 0.0
    n = 0
    while line := await reader.readline():
        if b'"content":"' in line:
            last = time.perf_counter()
            first = first or last
        elif b'"predicted_n":' in line:
            n = json.loads(line.removeprefix(b"data: "))["timings"]["predicted_n"]
    writer.close()
    if not first:
        raise SystemExit("an answer without text")
    outcome.n_tokens += n or n_predict
    outcome.first_s.append(first - began)
    outcome.between_s.append((last - first) / max((n or n_predict) - 1, 1))


def measure_in_process(model: Path, draft: str, load: Load) -> Outcome:
    """The same requests in a process without a server."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(answer_in_process, model, draft, load).result()


def answer_in_process(path: Path, draft: str, load: Load) -> Outcome:
    """One repetition with `Model.generate()`, all requests at once."""
    from pymtp import Model

    options = {"n_ctx": N_CTX, "n_seq_max": load.n_clients, "kv_unified": False, "draft": draft}
    with Model(path, **options) as model:  # type: ignore[arg-type]

        def answer(load: Load, seed: int) -> Outcome:
            outcome, asked = Outcome(), questions(load, random.Random(seed))
            prompts = [model.chat_prompt([{"role": "user", "content": message}]) for message, _ in asked]
            began = time.perf_counter()

            params: Any = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}

            async def times(prompt: str, n: int) -> list[float]:
                """When the pieces of an answer come."""
                return [time.perf_counter() async for _ in model.generate(prompt, **params, max_tokens=n)]

            async def times_of_all() -> list[list[float]]:
                return await asyncio.gather(*(times(prompt, n) for prompt, (_, n) in zip(prompts, asked, strict=True)))

            made = asyncio.run(times_of_all())
            outcome.seconds = time.perf_counter() - began
            outcome.n_tokens = sum(n for _, n in asked)
            outcome.first_s = [0.0]  # all wait from the beginning: it says nothing
            outcome.between_s = [(each[-1] - each[0]) / load.n_predict for each in made]
            return outcome

        answer(load.before, seed=1)
        return answer(load, seed=2)


def row(n: int, name: str, outcomes: Sequence[Outcome]) -> str:
    """A line of the table."""
    p50 = median(median(each.first_s) for each in outcomes) * 1000
    p99 = median(sorted(each.first_s)[int(0.99 * (len(each.first_s) - 1) + 0.5)] for each in outcomes) * 1000
    between = median(median(each.between_s) for each in outcomes) * 1000
    return f"| {n} | {name} | {median(each.tok_s for each in outcomes):.0f} | {p50:.1f} | {p99:.1f} | {between:.2f} |"


if __name__ == "__main__":
    main()
