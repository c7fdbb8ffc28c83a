"""The flags of `pymtp serve` that no other command has, under llama-server's names.

Owns names, types and help texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .parsers import choice, integer

N_SLOTS = 4

Host = Annotated[str, typer.Option(metavar="HOST,...", help="Addresses to listen on.")]
Port = Annotated[int, typer.Option(parser=integer(0, 65535), metavar="N", help="Port to listen on; 0: any free one.")]
Parallel = Annotated[
    int | None,
    typer.Option(
        "-np",
        "--parallel",
        parser=integer(1, 256),
        metavar="N",
        help=f"Slots: requests that run at the same time.  [default: {N_SLOTS}]",
    ),
]
KvUnified = Annotated[
    bool | None,
    typer.Option(
        "-kvu/-no-kvu",
        "--kv-unified/--no-kv-unified",
        help="All slots share a cache of -c tokens, or each has an equal part.  [default: shared, unless -np is given]",
    ),
]
Alias = Annotated[
    str | None, typer.Option("-a", "--alias", metavar="NAME,...", help="Names of the model.  [default: its file's]")
]
Tags = Annotated[str | None, typer.Option(metavar="TAG,...", help="Tags of the model, shown by /v1/models.")]

ApiKey = Annotated[
    str | None, typer.Option("--api-key", metavar="KEY,...", help="Keys; each request needs one of them.")
]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", metavar="FILE", help="Keys from FILE, one per line.")
]
SslKeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Key of a certificate, for HTTPS.")]
SslCertFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, for HTTPS.")]
CorsOrigins = Annotated[str, typer.Option(metavar="ORIGIN|localhost|*", help="Origins whose pages may use the server.")]

Slots = Annotated[bool, typer.Option("--slots/--no-slots", help="Answer /slots.")]
Metrics = Annotated[bool, typer.Option("--metrics", help="Answer /metrics.")]
SlotSavePath = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Folder for saved slots.  [default: slots cannot be saved]")
]
Page = Annotated[bool, typer.Option("--ui/--no-ui", help="Serve the chat page at /.")]

CachePrompt = Annotated[
    bool, typer.Option("--cache-prompt/--no-cache-prompt", help="Reuse the part of a prompt that a slot holds.")
]
CacheShared = Annotated[
    bool,
    typer.Option(
        "--cache-shared", help="Reuse prompts across API keys, too. Response times then reveal what others have sent."
    ),
]
CacheRam = Annotated[
    int,
    typer.Option(
        "-cram",
        "--cache-ram",
        parser=integer(0),
        metavar="MIB",
        help="Host memory for prompts that slots no longer hold; 0: none.",
    ),
]
ContextShift = Annotated[
    bool,
    typer.Option(
        "--context-shift/--no-context-shift",
        help="When the context is full, drop its oldest part instead of ending the text.",
    ),
]

LoraInitWithoutApply = Annotated[
    bool,
    typer.Option(
        "--lora-init-without-apply",
        help="Load LoRA adapters with a scale of 0: requests, or POST /lora-adapters, set it.",
    ),
]

Jinja = Annotated[
    bool, typer.Option("--jinja", show_default=False, help="Accepted and ignored: chat templates are always used.")
]
_Format = Literal["auto", "deepseek", "deepseek-legacy", "none"]
ReasoningFormat = Annotated[
    _Format, choice(_Format, "--reasoning-format", help_text="Where the thinking goes; none: into the content.")
]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Log warnings and errors only.")]

QueueMax = Annotated[
    int,
    typer.Option(
        "--queue-max",
        parser=integer(0),
        metavar="N",
        help="Requests that may wait for a slot; more are refused with 429.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("-to", "--timeout", metavar="S", min=1, help="Seconds within which a request's body must arrive."),
]
Deadline = Annotated[
    float,
    typer.Option(
        metavar="S", min=0, help="Seconds within which an answer has to be complete; it is cut then. 0: no limit."
    ),
]
