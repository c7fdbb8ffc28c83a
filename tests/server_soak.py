"""Random requests to `pymtp serve`, many at once: none may crash it, lose its slot, or leave memory behind.

    python tests/server_soak.py [--requests 10000] [--clients 24] [--seed 0]

A fifth of the clients leave at a random time, and one request of twenty is invalid. Prints what came back, and the
server's memory; exit code 1 if it is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from typing import Any

import psutil

from http_server import free_port

GROWTH_MAX = 32 << 20
"""Of resident memory after the first tenth of the requests: that of the host's cache is 16 MiB."""
TIMEOUT_S = 600
WORDS = ("the", "sea", "a", "river", "house", "night", "number", "light", "stone", "open", "green", "walk", "seven")


def text(chance: random.Random, n_max: int = 60) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, n_max)))


def valid(chance: random.Random) -> tuple[str, dict[str, Any] | None]:
    """A path and a body; None: a GET."""
    common: dict[str, Any] = {"stream": chance.random() < 0.5, "max_tokens": chance.randint(1, 40)}
    common |= {"temperature": chance.choice([0, 0.7, 1.5]), "cache_prompt": chance.random() < 0.5}
    if chance.random() < 0.5:
        common["draft_max"] = chance.choice(["auto", 0, 1, 3])
    messages = [{"role": "user", "content": text(chance)}]
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    kinds: list[tuple[str, dict[str, Any] | None]] = [
        ("/completion", common | {"prompt": text(chance), "n_probs": chance.choice([0, 3])}),
        ("/completion", common | {"prompt": text(chance, 400)}),
        ("/completion", common | {"prompt": text(chance), "stop": ["the", "sea"], "return_tokens": True}),
        ("/completion", common | {"prompt": text(chance), "grammar": 'root ::= ("yes " | "no ")+'}),
        ("/v1/completions", common | {"prompt": [text(chance), text(chance)], "n": chance.randint(1, 3)}),
        ("/v1/chat/completions", common | {"messages": messages, "seed": chance.randrange(100)}),
        (
            "/v1/chat/completions",
            common
            | {"messages": messages, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        ),
        ("/v1/chat/completions", common | {"messages": messages, "logprobs": True, "return_drafts": True}),
        ("/v1/messages", common | {"messages": messages}),
        ("/v1/responses", {"input": text(chance), "max_output_tokens": 20, "stream": common["stream"]}),
        ("/tokenize", {"content": text(chance)}),
        ("/apply-template", {"messages": messages}),
        ("/slots", None),
        ("/metrics", None),
    ]
    return chance.choice(kinds)


def invalid(chance: random.Random) -> tuple[str, dict[str, Any]]:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/completion", {"prompt": "a", "grammar": "root ::= ("}),
        ("/completion", {"prompt": [10**9]}),
        ("/completion", {"prompt": "a", "temperature": "hot"}),
        ("/completion", {"prompt": "word " * 9000}),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
        ("/v1/messages", {"messages": 3}),
        ("/v1/embeddings", {"input": "a"}),
        ("/nowhere", {}),
    ]
    return chance.choice(kinds)


async def ask(port: int, path: str, body: dict[str, Any] | None, leaves_after_s: float | None) -> str:
    """What became of a request: its status, or that it was left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            reply = await asyncio.wait_for(reader.read(-1), leaves_after_s or TIMEOUT_S)
        except asyncio.TimeoutError:
            return "left" if leaves_after_s else "late"
        if b'"error":{' in reply and reply.split(b" ", 2)[1] == b"200":
            return "failed"
        return reply.split(b" ", 2)[1].decode() if reply else "nothing"
    finally:
        writer.close()


async def soak(port: int, process: psutil.Process, n_requests: int, n_clients: int, seed: int) -> list[str]:
    """Send all requests; return what is wrong."""
    chance, came, memory = random.Random(seed), Counter[str](), list[int]()
    left = iter(range(n_requests))
    wrong: list[str] = []

    async def client() -> None:
        for i in left:
            is_valid = chance.random() >= 0.05
            path, body = valid(chance) if is_valid else invalid(chance)
            leaves = chance.expovariate(20) + 0.001 if chance.random() < 0.2 else None
            outcome = await ask(port, path, body, leaves)
            came[outcome] += 1
            expected = ("200",) if is_valid else ("400", "404", "501")
            if outcome not in (*expected, "left") and len(wrong) < 20:
                wrong.append(f"{outcome}: {path} {json.dumps(body)[:200]}")
            if i % (n_requests // 20) == 0:
                memory.append(process.memory_info().rss)
                print(f"{i}: {memory[-1] >> 20} MiB, {dict(came)}", flush=True)

    await asyncio.gather(*(client() for _ in range(n_clients)))
    end = time.monotonic() + 20
    while any(slot["is_processing"] for slot in get(port, "/slots")) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    if any(slot["is_processing"] for slot in get(port, "/slots")):
        wrong.append("a slot is still in use")
    if sum(came.values()) != n_requests:
        wrong.append(f"{sum(came.values())} of {n_requests} came back")
    grown = process.memory_info().rss - memory[2]
    print(f"{dict(came)}; memory after the first tenth: {memory[2] >> 20} MiB, grown by {grown / 2**20:.1f} MiB")
    return wrong + [f"memory has grown by {grown >> 20} MiB"] * (grown > GROWTH_MAX)


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
        return json.loads(reply.read())


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "pymtp_cli", "serve", "-q", "-np", "8", "-c", "8192", "-kvu", "--metrics"]
    with subprocess.Popen([*command, "--cache-ram", "16", "--port", str(port)]) as process:
        try:
            while True:
                try:
                    get(port, "/health")
                    break
                except OSError:
                    time.sleep(0.1)
            wrong = asyncio.run(soak(port, psutil.Process(process.pid), asked.requests, asked.clients, asked.seed))
            if process.poll() is not None:
                wrong.append(f"the server has ended with {process.returncode}")
        finally:
            process.terminate()
    if process.returncode:
        wrong.append(f"exit code {process.returncode}")
    print("\n".join(wrong) or "as it should be")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
