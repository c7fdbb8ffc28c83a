"""Random requests to `pymtp serve`, many at once: none may crash it, lose its slot, or leave memory or descriptors.

    python tests/server_soak.py [--seconds 300] [--seed 0] [--short]     (make soak-server SECONDS=300 ARGS=--short)

The model is tiny and random; it takes images, has two adapters, and its slots are saved and restored. A fifth of the
clients leave at a random time, some before their request is complete, and one request of twenty is invalid. Memory and
descriptors are read 20 times while nobody asks. Exit code 1 if they grow in the second half, or if an answer is not as
it should be. With --short nearly all requests are a word for 1 to 8 tokens, so that many can be made.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import psutil

from http_server import Client, free_port, wait_until
from random_gguf import write_glm4moe_mrope
from random_gguf.adapter import write_adapter
from random_gguf.vision import png, write_glm4v_projector

GROWTH_MAX = 16 << 20
"""Of resident memory in the second half: that of the host's cache, which is filled slowly."""
N_SAMPLES, N_CLIENTS, N_SLOTS, TIMEOUT_S = 20, 24, 8, 120
WORDS = ("the", "sea", "a", "river", "house", "night", "number", "light", "stone", "open", "green", "walk", "seven")
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ tools }}<|assistant|>"
URL = "data:image/png;base64," + base64.b64encode(png(128, 96)).decode()
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
add = gguf.GGUFWriter.add_token_list
BYTES = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 324))]  # as GPT-2 writes them
Request = tuple[str, Any, tuple[str, ...]]
"""A path, a body (None: a GET), and the statuses that may come."""


def write_model(folder: Path) -> list[str]:
    """A model whose tokens are all bytes, and the flags that load it."""
    with patch.object(gguf.GGUFWriter, "add_token_list", lambda to, tokens: add(to, BYTES + tokens[256:])):
        model = write_glm4moe_mrope(folder / "tiny.gguf")
    projector = write_glm4v_projector(folder / "mmproj.gguf")
    adapters = ",".join(str(write_adapter(folder / f"{i}.gguf", model, seed=i)) for i in (1, 2))
    (folder / "chat.jinja").write_text(TEMPLATE)
    flags = ["-m", model, "--mmproj", projector, "--lora", adapters, "--lora-init-without-apply"]
    return list(map(str, [*flags, "--chat-template-file", folder / "chat.jinja", "--slot-save-path", folder]))


def text(chance: random.Random, n_max: int = 8) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, n_max)))


def valid(chance: random.Random, is_short: bool) -> Request:
    n_max = 8 if is_short else 16
    common: dict[str, Any] = {"stream": chance.random() < 0.5, "max_tokens": chance.randint(1, n_max)}
    common |= {"temperature": chance.choice([0, 0.7, 1.5]), "cache_prompt": chance.random() < 0.5}
    if chance.random() < 0.5:
        common["draft_max"] = chance.choice(["auto", 0, 1, 3])
    if chance.random() < 0.2:
        common["lora"] = [{"id": chance.randrange(2), "scale": chance.random()}]
    if is_short and chance.random() < 0.98:
        return "/completion", common | {"prompt": text(chance, 1)}, ("200",)
    prompt, prompts = {"prompt": text(chance)}, {"prompt": [text(chance), text(chance)], "n": chance.randint(1, 3)}
    said, seen = ({"messages": [{"role": "user", "content": content}]} for content in (text(chance), [IMAGE]))
    of_schema = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    slot, saved = f"/slots/{chance.randrange(N_SLOTS)}", {"filename": f"{chance.randrange(4)}.bin"}
    chat = "/v1/chat/completions"
    kinds: list[tuple[str, Any]] = [
        ("/completion", common | prompt | {"n_probs": chance.choice([0, 3])}),
        ("/completion", common | {"prompt": text(chance, 100)}),
        ("/completion", common | prompt | {"stop": ["the", "sea"], "return_tokens": True}),
        ("/completion", common | prompt | {"grammar": 'root ::= ("yes " | "no ")+'}),
        ("/v1/completions", common | prompts),
        (chat, common | said | {"seed": chance.randrange(100)}),
        (chat, common | said | of_schema),
        (chat, common | said | {"tools": TOOLS, "tool_choice": chance.choice(["auto", "none"])}),
        (chat, common | said | {"logprobs": True, "return_drafts": True}),
        (chat, common | seen),
        ("/v1/messages", common | said),
        ("/v1/responses", common | {"input": text(chance)}),
        (f"{slot}?action=save", saved),
        (f"{slot}?action=restore", saved),
        ("/tokenize", {"content": text(chance)}),
        ("/apply-template", said),
        ("/slots", None),
        ("/metrics", None),
    ]
    path, body = chance.choice(kinds)
    # there may be nothing to save, images, or no file yet
    return path, body, ("200", "400", "501") if path.startswith("/slots/") else ("200",)


