"""The flags of `pymtp bench`: lists where other commands take one value, in llama-bench's notation.

Owns names, types, help texts and the parsing of lists. Knows nothing about what is measured with them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_args

import typer

from . import options as opt
from .parsers import MAX_INT, auto_or_integer, completing, integer, one_of
from .threads import MAX_THREADS

FORMATS = ("none", "md", "csv", "json", "jsonl", "sql")
ACCEPT = ("auto", "match", "rejection", "rejection-tokenwise", "relaxed")

_ITEM = re.compile(r"(?P<first>\d+)-(?P<last>\d+)((?P<how>[+*])(?P<step>\d+))?")
_MAX_ITEMS = 1000


def each(occurrences: Iterable[Iterable[Any]]) -> list[Any]:
    """All values of a list flag that may be given several times, without duplicates."""
    return list(dict.fromkeys(value for values in occurrences for value in values))


def integers(
    least: int, most: int = MAX_INT, *, one: Callable[[str], Any] | None = None
) -> Callable[[str], tuple[Any, ...]]:
    """A parser of `1,2`, `1-8`, `0-8+2` (steps of 2) and `128-1024*2` (doubling). `one`: parses each value."""
    one = one or integer(least, most)

    def parse(text: str) -> tuple[Any, ...]:
        values: list[Any] = []
        for item in text.split(","):
            found = _ITEM.fullmatch(item)
            values += [one(str(value)) for value in _range(found, text)] if found else [one(item)]
        return tuple(values)

    return parse


def _range(found: re.Match[str], text: str) -> list[int]:
    first, last, step = int(found["first"]), int(found["last"]), int(found["step"] or 1)
    grows = step > 1 and first > 0 if found["how"] == "*" else step > 0
    values: list[int] = []
    while grows and first <= last and len(values) <= _MAX_ITEMS:
        values.append(first)
        first = first * step if found["how"] == "*" else first + step
    if not 0 < len(values) <= _MAX_ITEMS:
        raise typer.BadParameter(
            f"must be a list such as 1,2 or 1-8 or 0-8+2 or 128-1024*2, of at most {_MAX_ITEMS} values, not {text!r}"
        )
    return values


def numbers(least: float, most: float, range_text: str) -> Callable[[str], tuple[float, ...]]:
    """A parser of `0,0.8`."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            values = tuple(map(float, text.split(",")))
        except ValueError:
            values = ()
        if not values or not all(least <= value <= most for value in values):
            raise typer.BadParameter(f"must be numbers {range_text}, separated by commas, not {text!r}")
        return values

    return parse


def words(choices: Iterable[str], aliases: Mapping[str, str] | None = None) -> Callable[[str], tuple[str, ...]]:
    """A parser of `f16,q8_0`."""
    one = one_of(tuple(choices), aliases=aliases)

    def parse(text: str) -> tuple[str, ...]:
        return tuple(one(word) for word in text.split(","))

    return parse


def _paths(text: str) -> tuple[str, ...]:
    # a file name may contain a comma
    return (text,) if os.path.exists(text) else tuple(filter(None, text.split(",")))


def _pair(text: str) -> tuple[tuple[int, int], ...]:
    parts = text.split(",")
    if len(parts) != 2:
        raise typer.BadParameter(f"must be two numbers such as 512,128, not {text!r}")
    n_prompt, n_gen = map(integer(1), parts)
    return ((n_prompt, n_gen),)


def _list(
    *names: str, parser: Callable[[str], Any], metavar: str, help: str, choices: Sequence[str] | None = None
) -> Any:
    complete = completing(choices) if choices else None
    return Annotated[
        list[Any], typer.Option(*names, parser=parser, metavar=metavar, help=help, autocompletion=complete)
    ]


ModelFiles = _list(
    "-m", "--model", parser=_paths, metavar="MODEL,...", help="GGUF files.  [default: the embedded model]"
)
GpuLayers = _list(
    *("-ngl", "--gpu-layers", "--n-gpu-layers"),
    parser=integers(-1, one=opt.gpu_layers),
    metavar="N|all,...",
    help="Layers on the GPU; -1: all.",
)
Threads = _list(
    "-t",
    "--threads",
    parser=integers(1, MAX_THREADS),
    metavar="N,...",
    help="CPU threads.  [default: one per physical core]",
)

