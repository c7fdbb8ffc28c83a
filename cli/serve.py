"""`pymtp serve`: a model behind HTTP.

Owns the flags of a server, and what is checked before the model is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pymtp.server.settings import ServerSettings
from pymtp.text.files import read_text

from . import options as opt
from .context import note_embedded, warn_beyond_training
from .download import find_model
from .errors import CommandError
from .forced import forced_acceptance
from .output import print_stderr
from .parsers import choice, integer
from .sampling import with_sampling

EXAMPLES = """
pymtp serve
pymtp serve -m model.gguf --port 8080 -np 8 -c 32768
pymtp serve -hf user/repo:Q4_K_M --api-key-file keys.txt --host 0.0.0.0
pymtp serve --metrics --slot-save-path slots --draft-max 3
"""

N_SLOTS = 4
Reasoning = Literal["auto", "on", "off"]
ReasoningFormat = Literal["auto", "deepseek", "deepseek-legacy", "none"]
_LOCAL = ("127.0.0.1", "localhost", "::1")


@with_sampling
@opt.with_model
def serve(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", show_default=False)] = None,
    model_file: opt.ModelFile = None,
    hf_repo: opt.HfRepo = None,
    offline: opt.Offline = False,
    host: Annotated[str, typer.Option(metavar="HOST,...", help="Addresses to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(parser=integer(0, 65535), metavar="N", help="Port to listen on; 0: any free one.")
    ] = 8080,
    n_slots: Annotated[
        int | None,
        typer.Option(
            "-np",
            "--parallel",
            parser=integer(1, 256),
            metavar="N",
            help=f"Slots: requests that run at the same time.  [default: {N_SLOTS}]",
        ),
    ] = None,
    kv_unified: Annotated[
        bool | None,
        typer.Option(
            "-kvu/-no-kvu",
            "--kv-unified/--no-kv-unified",
            help="All slots share a cache of -c tokens, or each has an equal part.  "
            "[default: shared, unless -np is given]",
        ),
    ] = None,
    alias: Annotated[
        str | None, typer.Option("-a", "--alias", metavar="NAME,...", help="Names of the model.  [default: its file's]")
    ] = None,
    tags: Annotated[str | None, typer.Option(metavar="TAG,...", help="Tags of the model, shown by /v1/models.")] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", metavar="KEY,...", help="Keys; each request needs one of them.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="The same, one per line of FILE.")
    ] = None,
    ssl_key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of a certificate, for HTTPS.")] = None,
    ssl_cert_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, for HTTPS.")] = None,
    cors_origins: Annotated[
        str, typer.Option(metavar="ORIGIN|localhost|*", help="Origins whose pages may use the server.")
    ] = ServerSettings.cors_origins,
    slots: Annotated[bool, typer.Option("--slots/--no-slots", help="Answer /slots.")] = ServerSettings.has_slots,
    metrics: Annotated[bool, typer.Option("--metrics", help="Answer /metrics.")] = ServerSettings.has_metrics,
    slot_save_path: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for saved slots.  [default: slots cannot be saved]")
    ] = None,
    page: Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the chat page at /.")] = ServerSettings.has_page,
    cache_prompt: Annotated[
        bool, typer.Option("--cache-prompt/--no-cache-prompt", help="Reuse the part of a prompt that a slot holds.")
    ] = True,
    cache_shared: Annotated[
        bool,
        typer.Option(
            "--cache-shared",
            help="Reuse it for requests with another key too, which then can tell from times what others have sent.",
        ),
    ] = ServerSettings.shares_cache,
    cache_ram: Annotated[
        int,
        typer.Option(
            "-cram",
            "--cache-ram",
            parser=integer(0),
            metavar="MIB",
            help="Host memory for prompts that slots no longer hold; 0: none.",
        ),
    ] = ServerSettings.cache_bytes >> 20,
    context_shift: Annotated[
        bool,
        typer.Option(
            "--context-shift/--no-context-shift",
            help="When the context is full, drop its oldest part instead of ending the text.",
        ),
    ] = ServerSettings.has_context_shift,
    chat_template: Annotated[
        str | None, typer.Option(metavar="JINJA|chatml", help="Chat template.  [default: the model's own]")
    ] = None,
    chat_template_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The same, from FILE.")] = None,
    jinja: Annotated[
        bool, typer.Option("--jinja", help="Accepted and ignored: chat templates are always used.")
    ] = True,
    reasoning: Annotated[
        Reasoning, choice(Reasoning, "-rea", "--reasoning", help_text="Thinking, where a request does not choose.")
    ] = ServerSettings.reasoning,
    reasoning_budget: Annotated[
        int,
        typer.Option(
            parser=integer(-1),
            metavar="N",
            help="End the thinking after N tokens, where a request does not choose; -1: no limit.",
        ),
    ] = ServerSettings.reasoning_budget,
    reasoning_format: Annotated[
        ReasoningFormat,
        choice(ReasoningFormat, "--reasoning-format", help_text="Where the thinking goes; none: into the content."),
    ] = ServerSettings.reasoning_format,
    queue_max: Annotated[
        int,
        typer.Option(
            "--queue-max",
            parser=integer(0),
            metavar="N",
            help="Requests that may wait for a slot; more are refused with 429.",
        ),
    ] = ServerSettings.n_queue_max,
    timeout: Annotated[
        float, typer.Option("-to", "--timeout", metavar="S", help="Seconds within which a request's body must arrive.")
    ] = ServerSettings.timeout_s,
    deadline: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Seconds within which an answer has to be complete; it is cut then. 0: no limit."
        ),
    ] = ServerSettings.deadline_s,
    max_tokens: opt.NPredict = -1,
    spec_synth_rates: opt.SynthRates = None,
    spec_synth_len: opt.SynthLen = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
    model_options: Any = None,
    asked: Any = None,
) -> None:
    """Serve the APIs of OpenAI, Anthropic and llama-server over HTTP."""
    _check_installed()
    import pymtp
    from pymtp.drafting.choice import longest_draft
    from pymtp.embedded import model_path
    from pymtp.errors import InvalidParameter
    from pymtp.gguf.facts import model_facts
    from pymtp.server.run import serve as run_server

    keys = _keys(api_key, api_key_file)
    hosts = _names(host)
    if not keys and any(each not in _LOCAL for each in hosts):
        print_stderr(f"pymtp: {host} is open to others, and no key is needed; set --api-key or --api-key-file")
    if slot_save_path is not None and not slot_save_path.is_dir():
        raise InvalidParameter("slot_save_path", f"a folder that exists, not {slot_save_path}")
    n_draft = longest_draft(pymtp.DraftParams(draft=model_options["draft"], draft_max=model_options["draft_max"]))
    forced = forced_acceptance(spec_synth_rates, spec_synth_len, n_draft, None)
    if forced:
        print_stderr("pymtp: acceptance is forced: the texts are not valid output of the model")
    others = {"max_tokens": max_tokens, "cache_prompt": cache_prompt, "forced": forced}
    asked.params(**others)  # a wrong flag shows before a model is downloaded
    path = find_model(model_file or model if not hf_repo else model_file, hf_repo, offline=offline)
    info = model_facts(path or model_path(), model_options["draft_model"] if path else None)
    template = _text(chat_template, chat_template_file)
    options = _context(model_options, n_slots, kv_unified, info.n_ctx_train)
    settings = ServerSettings(
        params=asked.params(info.sampling, **others),
        aliases=_names(alias),
        tags=_names(tags),
        api_keys=keys,
        has_slots=slots,
        has_metrics=metrics,
        has_page=page,
        chat_template=template,
        reasoning=reasoning,
        reasoning_budget=reasoning_budget,
        reasoning_format=reasoning_format,
        has_context_shift=context_shift,
        cache_bytes=cache_ram << 20,
        shares_cache=cache_shared,
        slot_save_path=slot_save_path,
        n_queue_max=queue_max,
        timeout_s=timeout,
        deadline_s=deadline,
        is_verbose=verbose,
        cors_origins=cors_origins,
    )
    note_embedded(path)
    warn_beyond_training(options["n_ctx"], info.n_ctx_train)
    pymtp.exit_on_abort()
    if verbose:
        pymtp.set_log_level("info")
    run_server(
        lambda: pymtp.Model(path, **options),
        settings,
        hosts=hosts,
        port=port,
        ssl_cert=ssl_cert_file,
        ssl_key=ssl_key_file,
        is_quiet=quiet,
    )


def _context(options: dict[str, Any], n_slots: int | None, shared: bool | None, n_ctx_train: int) -> dict[str, Any]:
    """The options of the model. As for llama-server, -c is what all slots have together."""
    shared = n_slots is None if shared is None else shared
    n_slots = n_slots or N_SLOTS
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


def _text(text: str | None, file: Path | None) -> str | None:
    if file is None:
        return text
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {file}: {error}; check the path") from error


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("msgspec", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise CommandError(f"a server needs {', '.join(missing)}: pip install 'pymtp-gguf[serve]'")
