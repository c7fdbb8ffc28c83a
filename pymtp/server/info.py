"""What a server says of itself and its model: /health, /props, /v1/models, /lora-adapters.

Owns the form of these answers.
"""

import asyncio
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.loading.images import IMAGE_MARKER

from . import reports
from .bodies import read
from .errors import ApiError, turned_off
from .fields import LoraScale
from .parameters import scales_of
from .respond import json_response
from .state import ServerState, build_info, state_of


async def health(request: Request) -> Response:
    _ = state_of(request).model  # raises why there is none
    return json_response({"status": "ok"})


async def props(request: Request) -> Response:
    state = state_of(request)
    model, settings = state.model, state.settings
    params = reports.settings_of(settings.params, None)
    for name in ("logit_bias", "dry_sequence_breakers", "grammar", "stop"):
        del params[name]
    return json_response(
        {
            "default_generation_settings": {"params": params, "n_ctx": model.n_ctx},
            "total_slots": state.served.n_slots,
            "model_alias": state.name,
            "model_ftype": model.info.quantization,
            "model_path": str(model.info.path),
            "modalities": {"vision": model.projector is not None, "video": False, "audio": False},
            "media_marker": IMAGE_MARKER,
            "endpoint_slots": settings.has_slots,
            "endpoint_props": False,
            "endpoint_metrics": settings.has_metrics,
            "ui": settings.has_page,
            "chat_template": model.vocabulary.chat_template or "",
            "bos_token": model.vocabulary.bos_text,
            "eos_token": model.vocabulary.eos_text,
            "build_info": build_info(),
            "is_sleeping": False,
            "drafting": {"draft_max": model.draft_max, "note": model.draft_note},
        }
    )


async def set_props(request: Request) -> Response:
    raise turned_off("properties cannot be changed while the server runs; set them for each request")


async def adapters(request: Request) -> Response:
    shown = ("scale", "task_name", "prompt_prefix")
    found = enumerate(state_of(request).model.adapters)
    return json_response([{"id": i, "path": str(one.path)} | {x: getattr(one, x) for x in shown} for i, one in found])


async def scale_adapters(request: Request) -> Response:
    """POST /lora-adapters: for later requests that do not say themselves; adapters that are not named get 0."""
    model, body = state_of(request).model, await read(request, list[LoraScale])
    await asyncio.to_thread(model.adapters.scale, scales_of(body))
    return json_response({"success": True})


async def models(request: Request) -> Response:
    state = state_of(request)
    name = state.name
    unknown = dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), "")
    details = dict.fromkeys(("parent_model", "family", "parameter_size", "quantization_level"), "")
    ollama = {
        **{"name": name, "model": name, "type": "model", "tags": [""], "capabilities": ["completion"]},
        **unknown,
        "details": {**details, "format": "gguf", "families": [""]},
    }
    pages = {"has_more": False, "first_id": name, "last_id": name}
    return json_response({"models": [ollama], "object": "list", "data": [_model(state)], **pages})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}: the model under any of its names."""
    state, asked = state_of(request), request.path_params["id"]
    if asked not in (state.name, state.model.info.path.name, *state.settings.aliases):
        raise ApiError(404, f"there is no model {asked!r}: this server has {state.name}")
    return json_response(_model(state))


def _model(state: ServerState) -> dict[str, Any]:
    """The model, in the words of OpenAI and of Anthropic. Reads no file: it may be gone."""
    model, settings, loaded_at = state.model, state.settings, state.served.started_at
    info = model.info
    return {
        "id": state.name,
        "aliases": sorted(settings.aliases) or [state.name],
        "tags": sorted(settings.tags),
        "object": "model",
        "created": int(loaded_at),
        "owned_by": "pymtp",
        "type": "model",
        "display_name": state.name,
        "created_at": datetime.fromtimestamp(int(loaded_at), timezone.utc).isoformat().replace("+00:00", "Z"),
        "meta": {
            "n_vocab": info.n_vocab,
            "n_ctx": model.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_heads": model.session.n_heads,
            "size": info.size_bytes,
            "ftype": info.quantization,
        },
    }
