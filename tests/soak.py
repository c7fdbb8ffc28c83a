"""One model for many random requests: every text stays what the model makes alone, and nothing grows.

    python tests/soak.py [--tokens 100000] [--seed 0] [--family glm4moe]     (make soak TOKENS=100000)

Requests differ in length, sampling, K, grammar and way of acceptance; four run at a time. Some are cancelled, run
beyond the end of their context, or use the cache; slots are saved and restored in between. Every 100th text without
reuse of the cache is made again by another model, alone. After each tenth of the tokens all slots are emptied, and
resident memory, compute buffers and the cells of the cache are read. Exit code 1 if a text differs, or if they grow
in the second half.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

import random_gguf
from pymtp import Generation, Model
from pymtp.errors import PymtpError
from pymtp.server.run import return_large_blocks

N_CTX, N_SLOTS, K = 96, 4, 3
N_TENTHS, N_WARM = 10, 5
RSS_GROWTH_MAX = 16 << 20
COMPUTE_GROWTH_MAX = 1.25
# the tiny models' vocabulary has no letters
GRAMMARS = ['root ::= (" \\t" | "\\n")+', "root ::= [ \\x00-\\x1F]{3,20}", 'root ::= " " [\\t]* "\\n"?']
DEAD_END = 'root ::= " " [\\n] "a"'


class _MallInfo(ctypes.Structure):
    """mallinfo2 of glibc, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def heap() -> str:
    """Where resident memory may lie: what malloc has given out and keeps free, and objects of Python."""
    text = f"{sys.getallocatedblocks() / 1000:.0f}k blocks of Python"
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:  # not glibc, or an old one
        return text
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    used, free = info.uordblks + info.hblkhd, info.fordblks
    return f"malloc {used / 2**20:.1f} MiB in use, {free / 2**20:.1f} free, {text}"


