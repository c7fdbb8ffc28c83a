"""The flags that commands share, under llama.cpp's names.

Owns names, types and help texts; knows nothing about what a command does with the values. Integers are
checked here, so that a wrong one shows before a prompt is asked for. pymtp checks the rest and raises
InvalidParameter; app.py finds the flag by the parameter's name, so commands name their parameters as pymtp does.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import typer

from .adapters import ADAPTERS, adapters_of
from .flags import Command, with_flags
from .parsers import MAX_INT, auto_or_integer, choice, completing, integer
from .placement import PLACEMENT, placement_of
from .threads import MAX_THREADS, THREADS, threads_given

DEBUG = "pymtp.debug"
"""Key in the context's `meta`: whether app.py shows tracebacks."""

Draft = Literal["auto", "mtp", "lookup", "none"]
MtpContext = Literal["auto", "chained", "target"]
FlashAttention = Literal["on", "off", "auto"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


def gpu_layers(text: str) -> int:
    """A number of layers, or as in llama.cpp: auto (-1) for as many as have room, all (below -1) for all of them."""
    if text in ("all", "auto"):
        return -1 if text == "auto" else -2
    try:
        return max(integer(-MAX_INT)(text), -2)
    except typer.BadParameter:
        raise typer.BadParameter(f"must be auto, all or an integer, not {text!r}") from None


def _draft_vocab(text: str) -> int | str:
    if re.fullmatch(r"[-+]?\d+", text):
        return integer(1)(text)
    return text  # a file


def _repository(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", text):
        raise typer.BadParameter(f"must be USER/REPO or USER/REPO:QUANT, not {text!r}")
    return text


def _remember_debug(ctx: typer.Context, wanted: bool) -> bool:
    ctx.meta[DEBUG] = wanted
    return wanted


ModelFile = Annotated[
    str | None, typer.Option("-m", "--model", metavar="MODEL", help="GGUF file.  [default: the embedded model]")
]
HfRepo = Annotated[
    str | None,
    typer.Option(
        "-hf",
        "--hf-repo",
        parser=_repository,
        metavar="USER/REPO[:QUANT]",
        help="Model from Hugging Face, downloaded once. QUANT defaults to Q4_K_M, else Q8_0, else the first file.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="With -hf: use an earlier download, no network.")]
PromptText = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; the same as the argument.")
]
PromptFile = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from FILE; -: from stdin.")
]
FirstMessage = Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The first message.")]
FirstMessageFile = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the first message from FILE.")
]
SystemPrompt = Annotated[
    str | None, typer.Option("-sys", "--system-prompt", metavar="TEXT", help="System prompt.  [default: none]")
]
Raw = Annotated[bool, typer.Option("--raw", help="Complete the prompt as is, without the chat template.")]

NPredict = Annotated[
    int,
    typer.Option(
        "-n",
        "--n-predict",
        parser=integer(-1),
        metavar="N",
        help="Tokens to generate; -1: until the model stops or the context is full.",
    ),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Never generate end-of-generation tokens.")]

CtxSize = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--ctx-size",
        parser=integer(0),
        metavar="N",
        help="Context size in tokens; 0: as the model was trained.  [default: the same, but at most 4096]",
    ),
]
BatchSize = Annotated[
    int, typer.Option("-b", "--batch-size", parser=integer(1), metavar="N", help="Prompt tokens per batch.")
]
UbatchSize = Annotated[
    int, typer.Option("-ub", "--ubatch-size", parser=integer(1), metavar="N", help="Tokens per pass.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        parser=integer(1, MAX_THREADS),
        metavar="N",
        help="CPU threads.  [default: one per physical core]",
    ),
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        parser=gpu_layers,
        metavar="N|auto|all",
        autocompletion=completing(["auto", "all"]),
        help="Layers on the GPU, counted from the last one; auto: as many as have room (-1); all: -2.",
    ),
]
FLASH_ATTENTION_WORDS = {
    **dict.fromkeys(("1", "true", "enabled"), "on"),
    **dict.fromkeys(("0", "false", "disabled"), "off"),
    "-1": "auto",
}
"""llama.cpp's other words for the values of FlashAttention."""
FlashAttn = Annotated[
    FlashAttention,
    choice(
        FlashAttention,
        *("-fa", "--flash-attn"),
        help_text="Flash attention; 1 and 0 mean on and off.",
        aliases=FLASH_ATTENTION_WORDS,
    ),
]
CacheTypeK = Annotated[CacheType, choice(CacheType, "-ctk", "--cache-type-k", help_text="Type of the K cache.")]
CacheTypeV = Annotated[CacheType, choice(CacheType, "-ctv", "--cache-type-v", help_text="Type of the V cache.")]