def invalid(chance: random.Random) -> Request:
    broken = {"type": "image_url", "image_url": {"url": URL[: chance.choice([40, -900])]}}
    kinds: list[tuple[str, Any]] = [
        ("/completion", {"prompt": "a", "grammar": "root ::= ("}),
        ("/completion", {"prompt": [10**9]}),
        ("/completion", {"prompt": "a", "temperature": "hot"}),
        ("/completion", {"prompt": "a", "lora": [{"id": 9, "scale": 1}]}),
        ("/completion", {"prompt": "word " * 9000}),
        ("/completion", b'{"prompt": "a"'),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [broken]}]}),
        ("/v1/messages", {"messages": 3}),
        ("/slots/0?action=restore", {"filename": "../tiny.gguf"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/nowhere", {}),
    ]
    return *chance.choice(kinds), ("400", "404", "501")


async def ask(port: int, path: str, body: Any, leaves_after_s: float | None, is_whole: bool) -> str:
    """What became of a request: its status, or that it was left."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + (data if is_whole else data[:-1]))
        reply = await asyncio.wait_for(reader.read(-1), leaves_after_s or TIMEOUT_S)
    except asyncio.TimeoutError:
        return "left" if leaves_after_s else "late"
    finally:
        writer.close()
    status = reply.split(b" ", 2)[1].decode() if reply else "nothing"
    return "failed" if status == "200" and b'"error":{' in reply else status


async def soak(port: int, pid: int, seconds: float, chance: random.Random, is_short: bool) -> list[str]:
    """Send requests for so long; return what is wrong."""
    process, start, came, wrong = psutil.Process(pid), time.monotonic(), Counter[str](), list[str]()
    memory: list[tuple[int, int]] = []

    async def client(end: float) -> None:
        while time.monotonic() < end:
            path, body, statuses = valid(chance, is_short) if chance.random() >= 0.05 else invalid(chance)
            leaves = chance.expovariate(20) + 0.001 if chance.random() < 0.2 else None
            outcome = await ask(port, path, body, leaves, is_whole=not leaves or chance.random() < 0.8)
            came[outcome] += 1
            if outcome not in (*statuses, "left") and len(wrong) < 20:
                wrong.append(f"{outcome}: {path} {str(body)[:300]}")

    for _ in range(N_SAMPLES):
        end = time.monotonic() + seconds / N_SAMPLES
        await asyncio.gather(*(client(end) for _ in range(N_CLIENTS)))
        while any(slot["is_processing"] for slot in Client(port, None).get("/slots").json):
            assert time.monotonic() < end + TIMEOUT_S, "a slot is still in use"
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # connections end
        memory.append((process.memory_info().rss, process.num_fds()))
        counts = f"{memory[-1][0] / 2**20:.1f} MiB, {memory[-1][1]} descriptors, {process.num_threads()} threads"
        print(f"{came.total()} requests, {time.monotonic() - start:.0f} s, {counts}, {dict(came)}", flush=True)
    (rss, n_fds), (rss_end, n_fds_end) = memory[N_SAMPLES // 2], memory[-1]
    wrong += [f"memory has grown by {rss_end - rss} bytes in the second half"] * (rss_end - rss > GROWTH_MAX)
    return wrong + [f"{n_fds_end - n_fds} descriptors are left"] * (n_fds_end > n_fds)


def has_started(port: int) -> bool:
    with suppress(OSError):
        return Client(port, None).get("/health").status == 200
    return False


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true")
    asked = parser.parse_args()
    port = free_port()
    server = [sys.executable, "-m", "pymtp_cli", "serve", "-q", "-np", str(N_SLOTS), "-c", "8192", "-kvu", "-t", "1"]
    with tempfile.TemporaryDirectory() as folder:
        flags = [*write_model(Path(folder)), "--metrics", "--cache-ram", "16", "--port", str(port)]
        with subprocess.Popen([*server, *flags]) as process:
            try:
                wait_until(lambda: has_started(port))
                chance = random.Random(asked.seed)
                wrong = asyncio.run(soak(port, process.pid, asked.seconds, chance, asked.short))
            finally:
                process.terminate()
    if process.returncode:
        wrong.append(f"exit code {process.returncode}")
    print("\n".join(wrong) or "as it should be")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
