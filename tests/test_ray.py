"""Replicas and batches by Ray: nothing is lost when a replica dies, and texts are those of a model in this process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest

from http_server import free_port
from pymtp import GenerationParams, Model, SamplingParams

pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

from pymtp.ray.data import Completions

GREEDY = GenerationParams(sampling=SamplingParams(temperature=0), max_tokens=12)
N_REQUESTS = 200
MODEL = {"n_ctx": 512, "n_threads": 1, "draft_max": 2}


@pytest.mark.model
def test_a_batch_of_rows_is_answered_in_their_order_and_one_that_fails_alone() -> None:
    rows = {"prompt": np.array(["def red(", "def a(", "word " * 600, "def blue("]), "id": np.arange(4)}
    options = {"n_ctx": 256, "n_threads": 1}
    found = Completions(params=GREEDY, **options)(rows)
    with Model(**options) as model:
        for i in (0, 1, 3):
            assert found["text"][i] == "".join(model.generate(rows["prompt"][i], GREEDY))
    assert list(found["id"]) == [0, 1, 2, 3]
    assert [bool(error) for error in found["error"]] == [False, False, True, False]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.model
def test_map_batches_continues_the_prompts_of_a_data_set(ray: Any) -> None:
    prompts = [f"def {name}(" for name in ("red", "green", "blue", "black", "white", "add")]
    rows = ray.data.from_items([{"prompt": prompt} for prompt in prompts]).map_batches(
        Completions,
        fn_constructor_kwargs={"params": GREEDY, **MODEL},
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=2,
    )
    found = {row["prompt"]: row["text"] for row in rows.take_all()}
    with Model(**MODEL) as model:
        assert found == {prompt: "".join(model.generate(prompt, GREEDY)) for prompt in prompts}


def post(port: int, body: dict[str, Any]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def pids_of_replicas() -> list[int]:
    """Of those that this process's Ray has started, which gives them titles."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith("ray::ServeReplica:default:pymtp"):
                found.append(process.pid)
    return found


@pytest.mark.slow
@pytest.mark.model
def test_requests_are_answered_while_a_replica_is_killed(ray: Any) -> None:
    from ray import serve

    from pymtp.ray import serve_application

    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(serve_application(replicas=2, actor_options={"num_cpus": 0.5}, **MODEL))
    prompts = [f"def f{i % 10}(" for i in range(N_REQUESTS)]
    with Model(**MODEL) as model:
        expected = {prompt: "".join(model.generate(prompt, GREEDY)) for prompt in set(prompts)}

    before = pids_of_replicas()
    assert len(before) == 2
    n_done = 0
    lock = threading.Lock()

    def ask(prompt: str) -> tuple[int, str]:
        nonlocal n_done
        status, answer = post(port, {"prompt": prompt, "temperature": 0, "n_predict": GREEDY.max_tokens})
        with lock:
            n_done += 1
        return status, answer.get("content", answer)

    def kill() -> None:
        while n_done < N_REQUESTS // 4:
            time.sleep(0.01)
        os.kill(before[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, prompts))
    killer.join()
    assert [status for status, _ in answers] == [200] * N_REQUESTS
    assert [text for _, text in answers] == [expected[prompt] for prompt in prompts]

    end = time.monotonic() + 120
    while len(pids_of_replicas()) < 2 or before[0] in pids_of_replicas():
        assert time.monotonic() < end, "no other replica took its place"
        time.sleep(0.5)
    serve.shutdown()
