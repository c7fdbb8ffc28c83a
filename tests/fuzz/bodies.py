"""Damaged bodies of requests, to a server without a network: its application is called as uvicorn calls it."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from pathlib import Path
from typing import Any

from pymtp import GenerationParams, Model
from pymtp.embedded import model_path
from pymtp.gguf.header import read_header
from pymtp.server.app import make_app
from pymtp.server.served_model import ServedModel
from pymtp.server.settings import ServerSettings
from random_gguf.vision import png, write_qwen3vl_projector

from .fuzzer import Fuzzer, damaged, damaged_json

_N_CTX = 64
_COMMON = {"max_tokens": 2, "temperature": 0.7, "seed": 1, "top_k": 5, "stop": ["a"], "stream": True, "draft_max": 1}
_MESSAGES = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "null"}}}}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_IMAGE = base64.b64encode(png(64, 32)).decode()
_PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_IMAGE}"}}
_SOURCE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _IMAGE}}
_PARTS = [_PICTURE, {"type": "text", "text": "b"}]
_BASES: list[tuple[str, Any]] = [
    ("/completion", {"prompt": "a", "n_predict": 2, "n_probs": 2, "samplers": ["top_k"], "logit_bias": [[5, 1.0]]}),
    ("/completion", {"prompt": [1, 2, 3], "n_predict": 2, "grammar": 'root ::= "a"', "stream": True, "id_slot": 0}),
    ("/completion", {"prompt": "a", "n_predict": 2, "json_schema": {"type": "integer"}, "t_max_predict_ms": 50}),
    ("/v1/completions", {**_COMMON, "prompt": ["a", "b"], "n": 2, "logprobs": 1, "echo": False}),
    ("/v1/chat/completions", {**_COMMON, "messages": _MESSAGES, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"max_tokens": 2, "messages": _MESSAGES, "response_format": _SCHEMA}),
    ("/v1/chat/completions", {"max_tokens": 2, "messages": _MESSAGES, "tools": [_TOOL], "tool_choice": "auto"}),
    ("/v1/chat/completions/input_tokens", {"messages": _MESSAGES}),
    ("/v1/responses", {"input": _MESSAGES, "max_output_tokens": 2, "stream": True, "tools": []}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 2, "instructions": "b", "reasoning": {"effort": "low"}}),
    ("/v1/messages", {"messages": _MESSAGES[1:], "max_tokens": 2, "system": "a", "stop_sequences": ["b"]}),
    ("/v1/messages/count_tokens", {"messages": _MESSAGES[1:]}),
    ("/tokenize", {"content": "a", "add_special": True, "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", {"messages": _MESSAGES}),
    ("/slots/0?action=save", {"filename": "a"}),
    ("/slots/0?action=restore", {"filename": "a"}),
    ("/slots/0?action=erase", {}),
    ("/props", {}),
    ("/completion", {"prompt": {"prompt_string": "a<__media__>b", "multimodal_data": [_IMAGE]}, "n_predict": 2}),
    ("/v1/chat/completions", {"max_tokens": 2, "messages": [{"role": "user", "content": _PARTS}], "stream": True}),
    ("/v1/messages", {"max_tokens": 2, "messages": [{"role": "user", "content": [_SOURCE, *_PARTS[1:]]}]}),
    ("/apply-template", {"messages": [{"role": "user", "content": _PARTS}]}),
]


class Bodies(Fuzzer):
    """Every request gets an answer, and none is answered with 500. No slot stays in use."""

    name = "bodies"
    limit_s = 20.0
    memory_bytes = 2 << 30

    def __init__(self, folder: Path) -> None:
        slots = folder / "slots"
        slots.mkdir()
        params = GenerationParams(max_tokens=4)
        settings = ServerSettings(params, slot_save_path=slots, cache_bytes=1 << 20, has_metrics=True)
        metadata = read_header(model_path()).metadata
        n_embd = int(metadata[f"{metadata['general.architecture']}.embedding_length"])  # type: ignore[arg-type]
        projector = write_qwen3vl_projector(folder / "mmproj.gguf", n_embd)

        def load() -> Model:
            options: dict[str, Any] = {"n_ctx": _N_CTX, "n_threads": 1, "mmproj": projector, "n_gpu_layers": 0}
            return Model(n_seq_max=2, draft_max=2, kv_unified=False, **options)

        self._engine = ServedModel(load, settings)
        self._app = make_app(self._engine)
        self._loop = asyncio.new_event_loop()
        self._engine_started = self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._engine.start()
        assert self._engine._task
        await self._engine._task  # until the model is loaded

    def case(self, chance: random.Random) -> tuple[str, bytes]:
        path, body = chance.choice(_BASES)
        data = json.dumps(damaged_json(chance, body) if chance.random() < 0.95 else body).encode()
        return path, damaged(chance, data) if chance.random() < 0.1 else data

    def run(self, case: tuple[str, bytes]) -> str:
        status, data = self._loop.run_until_complete(self._ask(*case))
        if status in (500, 502, 504) or not 200 <= status < 600:
            raise AssertionError(f"{status}: {case} {data[-500:]!r}")
        if self._engine.phase != "ready" or self._engine.answers:
            raise AssertionError(f"the engine is {self._engine.phase}, {len(self._engine.answers)} answers left")
        return str(status)

    async def _ask(self, path: str, data: bytes) -> tuple[int, bytes]:
        """Send a body, take the whole answer; status and body."""
        where, _, query = path.partition("?")
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
        scope |= {"path": where, "raw_path": where.encode(), "query_string": query.encode(), "root_path": ""}
        scope |= {"headers": [(b"host", b"x")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {}}
        parts, status, is_sent, is_over = [], 0, False, asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal is_sent
            if is_sent:
                await is_over.wait()
                return {"type": "http.disconnect"}
            is_sent = True
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            parts.append(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                is_over.set()

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        return status, b"".join(parts)
