"""The server's application in Ray Serve: replicas of a model, and a gateway that gives a request to one of them.

Owns how requests get to replicas, and back from one that died. What a request means, the server's application knows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, MutableMapping
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pymtp.model import Model
from pymtp.server.app import make_app
from pymtp.server.errors import unavailable
from pymtp.server.respond import json_response
from pymtp.server.served_model import ServedModel
from pymtp.server.settings import ServerSettings

_Message = MutableMapping[str, Any]
_N_TRIES = 5
_PLAIN = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers")
"""What a request is, of its ASGI scope: the rest belongs to the connection."""

log = logging.getLogger("ray.serve")


class Replica:
    """A model behind the server's application."""

    async def __init__(  # type: ignore[misc]
        self, path: str | None, options: Mapping[str, Any], settings: ServerSettings
    ) -> None:
        # Ray takes a constructor that waits: no request comes before the model is loaded
        self._served = ServedModel(lambda: Model(path, **options), settings)
        self._app = make_app(self._served)
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()
        while self._served.phase == "loading":
            await asyncio.sleep(0.1)
        self.check_health()

    def check_health(self) -> None:
        """Called by Ray, which replaces a replica for which this raises."""
        if self._served.phase == "failed" and self._served.error:
            raise self._served.error

    async def answer(self, scope: _Message, body: bytes) -> AsyncIterator[_Message]:
        """The messages of ASGI that answer a request. Closing the iterator ends it, as a client that leaves does."""
        messages: asyncio.Queue[_Message | None] = asyncio.Queue()
        has_left = asyncio.Event()
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> _Message:
            for part in parts:
                return part
            await has_left.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app(scope, receive, messages.put)
            finally:
                messages.put_nowait(None)

        work = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await work
        finally:
            has_left.set()

    async def __del__(self) -> None:
        # Ray calls it when the replica has drained
        await self._lifespan.__aexit__(None, None, None)


class Gateway:
    """Gives each request to a replica, and to another one if that dies before any of the answer was passed on.

    An answer that is no stream of events is passed on when it is complete, so that none is lost. A stream of which the
    client has seen a part breaks off.
    """

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """Called by Ray."""
        scope = {name: request.scope[name] for name in _PLAIN if name in request.scope}
        body = await request.body()
        for attempt in range(_N_TRIES):
            try:
                return await self._try(scope, body)
            except RayActorError as error:
                log.warning("a replica died, try %d of %d: %s", attempt + 1, _N_TRIES, type(error).__name__)
        failure = unavailable("no replica could answer")
        return json_response(failure.as_json(request.url.path), failure.status, failure.headers)

    async def _try(self, scope: _Message, body: bytes) -> Response:
        messages = aiter(self._replicas.answer.remote(scope, body))
        start = await anext(messages)
        headers = [(name.decode().lower().encode(), value) for name, value in start["headers"]]
        start["headers"] = [each for each in headers if each[0] != b"x-request-id"]  # Ray writes one
        is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
        first = [await anext(messages)] if is_stream else [each async for each in messages]
        return _Passed([start, *first], messages)


class _Passed(Response):
    """The messages of an answer, as they are: those that have come, and those that follow."""

    def __init__(self, first: list[_Message], rest: AsyncIterator[_Message]) -> None:
        super().__init__()
        self._first, self._rest = first, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for message in self._first:
            await send(message)
        async for message in self._rest:
            await send(message)


def serve_application(
    path: str | None = None,
    *,
    settings: ServerSettings | None = None,
    replicas: int | tuple[int, int] = 1,
    actor_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """What `ray.serve.run` takes: a model with the APIs of `pymtp serve`.

    `replicas`: how many, or the least and the most: Ray adds one when each has more requests, running and waiting, than
    it has slots (`n_seq_max`), and drains the one that it takes away. `actor_options`: what a replica needs, as Ray
    names it, such as `{"num_gpus": 1}`. `options`: the keywords of Model; a replica has 4 slots unless they say more.
    """
    settings = settings or ServerSettings()
    options = {"n_seq_max": 4, **options}
    n_least, n_most = (replicas, replicas) if isinstance(replicas, int) else replicas
    scaling: dict[str, Any] = {"num_replicas": n_least}
    if n_most > n_least:
        target = {"min_replicas": n_least, "max_replicas": n_most, "target_ongoing_requests": options["n_seq_max"]}
        scaling = {"autoscaling_config": target}
    deployment: Any = serve.deployment  # its types do not have what it returns
    models = deployment(Replica).options(
        name="pymtp",
        max_ongoing_requests=options["n_seq_max"] + settings.n_queue_max,
        graceful_shutdown_timeout_s=settings.timeout_s,
        health_check_period_s=2,
        ray_actor_options=dict(actor_options or {}),
        **scaling,
    )
    gateway = deployment(Gateway).options(
        name="gateway",
        max_ongoing_requests=(options["n_seq_max"] + settings.n_queue_max) * n_most,
        ray_actor_options={"num_cpus": 0},  # it waits: the cores are for replicas
    )
    application: serve.Application = gateway.bind(models.bind(path, options, settings))
    return application
