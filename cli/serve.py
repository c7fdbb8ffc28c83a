"""`pymtp serve`: a model behind HTTP.

Owns what is checked before the model is loaded; its own flags are in serve_options.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pymtp.server.settings import ServerSettings
from pymtp.text.files import read_text

from . import options as opt
from . import serve_options as own
from .context import find, note_embedded, note_room, warn_beyond_training
from .errors import CommandError
from .flags import with_own
from .forced import forced_by_flags
from .output import print_stderr
from .sampling import Asked, with_sampling
from .template import ChatFlags, with_template

if TYPE_CHECKING:
    from pymtp import GenerationParams

EXAMPLES = """
pymtp serve
pymtp serve -m model.gguf --port 8080 -np 8 -c 32768
pymtp serve -hf user/repo:Q4_K_M --api-key-file keys.txt --host 0.0.0.0
pymtp serve --metrics --slot-save-path slots --draft-max 3
"""

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Flags:
    """Flags other than those of the model, of sampling and of the chat template."""

    model: Annotated[str | None, typer.Argument(metavar="MODEL", show_default=False)] = None
    model_file: opt.ModelFile = None
    hf_repo: opt.HfRepo = None
    offline: opt.Offline = False
    host: own.Host = "127.0.0.1"
    port: own.Port = 8080
    n_slots: own.Parallel = None
    kv_unified: own.KvUnified = None
    alias: own.Alias = None
    tags: own.Tags = None
    api_key: own.ApiKey = None
    api_key_file: own.ApiKeyFile = None
    ssl_key_file: own.SslKeyFile = None
    ssl_cert_file: own.SslCertFile = None
    cors_origins: own.CorsOrigins = ServerSettings.cors_origins
    slots: own.Slots = ServerSettings.has_slots
    metrics: own.Metrics = ServerSettings.has_metrics
    slot_save_path: own.SlotSavePath = None
    page: own.Page = ServerSettings.has_page
    cache_prompt: own.CachePrompt = True
    cache_shared: own.CacheShared = ServerSettings.shares_cache
    cache_ram: own.CacheRam = ServerSettings.cache_bytes >> 20
    lora_init_without_apply: own.LoraInitWithoutApply = False
    context_shift: own.ContextShift = ServerSettings.has_context_shift
    jinja: own.Jinja = True
    reasoning_format: own.ReasoningFormat = ServerSettings.reasoning_format
    queue_max: own.QueueMax = ServerSettings.n_queue_max
    timeout: own.Timeout = ServerSettings.timeout_s
    deadline: own.Deadline = ServerSettings.deadline_s
    max_tokens: opt.NPredict = -1
    spec_synth_rates: opt.SynthRates = None
    spec_synth_len: opt.SynthLen = None
    quiet: own.Quiet = False
    verbose: opt.Verbose = False
    debug: opt.Debug = False


@with_template
@with_sampling
@opt.with_model
@with_own(Flags)
def serve(own: Flags, model_options: dict[str, Any], asked: Asked, chat_flags: ChatFlags) -> None:
    """Serve the APIs of OpenAI, Anthropic and llama-server over HTTP.

    Flags for text, thinking and sampling are defaults: requests can override them.
    """
    import pymtp
    from pymtp import InvalidParameter
    from pymtp.server.run import serve as run_server

    keys, hosts = _keys(own.api_key, own.api_key_file), _names(own.host)
    if not keys and any(each not in _LOCAL for each in hosts):
        print_stderr(f"pymtp: {own.host} is open to others, and no key is needed; set --api-key or --api-key-file")
    if own.slot_save_path is not None and not os.path.isdir(own.slot_save_path):
        raise InvalidParameter("slot_save_path", f"a folder that exists, not {own.slot_save_path}")
    forced = forced_by_flags(own, model_options, None)
    if forced:
        print_stderr("pymtp: acceptance is forced: the texts are not valid output of the model")
    found = find(
        own.model_file or own.model if not own.hf_repo else own.model_file,
        own.hf_repo,
        offline=own.offline,
        model_options=model_options,
        asked=asked,
        max_tokens=own.max_tokens,
        cache_prompt=own.cache_prompt,
        forced=forced,
    )
    options = _context(model_options, own.n_slots, own.kv_unified, found.info.n_ctx_train)
    if own.lora_init_without_apply:
        options["lora"] = [(file, 0.0) for file, _ in options.get("lora", ())]
    settings = _settings(own, found.params, chat_flags, keys)
    note_embedded(found.path)
    warn_beyond_training(options["n_ctx"], found.info.n_ctx_train)
    pymtp.exit_on_abort()
    if own.verbose:
        pymtp.set_log_level("info")

    def load() -> pymtp.Model:
        model = pymtp.Model(found.path, **options)
        note_room(model)
        return model

    run_server(
        load,
        settings,
        hosts=hosts,
        port=own.port,
        ssl_cert=own.ssl_cert_file,
        ssl_key=own.ssl_key_file,
        is_quiet=own.quiet,
    )


def _settings(own: Flags, params: GenerationParams, chat_flags: ChatFlags, keys: tuple[str, ...]) -> ServerSettings:
    return ServerSettings(
        params=params,
        aliases=_names(own.alias),
        tags=_names(own.tags),
        api_keys=keys,
        has_slots=own.slots,
        has_metrics=own.metrics,
        has_page=own.page,
        chat_template=chat_flags.template,
        template_kwargs=chat_flags.kwargs,
        reasoning=chat_flags.reasoning,
        reasoning_budget=chat_flags.reasoning_budget,
        reasoning_format=own.reasoning_format,
        has_context_shift=own.context_shift,
        cache_bytes=own.cache_ram << 20,
        shares_cache=own.cache_shared,
        slot_save_path=own.slot_save_path,
        n_queue_max=own.queue_max,
        timeout_s=own.timeout,
        deadline_s=own.deadline,
        is_verbose=own.verbose,
        cors_origins=own.cors_origins,
    )


def _context(options: dict[str, Any], n_slots: int | None, shared: bool | None, n_ctx_train: int) -> dict[str, Any]:
    """The options of the model. As for llama-server, -c is what all slots have together."""
    shared = n_slots is None if shared is None else shared
    n_slots = n_slots or own.N_SLOTS
    n_ctx = n_ctx_train if options["n_ctx"] == 0 else options["n_ctx"]
    n_cells = n_ctx if shared else None
    if n_ctx is not None and not shared:
        n_ctx = max(n_ctx // n_slots, 1)
    # a prompt comes in pieces of a batch
    n_ubatch = min(options["n_ubatch"], options["n_batch"])
    return {**options, "n_ctx": n_ctx, "n_cells": n_cells, "n_ubatch": n_ubatch, "n_seq_max": n_slots}


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in (text or "").split(","))))


def _keys(text: str | None, file: Path | None) -> tuple[str, ...]:
    if file is None:
        return _names(text)
    try:
        lines = read_text(file).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {file}: {error}; check the path") from error
    keys = tuple(filter(None, map(str.strip, lines)))
    if not keys:
        raise CommandError(f"{file} has no keys; write one on each line")
    return (*_names(text), *keys)
