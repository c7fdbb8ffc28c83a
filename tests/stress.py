"""500 requests from four threads and twenty tasks, of which a random third is cancelled: for `make check-threads`.

    python tests/stress.py MODEL.gguf [REQUESTS OF A THREAD]

Prints a line and exits 0 if every text is what the model gives alone, and every slot is free afterwards.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading

from pymtp import Model

N_THREADS, N_TASKS = 4, 20
N_REQUESTS = int(sys.argv[2]) if len(sys.argv) > 2 else 100
OPTIONS = {"temperature": 0, "ignore_eos": True}


def main() -> None:
    """Run all of it."""
    prompts = [[(7 * i + j) % 50 + 3 for j in range(5 + 3 * i)] for i in range(6)]
    with Model(sys.argv[1], n_ctx=128, n_threads=1, draft="none") as model:
        alone = [list(_tokens(model, prompt, 24)) for prompt in prompts]
    with Model(sys.argv[1], n_ctx=128, n_threads=2, draft_max=2, n_seq_max=4, kv_unified=False) as model:
        wrong: list[object] = []
        threads = [
            threading.Thread(target=_talk, args=(model, prompts, alone, seed, wrong)) for seed in range(N_THREADS)
        ]
        for thread in threads:
            thread.start()
        asyncio.run(_tasks(model, prompts, alone, wrong))
        for thread in threads:
            thread.join()
        idle = model.call(lambda: model._scheduler.is_idle)
    print(f"{N_THREADS * N_REQUESTS + N_TASKS * 5} requests, {len(wrong)} wrong, idle afterwards: {idle}")
    sys.exit(bool(wrong) or not idle)


def _tokens(model: Model, prompt: list[int], n: int) -> list[int]:
    generation = model.generate(prompt, max_tokens=n, **OPTIONS)  # type: ignore[arg-type]
    for _ in generation:
        pass
    return generation.tokens


def _talk(model: Model, prompts: list[list[int]], alone: list[list[int]], seed: int, wrong: list[object]) -> None:
    rng = random.Random(seed)
    for _ in range(N_REQUESTS):
        i, n = rng.randrange(len(prompts)), rng.randrange(1, 25)
        if rng.random() < 1 / 3:
            generation = model.generate(prompts[i], max_tokens=n, **OPTIONS)  # type: ignore[arg-type]
            for _ in range(rng.randrange(3)):
                next(generation, None)
            generation.close()
        elif _tokens(model, prompts[i], n) != alone[i][:n]:
            wrong.append((i, n))


async def _tasks(model: Model, prompts: list[list[int]], alone: list[list[int]], wrong: list[object]) -> None:
    async def talk(number: int) -> None:
        for j in range(5):
            i = (number + j) % len(prompts)
            generation = model.generate(prompts[i], max_tokens=10, **OPTIONS)  # type: ignore[arg-type]
            async for _ in generation:
                pass
            if generation.tokens != alone[i][:10]:
                wrong.append((i, 10))

    await asyncio.gather(*(talk(number) for number in range(N_TASKS)))


if __name__ == "__main__":
    main()