NPrompt = _list("-p", "--n-prompt", parser=integers(0), metavar="N,...", help="Measure prompts of N tokens; 0: none.")
NGen = _list("-n", "--n-gen", parser=integers(0), metavar="N,...", help="Measure N generated tokens; 0: none.")
PromptGen = _list("-pg", parser=_pair, metavar="P,N", help="Measure both together; may be given several times.")
NDepth = _list("-d", "--n-depth", parser=integers(0), metavar="N,...", help="Tokens already in the cache.")
Repetitions = Annotated[
    int, typer.Option("-r", "--repetitions", parser=integer(1, 10000), metavar="N", help="Run each test N times.")
]
PromptsFile = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help='One per line: {"category": "code", "prompt": "..."}, or "messages".  [default: four built-in ones]',
    ),
]
AnswersFile = Annotated[
    str | None,
    typer.Option(
        "--answers",
        metavar="FILE",
        help='Like --prompts, with an "answer" each: the model runs as usual, but these texts are emitted.',
    ),
]
Synthetic = _list(
    "--synthetic",
    parser=numbers(0, 1, "between 0 and 1"),
    metavar="P,...",
    help="Use random prompts and accept each draft with probability P. The output is not valid.",
)
Parallel = _list("--parallel", parser=integers(1, 256), metavar="N,...", help="Sequences generated together.")

BatchSizes = _list("-b", "--batch-size", parser=integers(1), metavar="N,...", help="Prompt tokens per batch.")
UbatchSizes = _list("-ub", "--ubatch-size", parser=integers(1), metavar="N,...", help="Tokens per pass.")
FlashAttn = _list(
    "-fa",
    "--flash-attn",
    parser=words(get_args(opt.FlashAttention), opt.FLASH_ATTENTION_WORDS),
    metavar="on|off|auto,...",
    choices=get_args(opt.FlashAttention),
    help="Flash attention; 1 and 0 mean on and off.",
)
CacheTypeK = _list(
    *("-ctk", "--cache-type-k"),
    parser=words(get_args(opt.CacheType)),
    metavar="TYPE,...",
    choices=get_args(opt.CacheType),
    help="Type of the K cache.",
)
CacheTypeV = _list(
    *("-ctv", "--cache-type-v"),
    parser=words(get_args(opt.CacheType)),
    metavar="TYPE,...",
    choices=get_args(opt.CacheType),
    help="Type of the V cache.",
)

DraftMax = _list(
    "--spec-draft-n-max",
    "--draft-max",
    parser=integers(0, 32, one=auto_or_integer(0, 32)),
    metavar="K,...",
    choices=["auto"],
    help="Draft tokens per round; auto: adapts to what is fastest. 0 (plain decoding) is always measured too.",
)
DraftVocab = _list(
    "--draft-vocab",
    parser=integers(1),
    metavar="N,...",
    help="Draft only from the first N tokens of the vocabulary.  [default: all]",
)
Accept = _list(
    "--accept",
    parser=words(ACCEPT),
    metavar="METHOD,...",
    choices=ACCEPT,
    help=f"Acceptance method: {', '.join(ACCEPT)}.",
)
Temperature = _list(
    *("--temp", "--temperature"), parser=numbers(0, 100, "0 or more"), metavar="T,...", help="Temperature; 0: greedy."
)

OutputFormat = Annotated[
    str,
    typer.Option(
        *("-o", "--output"),
        parser=one_of(FORMATS),
        metavar="md|csv|json|jsonl|sql|none",
        autocompletion=completing(FORMATS),
        help="Output format on stdout.",
    ),
]
ErrorFormat = Annotated[
    str,
    typer.Option(
        *("-oe", "--output-err"),
        parser=one_of(FORMATS),
        metavar="FORMAT",
        autocompletion=completing(FORMATS),
        help="Also print the results on stderr, in this format.",
    ),
]
Wide = Annotated[bool, typer.Option("--wide", help="With md: all columns in one table, wider than a screen.")]
Plot = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE.png|svg", help="Plot speed-up and acceptance rate by K and kind of text."),
]
Compare = Annotated[
    str | None,
    typer.Option("--compare", metavar="FILE", help="Compare with an earlier run, written by -o json, jsonl or csv."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="FILE",
        help="Save each measurement in FILE; the same command continues an interrupted run from it.",
    ),
]
Progress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show on stderr what is being measured, and each test when it is done.  [default: at a terminal]",
    ),
]
NoWarmup = Annotated[bool, typer.Option("--no-warmup", help="Measure without a warm-up run.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show llama.cpp's log on stderr.")]
