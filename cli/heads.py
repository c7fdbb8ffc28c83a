"""`pymtp heads`: MTP heads as files of their own.

Owns what its commands print.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .flags import Values, with_flags
from .interrupt import cleaning_up
from .output import Output, print_stderr
from .progress import writing
from .table import flags_of
from .text import printable, size_text

if TYPE_CHECKING:
    from pymtp.heads import Change, HeadList, HeadTypes, ListedHead

EXAMPLES = """
pymtp heads list model.gguf
pymtp heads extract model.gguf -o mtp-model.gguf
pymtp heads quantize mtp-model.gguf -o mtp-small.gguf --type q4_k
"""


@with_flags(flags_of("list"))
def list_(own: Values) -> None:
    """List a model's MTP heads, and what a draft reads.

    Of a model without heads, those in the file mtp-*.gguf next to it that pymtp would draft with.
    """
    output = Output()
    from pymtp.heads import list_heads

    found = list_heads(own.model)
    facts = {**asdict(found), "path": str(found.path)}
    output.write((json.dumps(facts, ensure_ascii=False) if own.as_json else _as_text(found)) + "\n")


@with_flags(flags_of("extract"))
def extract(own: Values) -> None:
    """Write a model's MTP heads to a file of their own.

    Bit for bit those of the model. Such a file drafts for a GGUF of the model without heads: next to it and named
    mtp-*.gguf it is found, else --draft-model names it.
    """
    from pymtp.heads import extract_heads

    _write(lambda show: extract_heads(own.model, own.output, bare=own.bare, force=own.force, on_write=show))


@with_flags(flags_of("attach"))
def attach(own: Values) -> None:
    """Write a model and MTP heads to one file.

    MODEL has no heads, HEADS is a file of its own with nothing else; heads of another model are refused. Of a model in
    several files, name the first.
    """
    from pymtp.heads import attach_heads

    _write(lambda show: attach_heads(own.model, own.heads, own.output, force=own.force, on_write=show))


@with_flags(flags_of("quantize"))
def quantize(own: Values) -> None:
    """Write MTP heads in types of fewer bits.

    MODEL is a model, or a file with its heads alone. The heads' matrices get other types. Everything else stays as it
    is, bit for bit: the trunk, norms, biases and routers. Text does not change, only how many drafts are right, and
    what a draft reads. Start from as many bits as there are: what is lost stays lost.
    """
    from pymtp.heads import quantize_heads

    changes: list[Change] = []

    def run(show: Any) -> Path:
        changes.extend(quantize_heads(own.model, own.output, _types(own), force=own.force, on_write=show))
        return Path(own.output)

    _write(run)
    for change in changes:
        instead = f", as the blocks of {change.wanted} do not fit its rows" if change.wanted else ""
        print_stderr(f"{printable(change.name)}: {change.before} to {change.after}{instead}")


@with_flags(flags_of("convert"))
def convert(own: Values) -> None:
    """Make MTP heads of a Hugging Face checkpoint.

    They are for a GGUF of the same model, or of a finetune of it. CHECKPOINT is a folder with config.json and the
    safetensors files that hold the heads; others need not be there. MODEL is a GGUF without heads. Matrices keep the
    checkpoint's type where --type names no other.
    """
    from pymtp.heads import convert_heads

    options = {"types": _types(own), "bare": own.bare, "force": own.force}
    _write(lambda show: convert_heads(own.checkpoint, own.model, own.output, **options, on_write=show))


@with_flags(flags_of("train"))
def train(own: Values) -> None:
    """Train an MTP head for a model that has none.

    One layer learns to say what the model says next, from texts and from the model's own answers. Needs PyTorch: pip
    install 'pymtp-gguf[train]'. Ctrl-C, or a loss of power, loses a minute at most: the same command continues.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for PyTorch's threads, where others want the cores too
    from pymtp.training import TrainParams, train_head

    values = {name: getattr(own, name) for name in ("init", "minutes", "n_rows", "n_steps", "type", "n_threads")}
    params = TrainParams(data=tuple(own.data), device=own.device, seed=own.seed, **values)
    with cleaning_up():
        path = train_head(own.model, own.output, params=params, force=own.force, on_progress=print_stderr)
    print_stderr(f"pymtp: wrote {path}, {size_text(path.stat().st_size)}; what it gains:")
    print_stderr(f"pymtp bench {own.model} --draft-model {path} --draft-max 0-3,auto")


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
    "train": (
        train,
        "pymtp heads train model.gguf --minutes 60\n"
        "pymtp heads train model.gguf --data notes.txt --data prompts.jsonl\n"
        "pymtp heads train finetune.gguf --init mtp-model.gguf --minutes 10",
    ),
}
"""Functions and examples, by name."""


def _types(own: Values) -> "HeadTypes":
    from pymtp.heads import HeadTypes

    return HeadTypes(own.type, own.output_type, own.experts_type, tuple(own.tensor_type))


def _write(run: Callable[[Any], Path]) -> None:
    with cleaning_up(), writing() as show:
        path = run(show)
    print_stderr(f"pymtp: wrote {path}, {size_text(path.stat().st_size)}")


def _as_text(found: "HeadList") -> str:
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


def _head(head: "ListedHead", trunk_bytes: int | None) -> str:
    share = f", {head.pass_bytes / trunk_bytes:.0%} of a trunk pass" if trunk_bytes else ""
    output = "" if head.lm_head == "own" else " with the trunk's output matrix"
    reads = f"{size_text(head.pass_bytes)}{output}{share}"
    return f"layer {head.layer}: {size_text(head.size_bytes)}; a draft token reads {reads}"
