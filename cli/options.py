"""The flags that commands share, under llama.cpp's names.

Owns names, ranges and help texts; knows nothing of what a command does with the values. Ranges that
pymtp checks itself (temperature, top-p, ...) are not repeated here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

DEBUG = "pymtp.debug"
"""Key of the context's `meta` that tells main.py to show tracebacks."""

Draft = Literal["auto", "mtp", "none"]
FlashAttention = Literal["on", "off", "auto"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]

_MAX_INT = 2**31 - 1
_MAX_SEED = 2**32 - 1


def _fits_c_int(value: int | None) -> int | None:
    # Checked here and not by `max=`, which would print the limit after every help text.
    if value is not None and value > _MAX_INT:
        raise typer.BadParameter(f"{value} is not at most {_MAX_INT}")
    return value


def _fits_seed(value: int | None) -> int | None:
    if value is not None and value > _MAX_SEED:
        raise typer.BadParameter(f"{value} is not at most {_MAX_SEED}")
    return value


def _remember_debug(ctx: typer.Context, wanted: bool) -> bool:
    ctx.meta[DEBUG] = wanted
    return wanted


ModelFile = Annotated[
    str | None, typer.Option("-m", "--model", metavar="MODEL", help="GGUF file.  [default: the embedded model]")
]
PromptFile = Annotated[str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from FILE.")]
Raw = Annotated[bool, typer.Option("--raw", help="Complete the prompt as it stands, without the chat template.")]

NPredict = Annotated[
    int,
    typer.Option(
        "-n",
        "--n-predict",
        min=-1,
        callback=_fits_c_int,
        metavar="N",
        help="Tokens to generate; -1: until the model ends or the context is full.",
    ),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Bar end-of-generation tokens.")]

CtxSize = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx-size",
        min=0,
        callback=_fits_c_int,
        metavar="N",
        help="Context in tokens; 0: as the model was trained. Default: the same, but at most 4096.",
    ),
]
BatchSize = Annotated[
    int,
    typer.Option("-b", "--batch-size", min=1, callback=_fits_c_int, metavar="N", help="Prompt tokens in one batch."),
]
UbatchSize = Annotated[
    int, typer.Option("-ub", "--ubatch-size", min=1, callback=_fits_c_int, metavar="N", help="Tokens computed at once.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t", "--threads", min=1, callback=_fits_c_int, metavar="N", help="CPU threads.  [default: to suit the machine]"
    ),
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        min=-1,
        callback=_fits_c_int,
        metavar="N",
        help="Layers kept on the GPU; -1: all.",
    ),
]
FlashAttn = Annotated[FlashAttention, typer.Option("-fa", "--flash-attn", help="Flash attention.")]
CacheTypeK = Annotated[CacheType, typer.Option("-ctk", "--cache-type-k", help="Type of the K cache.")]
CacheTypeV = Annotated[CacheType, typer.Option("-ctv", "--cache-type-v", help="Type of the V cache.")]

Seed = Annotated[
    int | None,
    typer.Option("-s", "--seed", min=-1, callback=_fits_seed, metavar="N", help="Seed; -1: random.  [default: random]"),
]
Temp = Annotated[float, typer.Option("--temp", metavar="T", help="Temperature; 0: greedy.")]
TopK = Annotated[int, typer.Option("--top-k", metavar="N", help="Keep the N likeliest tokens; 0: all.")]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="Keep the likeliest tokens that sum to P; 1: all.")]
MinP = Annotated[
    float, typer.Option("--min-p", metavar="P", help="Drop tokens below P times the likeliest one; 0: none.")
]

DraftMode = Annotated[Draft, typer.Option("--draft", help="Draft with the model's MTP heads; auto: when it has them.")]
DraftMax = Annotated[
    int,
    typer.Option(
        "--spec-draft-n-max", "--draft-max", min=0, max=32, metavar="K", help="Draft tokens in a round; 0: no drafting."
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show llama.cpp's log on stderr.")]
Debug = Annotated[
    bool, typer.Option("--debug", is_eager=True, callback=_remember_debug, help="Show the traceback of an error.")
]