Mmproj = Annotated[
    str | None,
    typer.Option("-mm", "--mmproj", metavar="FILE", help="GGUF file of the projector of a model that takes images."),
]
ImageMinTokens = Annotated[
    int | None,
    typer.Option(
        "--image-min-tokens",
        parser=integer(1),
        metavar="N",
        help="Minimum tokens per image, if it may have any size.  [default: as the projector's file says]",
    ),
]
ImageMaxTokens = Annotated[
    int | None, typer.Option("--image-max-tokens", parser=integer(1), metavar="N", help="Maximum tokens per image.")
]
Images = Annotated[
    list[str],
    typer.Option(
        "--image",
        metavar="FILE",
        show_default=False,
        help="An image (JPEG, PNG, BMP, GIF) before the text, or in the place of a <__media__> in it; repeatable.",
    ),
]

Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        parser=integer(0),
        metavar="N",
        help="With --json: log probabilities of each token and of the N most likely ones there.",
    ),
]

DraftMode = Annotated[
    Draft,
    choice(
        Draft,
        "--draft",
        help_text="Drafts from MTP heads (mtp), earlier text (lookup), or both (auto).",
        number="for a number of draft tokens use --draft-max",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "-md",
        "--model-draft",
        "--draft-model",
        metavar="MODEL",
        help="GGUF file with the MTP heads or the assistant, if the model's own file has none.  "
        "[default: mtp-*.gguf next to the model]",
    ),
]
DraftMax = Annotated[
    Any,
    typer.Option(
        "--spec-draft-n-max",
        "--draft-max",
        parser=auto_or_integer(0, 32),
        metavar="K",
        autocompletion=completing(["auto"]),
        help="Draft tokens per round, at most 32; 0: no drafting; auto: adapts to what is fastest.",
    ),
]

DraftLookup = Annotated[
    Literal["off", "self", "shared"],
    choice(Literal["off", "self", "shared"], "--draft-lookup", help_text="Where K is auto: also draft repeated text."),
]
MtpContextMode = Annotated[
    MtpContext,
    choice(
        MtpContext,
        "--mtp-context",
        help_text="With several heads: each reads the head before it (chained, as trained), or all read the trunk "
        "(target); auto: chained.",
    ),
]
DraftVocab = Annotated[
    Any,
    typer.Option(
        "--draft-vocab",
        parser=_draft_vocab,
        metavar="N|auto|FILE",
        help="Draft only the first N tokens, as many as pay (auto), or the ids in FILE.  [default: all]",
    ),
]
HeadType = Literal["f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_0", "q4_k", "q4_0", "iq4_nl", "iq4_xs"]
DraftHeadType = Annotated[
    HeadType | None,
    choice(
        HeadType,
        "--draft-head-type",
        help_text="Draft with the output matrix converted to this type.  [default: as in the file]",
    ),
]

SynthRates = Annotated[
    str | None,
    typer.Option(
        "--spec-synth-rates",
        metavar="P,P,...",
        help="For benchmarks: accept drafts at random, at these rates by position. The output is not valid.",
    ),
]
SynthLen = Annotated[
    float | None,
    typer.Option("--spec-synth-len", metavar="L", help="Same, at rates that give a mean acceptance length of L."),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Color = Annotated[bool, typer.Option("-co", "--color", help="On a terminal, show accepted drafts in another colour.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show llama.cpp's log and the engine's counters on stderr.")]
Debug = Annotated[
    bool, typer.Option("--debug", is_eager=True, callback=_remember_debug, help="Show tracebacks of errors.")
]


def with_model(command: Command) -> Command:
    """Replace a command's parameter `model_options` (a dict of keywords for pymtp.Model) by the flags of the model."""
    return with_flags(command, "model_options", _MODEL, _model_options)


IMAGES: dict[str, tuple[Any, Any]] = {
    "mmproj": (Mmproj, None),
    "image_min_tokens": (ImageMinTokens, None),
    "image_max_tokens": (ImageMaxTokens, None),
}
"""Flags of models that take images, by the names of ModelParams' fields."""

_MODEL = {
    "draft": (DraftMode, "auto"),
    "draft_model": (DraftModel, None),
    "draft_max": (DraftMax, "auto"),
    "draft_lookup": (DraftLookup, "self"),
    "draft_vocab": (DraftVocab, None),
    "draft_head_type": (DraftHeadType, None),
    "mtp_context": (MtpContextMode, "auto"),
    "n_ctx": (CtxSize, None),
    "n_batch": (BatchSize, 2048),
    "n_ubatch": (UbatchSize, 512),
    "n_threads": (Threads, None),
    "n_gpu_layers": (GpuLayers, -1),
    "flash_attn": (FlashAttn, "auto"),
    "type_k": (CacheTypeK, "f16"),
    "type_v": (CacheTypeV, "f16"),
    **ADAPTERS,
    **IMAGES,
    **THREADS,
    **PLACEMENT,
}


def _model_options(values: dict[str, Any]) -> dict[str, Any]:
    if values["draft"] in ("mtp", "lookup") and values["draft_max"] == 0:
        raise typer.BadParameter(f"--draft {values['draft']} and --draft-max 0 contradict each other: leave one out")
    own = {name: value for name, value in values.items() if name not in {**ADAPTERS, **PLACEMENT, **THREADS}}
    own = {name: value for name, value in own.items() if name not in IMAGES or value is not None}
    if lora := adapters_of(values):
        own["lora"] = lora
    return {
        **own,
        **threads_given(values),
        **placement_of(values),
        "draft": values["draft"] if values["draft_max"] else "none",
    }
