"""llama-server's /slots: what runs where, and what slots hold, saved, restored and erased.

Owns the folder of saved slots. Files have the tokens and their checksum first, then the engine's bytes.
"""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pymtp.engine import snapshot
from pymtp.errors import StateError

from . import reports
from .answer import LiveAnswer
from .bodies import read
from .errors import invalid, turned_off, unavailable
from .fields import SlotBody
from .respond import json_response
from .served_model import ServedModel, served_by

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")


async def slots(request: Request) -> Response:
    served = served_by(request)
    if not served.settings.has_slots:
        raise turned_off("This server does not support slots endpoint. Start it with `--slots`")
    n_slots = served.n_slots
    running = {answer.generation.slot: answer for answer in served.answers}
    if request.query_params.get("fail_on_no_slot") and all(i in running for i in range(n_slots)):
        raise unavailable("no slot available")
    return json_response([_slot(served, i, running.get(i)) for i in range(n_slots)])


async def slot_action(request: Request) -> Response:
    served = served_by(request)
    folder = served.settings.slot_save_path
    if folder is None:
        raise turned_off("This server does not support slots action. Start it with `--slot-save-path`")
    slot, action = request.path_params["slot"], request.query_params.get("action")
    if slot not in map(str, range(served.n_slots)):
        raise invalid("Invalid slot ID")
    if action not in ("save", "restore", "erase"):
        raise invalid("Invalid action")
    body = await read(request, SlotBody)
    found: dict[str, Any] = {"id_slot": int(slot)}
    try:
        if action == "erase":
            found["n_erased"] = await asyncio.to_thread(served.model.slots.erase, int(slot))
        else:
            path, began = _path(folder, body.filename or ""), time.perf_counter()
            found |= await asyncio.to_thread(_save if action == "save" else _restore, served, int(slot), path)
            found |= {"filename": path.name, "timings": {f"{action}_ms": (time.perf_counter() - began) * 1000}}
    except StateError as error:
        raise invalid(str(error)) from None
    return json_response(found)


def _save(served: ServedModel, slot: int, path: Path) -> dict[str, Any]:
    tokens, data = served.model.slots.save(slot, scope=served.cache_scope)
    head = msgspec.json.encode(tokens)
    head += f" {snapshot.digest(head, data)}\n".encode()
    snapshot.write(path, head + data)
    return {"n_saved": len(tokens), "n_written": len(head) + len(data)}


def _restore(served: ServedModel, slot: int, path: Path) -> dict[str, Any]:
    head, _, data = snapshot.read(path).partition(b"\n")
    ids, _, digest = head.rpartition(b" ")
    if digest != snapshot.digest(ids, data).encode():
        raise invalid(f"{path.name} is not a saved slot, or it is damaged")
    tokens = msgspec.json.decode(ids, type=list[int])
    served.model.slots.restore(slot, tokens, data, scope=served.cache_scope)
    return {"n_restored": len(tokens), "n_read": len(head) + 1 + len(data)}


def _path(folder: Path, name: str) -> Path:
    """The path of a saved slot, which is always in the folder."""
    if not _NAME.fullmatch(name):
        raise invalid("Invalid filename: use letters, digits, dots, - and _")
    path = folder / name
    if path.is_symlink():
        raise invalid("Invalid filename: it is a link, which may lead elsewhere")
    return path


def _slot(served: ServedModel, i: int, answer: LiveAnswer | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": i,
        "n_ctx": served.model.n_ctx,
        "speculative": bool(served.model.draft_max),
        "is_processing": answer is not None,
    }
    if answer is not None:
        n_max = answer.generation.params.max_tokens
        n = len(answer.tokens)
        found |= {
            "n_prompt_tokens": answer.generation.n_prompt,
            "n_prompt_tokens_processed": answer.generation.n_prompt_done,
            "n_prompt_tokens_cache": answer.generation.n_cached,
            "timings": reports.timings(answer),
            "next_token": [{"n_decoded": n, "n_remain": -1 if n_max < 0 else n_max - n}],
        }
    return found
