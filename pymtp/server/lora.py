"""llama-server's /lora-adapters: the adapters that are loaded, and with which scales texts apply them.

Owns the form of these answers.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from .bodies import read
from .fields import LoraScale
from .parameters import scales_of
from .respond import json_response
from .state import state_of


async def adapters(request: Request) -> Response:
    """GET /lora-adapters"""
    return json_response(
        [
            {
                "id": i,
                "path": str(one.path),
                "scale": one.scale,
                "task_name": one.task_name,
                "prompt_prefix": one.prompt_prefix,
            }
            for i, one in enumerate(state_of(request).model.adapters)
        ]
    )


async def scale_adapters(request: Request) -> Response:
    """POST /lora-adapters: for later requests that do not say themselves; adapters that are not named get 0."""
    model, body = state_of(request).model, await read(request, list[LoraScale])
    await asyncio.to_thread(model.adapters.scale, scales_of(body))
    return json_response({"success": True})
