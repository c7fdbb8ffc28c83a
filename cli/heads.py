"""`pymtp heads`: MTP heads as files of their own.

Owns the flags of its commands, and what they print.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options as opt
from .flags import Command, with_flags
from .interrupt import cleaning_up
from .layout import printable, size_text
from .output import Output, print_stderr
from .parsers import completing, one_of
from .progress import writing

if TYPE_CHECKING:
    from pymtp.heads import Change, HeadList, HeadTypes, ListedHead

EXAMPLES = """
pymtp heads list model.gguf
pymtp heads extract model.gguf -o mtp-model.gguf
pymtp heads quantize mtp-model.gguf -o mtp-small.gguf --type q4_k
"""

TYPES = (
    *("f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs"),
    *("q3_k", "q2_k", "mxfp4"),
)
"""The types of pymtp.heads.rows, which takes longer to import than a help text may; a test compares them."""


def _pattern_and_type(text: str) -> tuple[str, str]:
    pattern, equals, kind = text.rpartition("=")
    if not (pattern and equals and kind):
        raise typer.BadParameter(f"must be PATTERN=TYPE, not {text!r}")
    return pattern, kind


Model = Annotated[Path, typer.Argument(metavar="MODEL", show_default=False)]
Written = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")]
WrittenBeside = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="File to write.  [default: mtp-MODEL next to the model]"),
]
Bare = Annotated[
    bool,
    typer.Option(
        "--bare", help="Leave out the copies of the model's embedding and output: smaller, but for pymtp only."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE if there is one.")]


def _type_option(*names: str, help_text: str) -> Any:
    return typer.Option(*names, parser=one_of(TYPES), metavar="TYPE", help=help_text, autocompletion=completing(TYPES))


Type = Annotated[
    str | None, _type_option("--type", help_text=f"Type of the heads' matrices, one of {', '.join(TYPES)}.")
]
OutputType = Annotated[
    str | None,
    _type_option(
        "--output-tensor-type", help_text="Type of the heads' own output matrices.  [default: that of --type]"
    ),
]
ExpertsType = Annotated[
    str | None, _type_option("--experts-type", help_text="Type of routed experts.  [default: that of --type]")
]
TensorType = Annotated[
    list[Any] | None,
    typer.Option(
        "--tensor-type",
        parser=_pattern_and_type,
        metavar="PATTERN=TYPE",
        help="Type of tensors whose names match PATTERN; may be repeated, the first match counts.",
    ),
]


_TYPE_FLAGS = {
    "type": (Type, None),
    "output_type": (OutputType, None),
    "experts_type": (ExpertsType, None),
    "tensor_type": (TensorType, None),
}


def _with_types(command: Command) -> Command:
    """Replace a command's parameter `types` (pymtp.heads.HeadTypes) by the flags of the types."""
    return with_flags(command, "types", _TYPE_FLAGS, _head_types)


def _head_types(given: dict[str, Any]) -> HeadTypes:
    from pymtp.heads import HeadTypes

    return HeadTypes(**{**given, "tensor_type": tuple(given["tensor_type"] or ())})


def list_(model: Model, as_json: opt.Json = False, debug: opt.Debug = False) -> None:
    """List a model's MTP heads, and what a draft reads.

    Of a model without heads, those in the file mtp-*.gguf next to it that pymtp would draft with.
    """
    output = Output()
    from pymtp.heads import list_heads

    found = list_heads(model)
    output.write((_as_json(found) if as_json else _as_text(found)) + "\n")


def extract(
    model: Model, output: WrittenBeside = None, bare: Bare = False, force: Force = False, debug: opt.Debug = False
) -> None:
    """Write a model's MTP heads to a file of their own.

    Bit for bit those of the model. Such a file drafts for a GGUF of the model without heads: next to it and named
    mtp-*.gguf it is found, else --draft-model names it.
    """
    from pymtp.heads import extract_heads

    _write(lambda show: extract_heads(model, output, bare=bare, force=force, on_write=show))


def attach(
    model: Model,
    heads: Annotated[Path, typer.Argument(metavar="HEADS", show_default=False)],
    output: Written,
    force: Force = False,
    debug: opt.Debug = False,
) -> None:
    """Write a model and MTP heads to one file.

    MODEL has no heads, HEADS is a file of its own with nothing else; heads of another model are refused. Of a model in
    several files, name the first.
    """
    from pymtp.heads import attach_heads

    _write(lambda show: attach_heads(model, heads, output, force=force, on_write=show))