class Soak:
    """The model, the requests that run in it, and what was found."""

    def __init__(self, path: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        options: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "draft_max": K}
        self.model = Model(path, n_seq_max=N_SLOTS, kv_unified=False, **options)
        self.alone = Model(path, **options)
        self.model.slots.keep_prefixes(1 << 20)
        self._can_shift = self._shifts()
        self._running: list[tuple[Generation, list[int], dict[str, Any], int]] = []
        self.n_tokens = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self, n_tokens: int) -> None:
        """Make `n_tokens` more."""
        end = self.n_tokens + n_tokens
        while self.n_tokens < end:
            while len(self._running) < N_SLOTS + 1:  # one waits for a slot
                self._submit()
            self._take(self._chance.randrange(len(self._running)))
            if self._chance.random() < 0.001:
                self._save_and_restore()
        while self._running:
            self._take(0)

    def empty(self) -> int:
        """Drop what the cache keeps; return how many cells are still taken."""
        self.model.slots.empty()
        return self.model.slots.n_cells_used()

    def _shifts(self) -> bool:
        try:
            self._finished(self.model, [3, 4, 5], {"max_tokens": 2 * N_CTX, "n_keep": 4, "ignore_eos": True, "seed": 1})
        except PymtpError:
            return False
        return True

    def _submit(self) -> None:
        chance = self._chance
        prompt = [chance.randrange(1, 250) for _ in range(chance.choice([1, 2, 5, 20, 60]))]
        asked: dict[str, Any] = {
            "seed": chance.randrange(2**31),
            "max_tokens": chance.choice([1, 2, 8, 30, 80]),
            "temperature": chance.choice([0, 0, 0.7, 1, 2]),
            "top_k": chance.choice([0, 1, 5, 40]),
            "top_p": chance.choice([1.0, 0.9]),
            "repeat_penalty": chance.choice([1.0, 1.0, 1.2]),
            "dry_multiplier": chance.choice([0.0, 0.0, 0.8]),
            "draft_max": chance.choice(["auto", 0, 1, 2, 3]),
            "ignore_eos": chance.random() < 0.5,
        }
        kind = chance.randrange(10)
        if kind == 0:
            asked |= {"grammar": chance.choice([*GRAMMARS, DEAD_END]), "ignore_eos": False}
        elif kind == 1:
            asked |= {"draft_pick": "sample", "accept": chance.choice(["rejection", "rejection-tokenwise"])}
        elif kind == 2:
            asked["cache_prompt"] = True
            prompt = [7] * chance.randrange(1, 50) + prompt[:5]
        elif kind == 3:
            asked |= {"logprobs": 2, "stop": ("a", "zz")}
        elif kind == 4 and self._can_shift:
            asked |= {"n_keep": 4, "max_tokens": 2 * N_CTX}
        elif kind == 5:
            asked |= {"draft_p_min": 0.2, "draft_min": 1}
        n_taken = chance.choice([0, 1, 5]) if chance.random() < 0.1 else -1
        self._running.append((self.model.generate(prompt, **asked), prompt, asked, n_taken))

    def _take(self, i: int) -> None:
        """Take pieces of a text; at its end, or where it is cancelled, count it."""
        generation, prompt, asked, n_taken = self._running[i]
        try:
            for _ in range(10 if n_taken < 0 else n_taken):
                next(generation)
        except StopIteration:
            n_taken = 0
        except PymtpError as error:
            if asked.get("grammar") != DEAD_END or "grammar does not allow" not in str(error):
                self.faults.append(f"{error}: {prompt}, {asked}")
            self.counts["dead ends"] += 1
            n_taken = 0
        if n_taken < 0:
            return
        del self._running[i]
        is_over = generation.stats.generated_tokens > 0 and generation.finish_reason is not None
        generation.close()
        self.n_tokens += len(generation.tokens)
        self.counts["texts" if is_over else "cancelled"] += 1
        # drawn drafts take random numbers of their own, what was reused was computed in passes of other lengths
        if is_over and "draft_pick" not in asked and "cache_prompt" not in asked:
            self.counts["comparable"] += 1
            if self.counts["comparable"] % 100 == 1:
                self._compare(generation, prompt, asked)

    def _compare(self, generation: Generation, prompt: list[int], asked: dict[str, Any]) -> None:
        self.counts["compared"] += 1
        again = self._finished(self.alone, prompt, asked)
        if again.tokens != generation.tokens:
            self.faults.append(f"{generation.tokens} was not made again, but {again.tokens}: {prompt}, {asked}")

    @staticmethod
    def _finished(model: Model, prompt: list[int], asked: dict[str, Any]) -> Generation:
        made = model.generate(prompt, **asked)
        for _ in made:
            pass
        return made

    def _save_and_restore(self) -> None:
        """Move what a slot keeps into another one; both may be in use, which is refused."""
        slots = self._chance.sample(range(N_SLOTS), 2)
        try:
            tokens, data = self.model.slots.save(slots[0])
            self.model.slots.restore(slots[1], tokens, data)
            self.counts["restored"] += 1
        except PymtpError:
            self.counts["not restored"] += 1


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", default="glm4moe", help="of tests/random_gguf")
    asked = parser.parse_args()
    return_large_blocks()  # as the server does: else glibc keeps gaps between graphs that came and went
    path = Path(tempfile.mkdtemp()) / "tiny.gguf"
    soak = Soak(getattr(random_gguf, f"write_{asked.family}")(path), asked.seed)
    process, start, warm = psutil.Process(), time.monotonic(), (0, 0)
    for tenth in range(1, N_TENTHS + 1):
        soak.run(asked.tokens // N_TENTHS)
        n_cells = soak.empty()
        rss, compute = process.memory_info().rss, soak.model.session.compute_bytes
        counters = soak.model.session.counters
        n_built = counters.n_trunk_builds + counters.n_head_builds
        print(
            f"{soak.n_tokens:>9} tokens, {time.monotonic() - start:6.0f} s, rss {rss / 2**20:6.1f} MiB, compute "
            f"{compute / 2**20:5.2f} MiB, {heap()}, {n_built} graphs built, {n_cells} cells taken, "
            f"{dict(soak.counts)}, {len(soak.faults)} faults",
            flush=True,
        )
        if n_cells:
            soak.faults.append(f"{n_cells} cells are taken though nothing runs")
        if tenth == N_WARM:
            warm = (rss, compute)
    if rss > warm[0] + RSS_GROWTH_MAX:
        soak.faults.append(f"resident memory grew from {warm[0]} to {rss} bytes")
    if compute > COMPUTE_GROWTH_MAX * warm[1]:
        soak.faults.append(f"compute buffers grew from {warm[1]} to {compute} bytes")
    for fault in soak.faults[:20]:
        print(fault)
    sys.exit(bool(soak.faults))


if __name__ == "__main__":
    main()
