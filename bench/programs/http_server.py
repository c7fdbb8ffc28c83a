"""Programs that answer over HTTP and run for a whole case: llama.cpp's server, and the one of llama-cpp-python's
examples.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from pymtp.benchmark.prompts import Prompt

from .case import LLAMA_CPP_DEFAULTS, Case, Memory, ProgramFailed, Sample
from .process import Process

START_S = 300
ANSWER_S = 120
HOST = "127.0.0.1"


class _Server:
    """A server process and its port."""

    def __init__(
        self, command: Sequence[object], port: int, health: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = Process(command, log, environment)
        self._port = port
        try:
            self._await_health(health)
        except BaseException:
            self.close()
            raise

    def memory(self) -> Memory:
        """See Program."""
        return self._process.memory()

    def close(self) -> None:
        """See Program."""
        self._process.close()

    def _await_health(self, path: str) -> None:
        end = monotonic() + START_S
        while monotonic() < end:
            self._process.check()
            try:
                if self._send("GET", path).status == 200:
                    return
            except OSError:
                pass
            sleep(0.1)
        raise self._process.failure(f"it was not ready after {START_S} s")

    def _send(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_S)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection.getresponse()

    def _lines(self, method: str, path: str, body: object = None) -> Iterator[bytes]:
        """The lines of the reply, as they arrive."""
        try:
            with self._send(method, path, body) as response:
                if response.status != 200:
                    raise self._process.failure(f"status {response.status}, {response.read(200)!r}")
                yield from response
        except (OSError, http.client.HTTPException) as error:
            raise self._process.failure(f"no answer ({error})") from error


class LlamaServer(_Server):
    """llama-server, without its cache of earlier prompts."""

    def __init__(self, case: Case, *, drafts: bool, n_slots: int = 1, sampling: str = "greedy") -> None:
        """`sampling`: how it picks drafts, greedy or probabilistic."""
        port = _free_port()
        command: list[object] = [case.programs / "llama-server", "--host", HOST, "--port", port, "-m", case.model]
        command += [*context_flags(case), "--parallel", n_slots, "--cache-ram", 0]
        if drafts:
            command += [*draft_flags(case), "--spec-draft-sampling", sampling]
            if case.forced_length is not None:
                command += ["--spec-synth-len", case.forced_length]
        options = {"n_predict": case.n_predict, "ignore_eos": True, "cache_prompt": False}
        self._request = {**case.sampling, **options}
        log = case.logs / f"llama-server-{f'draft-mtp-{sampling}' if drafts else 'plain'}.log"
        super().__init__(command, port, "/health", log)

    def answer(self, prompt: Prompt) -> Sample:
        """See Program. The times are the server's own."""
        reply = b"".join(self._lines("POST", "/completion", {**self._request, "prompt": prompt.tokens}))
        return server_sample(json.loads(reply)["timings"])


def server_sample(timings: Any) -> Sample:
    """The figures of an answer, from llama-server's timings."""
    n, accepted = timings["predicted_n"], timings.get("draft_n_accepted")
    return Sample(
        n_generated=n,
        tok_s=timings["predicted_per_second"],
        prompt_tok_s=timings["prompt_per_second"],
        n_drafted=timings.get("draft_n"),
        n_accepted=accepted,
        # the first token comes with the prompt; a round emits one token and those that it accepted
        n_rounds=None if accepted is None else n - 1 - accepted,
    )


def context_flags(case: Case) -> list[object]:
    """The flags for all of llama.cpp's programs."""
    layers = "all" if case.n_gpu_layers < 0 else case.n_gpu_layers
    threads = case.n_threads
    flags = ["-c", case.n_ctx, "-t", threads, "-tb", threads, "-ngl", layers, "--fit", "off"]
    if case.tensor_split:
        flags += ["-ts", ",".join(map(str, case.tensor_split))]
    return [*flags, "-sm", case.split_mode, "-ctk", case.cache_type, "-ctv", case.cache_type]


def draft_flags(case: Case) -> list[object]:
    """The flags for drafting with the model's own heads."""
    return ["--spec-type", "draft-mtp", "--spec-draft-n-max", case.draft_max]


class ExampleServer(_Server):
    """The server of llama-cpp-python's examples, with its Python MTP provider, on the unpatched library.

    It knows few sampling parameters. If its provider loses count of positions, it continues without drafts, hangs or
    exits; it is left out then.
    """

    _NEEDS = ("fastapi", "openai", "safetensors", "uvicorn", "websockets")
    _SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")

    def __init__(self, case: Case) -> None:
        if missing := [name for name in self._NEEDS if importlib.util.find_spec(name) is None]:
            raise ProgramFailed(f"llama-cpp-python-server: pip install {' '.join(missing)}")
        asked = {name for name, value in case.sampling.items() if LLAMA_CPP_DEFAULTS.get(name) != value}
        if unknown := sorted(asked - set(self._SAMPLING)):
            raise ProgramFailed(f"llama-cpp-python-server: it does not know {', '.join(unknown)}")
        port = _free_port()
        config = case.logs / "llama-cpp-python-server.json"
        config.write_text(
            json.dumps(
                {
                    "server": {"host": HOST, "port": port},
                    "model": {
                        "path": str(case.model),
                        "n_ctx": case.n_ctx,
                        "n_seq_max": 4,  # with one it drafts nothing
                        "threads": case.n_threads,
                        "threads_batch": case.n_threads,
                        "n_gpu_layers": case.n_gpu_layers,
                        "draft_model": "draft-mtp",
                        "draft_model_num_pred_tokens": case.draft_max,
                        "store_logits": False,
                    },
                }
            ),
            "utf-8",
        )
        self._request = {
            **case.sampling,
            "max_tokens": case.n_predict,
            "stream": True,
            "logit_bias": {str(token): -1000 for token in case.end_tokens},
        }
        libraries = str(case.programs)
        environment = {**os.environ, "LLAMA_CPP_LIB_PATH": libraries, "MTMD_CPP_LIB": libraries}
        command = [sys.executable, case.programs / "server.py", "-C", config]
        super().__init__(command, port, "/healthz", case.logs / "llama-cpp-python-server.log", environment)

    def answer(self, prompt: Prompt) -> Sample:
        """See Program. Timed from the first piece of text to the last, counted by the server."""
        before = self._counters()
        begin = end = 0.0
        for line in self._lines("POST", "/v1/completions", {**self._request, "prompt": prompt.tokens}):
            if line.startswith(b"data: {"):
                begin, end = begin or perf_counter(), perf_counter()
        counted = {name: value - before[name] for name, value in self._counters().items()}
        n = int(counted["llamacpp:tokens_predicted_total"])
        if n < 2 or end == begin:
            raise self._process.failure(f"an answer of {n} tokens")
        return Sample(
            n_generated=n,
            tok_s=(n - 1) / (end - begin),
            n_drafted=int(counted["batch_server:draft_tokens_proposed_total"]),
            n_accepted=int(counted["batch_server:draft_tokens_accepted_total"]),
        )

    def _counters(self) -> dict[str, float]:
        text = b"".join(self._lines("GET", "/metrics")).decode()
        return {name: float(value) for name, value in re.findall(r"^([\w:]+_total) (\S+)$", text, re.MULTILINE)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
