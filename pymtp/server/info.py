"""What a server says of itself and its model: /health, /props, /v1/models, /lora-adapters.

Owns the form of these answers.
"""

import asyncio
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pymtp.loading.images import IMAGE_MARKER
from pymtp.text.files import path_text

from . import reports
from .bodies import read
from .errors import ApiError, turned_off
from .fields import LoraScale
from .parameters import scales_of
from .respond import json_response
from .served_model import ServedModel, served_by


async def health(request: Request) -> Response:
    _ = served_by(request).model  # raises why there is none
    return json_response({"status": "ok"})


async def props(request: Request) -> Response:
    served = served_by(request)
    model, settings = served.model, served.settings
    params = reports.settings_of(settings.params, None)
    for name in ("logit_bias", "dry_sequence_breakers", "grammar", "stop"):
        del params[name]
    return json_response(
        {
            "default_generation_settings": {"params": params, "n_ctx": model.n_ctx},
            "total_slots": served.n_slots,
            "model_alias": served.name,
            "model_ftype": model.info.quantization,
            "model_path": path_text(model.info.path),
            "modalities": {"vision": model.projector is not None, "video": False, "audio": False},
            "media_marker": IMAGE_MARKER,
            "endpoint_slots": settings.has_slots,
            "endpoint_props": False,
            "endpoint_metrics": settings.has_metrics,
            "ui": settings.has_page,
            "chat_template": model.params.model.chat_template or model.vocabulary.chat_template or "",
            "bos_token": model.vocabulary.bos_text,
            "eos_token": model.vocabulary.eos_text,
            "build_info": reports.BUILD,
            "is_sleeping": False,
            "drafting": {"draft_max": model.draft_max, "note": model.draft_note},
        }
    )


async def set_props(request: Request) -> Response:
    raise turned_off("properties cannot be changed while the server runs; set them for each request")


async def adapters(request: Request) -> Response:
    shown = ("scale", "task_name", "prompt_prefix")
    found = enumerate(served_by(request).model.adapters)
    rows = [{"id": i, "path": path_text(one.path)} | {x: getattr(one, x) for x in shown} for i, one in found]
    return json_response(rows)


async def scale_adapters(request: Request) -> Response:
    """POST /lora-adapters: for later requests that do not say themselves; adapters that are not named get 0."""
    model, body = served_by(request).model, await read(request, list[LoraScale])
    await asyncio.to_thread(model.adapters.scale, scales_of(body))
    return json_response({"success": True})


async def models(request: Request) -> Response:
    served = served_by(request)
    name = served.name
    unknown = dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), "")
    details = dict.fromkeys(("parent_model", "family", "parameter_size", "quantization_level"), "")
    ollama = {
        **{"name": name, "model": name, "type": "model", "tags": [""], "capabilities": ["completion"]},
        **unknown,
        "details": {**details, "format": "gguf", "families": [""]},
    }
    pages = {"has_more": False, "first_id": name, "last_id": name}
    return json_response({"models": [ollama], "object": "list", "data": [_model(served)], **pages})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}: the model under any of its names."""
    served, asked = served_by(request), request.path_params["id"]
    if asked not in (served.name, path_text(served.model.info.path.name), *served.settings.aliases):
        raise ApiError(404, f"there is no model {asked!r}: this server has {served.name}")
    return json_response(_model(served))


def _model(served: ServedModel) -> dict[str, Any]:
    """The model, in the words of OpenAI and of Anthropic. Reads no file: it may be gone."""
    model, settings, loaded_at = served.model, served.settings, served.started_at
    info = model.info
    return {
        "id": served.name,
        "aliases": sorted(settings.aliases) or [served.name],
        "tags": sorted(settings.tags),
        "object": "model",
        "created": int(loaded_at),
        "owned_by": "pymtp",
        "type": "model",
        "display_name": served.name,
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
