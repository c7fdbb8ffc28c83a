"""`pymtp serve`: a model behind HTTP.

Owns what is checked before the model is loaded.
"""

import os
from dataclasses import replace
from pathlib import Path

import pymtp
from pymtp import ContextParams, InvalidParameter
from pymtp.errors import INT_MAX, require
from pymtp.gguf.facts import N_CTX_MAX
from pymtp.options import Params
from pymtp.server import logs
from pymtp.server.run import is_path
from pymtp.server.run import serve as run_server
from pymtp.server.settings import ServerSettings

from .asked import chat_of, given_for, text_of
from .context import Found, named_model, note_embedded, note_room, prepare_library
from .flags import Values
from .output import CommandError, print_note

_N_SLOTS = 4
_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(own: Values) -> None:
    chat_params = chat_of(own)
    keys, hosts = _keys(own.api_keys, own.api_key_file), own.host
    if not keys and any(each not in _LOCAL and not is_path(each) for each in hosts):
        print_note(f"{','.join(hosts)} is open to others, and no key is needed; set --api-key or --api-key-file")
    if own.slot_save_path is not None and not os.path.isdir(own.slot_save_path):
        raise InvalidParameter("slot_save_path", f"a folder that exists, not {own.slot_save_path}")
    # the budget of the thinking is for chats alone
    found = Found(own, named_model(own), reasoning_budget=-1)
    if found.params.forced:
        print_note("acceptance is forced: the texts are not valid output of the model")
    model, context, drafting = found.setup
    if own.lora_init_without_apply:
        model = replace(model, lora=[(file, 0.0) for file, _ in model.adapters])
    context = _context(context, None if own.n_slots == "-1" else own.n_slots, own.kv_unified, found.info.n_ctx_train)
    settings = ServerSettings(
        **given_for(ServerSettings, own)
        | {
            "params": found.params,
            "api_keys": keys,
            "template_kwargs": chat_params.template_kwargs,
            "cache_bytes": (INT_MAX if own.cache_mib < 0 else own.cache_mib) << 20,
            "cache_disk_bytes": own.cache_disk_mib << 20,
            "api_prefix": f"/{own.api_prefix.strip('/')}".rstrip("/"),
            "is_verbose": own.verbose,
        }
    )
    note_embedded(found.path)
    found.setup = Params(model, context, drafting)
    found.warn_beyond_training()
    prepare_library(own)

    def load() -> pymtp.Model:
        loaded = pymtp.Model(found.path, model=model, context=context, drafting=drafting)
        note_room(loaded)
        return loaded

    logs.set_up(is_quiet=own.quiet, is_json=own.log_jsonl, file=own.log_file)
    run_server(load, settings, hosts, own.port, own.ssl_cert_file, own.ssl_key_file)


def _context(params: ContextParams, n_slots: int | None, shared: bool | None, n_ctx_train: int) -> ContextParams:
    """The context of the model. As for llama-server, -c is what all slots have together: by default as much as the
    model was trained with, if there is memory for it."""
    require(not (shared and params.invariant), "kv_unified", "off with --invariant")
    shared = n_slots is None and not params.invariant if shared is None else shared
    n_slots = n_slots or _N_SLOTS
    n_ctx = n_ctx_train if params.n_ctx == 0 else params.n_ctx
    n_ctx_max = n_ctx_train or N_CTX_MAX
    if not shared:
        n_ctx_max = max(n_ctx_max // n_slots, N_CTX_MAX)
        n_ctx = n_ctx and max(n_ctx // n_slots, 1)
    n_cells, n_ubatch = 0 if shared else None, min(params.n_ubatch, params.n_batch)  # prompts come in batches
    return replace(params, n_ctx=n_ctx, n_ctx_max=n_ctx_max, n_cells=n_cells, n_ubatch=n_ubatch, n_seq_max=n_slots)


def _keys(given: tuple[str, ...] | None, file: Path | None) -> tuple[str, ...]:
    keys = tuple(filter(None, map(str.strip, (text_of(None, file, "api_key_file") or "").splitlines())))
    if file and not keys:
        raise CommandError(f"{file} has no keys; write one on each line")
    if given == ():
        raise CommandError("--api-key has no key: leave it out if none is needed")
    return (*(given or ()), *keys)