@_with_types
def quantize(model: Model, output: Written, force: Force = False, debug: opt.Debug = False, types: Any = None) -> None:
    """Write MTP heads in types of fewer bits.

    MODEL is a model, or a file with its heads alone. The heads' matrices get other types. Everything else stays as it
    is, bit for bit: the trunk, norms, biases and routers. Text does not change, only how many drafts are right, and
    what a draft reads. Start from as many bits as there are: what is lost stays lost.
    """
    from pymtp.heads import quantize_heads

    changes: list[Change] = []

    def run(show: Any) -> Path:
        changes.extend(quantize_heads(model, output, types, force=force, on_write=show))
        return output

    _write(run)
    for change in changes:
        instead = f", as the blocks of {change.wanted} do not fit its rows" if change.wanted else ""
        print_stderr(f"{printable(change.name)}: {change.before} to {change.after}{instead}")


@_with_types
def convert(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", show_default=False)],
    model: Model,
    output: WrittenBeside = None,
    bare: Bare = False,
    force: Force = False,
    debug: opt.Debug = False,
    types: Any = None,
) -> None:
    """Make MTP heads of a Hugging Face checkpoint.

    They are for a GGUF of the same model, or of a finetune of it. CHECKPOINT is a folder with config.json and the
    safetensors files that hold the heads; others need not be there. MODEL is a GGUF without heads. Matrices keep the
    checkpoint's type where --type names no other.
    """
    from pymtp.heads import convert_heads

    _write(lambda show: convert_heads(checkpoint, model, output, types=types, bare=bare, force=force, on_write=show))


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "list": (list_, "pymtp heads list model.gguf\npymtp heads list mtp-model.gguf --json"),
    "extract": (extract, "pymtp heads extract model.gguf\npymtp heads extract model.gguf -o mtp-heads.gguf --bare"),
    "attach": (attach, "pymtp heads attach model.gguf mtp-model.gguf -o whole.gguf"),
    "quantize": (
        quantize,
        "pymtp heads quantize model.gguf -o smaller.gguf --type q4_k\n"
        "pymtp heads quantize heads.gguf -o small.gguf --type q8_0 --experts-type q4_k\n"
        "pymtp heads quantize model.gguf -o smaller.gguf --tensor-type attn_.*=q6_k",
    ),
    "convert": (
        convert,
        "pymtp heads convert GLM-4.5-Air/ GLM-4.5-Air-Q4_K_M.gguf --type q8_0\n"
        "pymtp heads convert GLM-4.5-Air/ finetune.gguf -o mtp-finetune.gguf",
    ),
}
"""Functions and examples, by name."""


def _write(run: Callable[[Any], Path]) -> None:
    with cleaning_up(), writing() as show:
        path = run(show)
    print_stderr(f"pymtp: wrote {path}, {size_text(path.stat().st_size)}")


def _as_json(found: HeadList) -> str:
    return json.dumps({**asdict(found), "path": str(found.path)}, ensure_ascii=False)


def _as_text(found: HeadList) -> str:
    blocks = [f"{found.path}, {printable(found.architecture)}"]
    for head in found.heads:
        width = max(len(tensor.name) for tensor in head.tensors)
        lines = [
            f"{printable(tensor.name):<{width}}  {tensor.type:<6} {size_text(tensor.size_bytes):>10}  "
            f"{' x '.join(map(str, tensor.shape))}"
            for tensor in head.tensors
        ]
        blocks.append("\n".join([_head(head, found.trunk_pass_bytes), *lines]))
    return "\n\n".join(blocks)


def _head(head: ListedHead, trunk_bytes: int | None) -> str:
    share = f", {head.pass_bytes / trunk_bytes:.0%} of a trunk pass" if trunk_bytes else ""
    output = "" if head.lm_head == "own" else " with the trunk's output matrix"
    reads = f"{size_text(head.pass_bytes)}{output}{share}"
    return f"layer {head.layer}: {size_text(head.size_bytes)}; a draft token reads {reads}"
