"""Heads in files: taken out of a model's file, and put into one.

A file with heads alone is what llama.cpp's converter writes with --mtp: all metadata of the model, its heads, and a
copy of what is outside of the layers, which other programs need to load it as a model. Owns which tensors and keys
go where.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pymtp.errors import ModelError, UnsupportedModel
from pymtp.gguf.model_file import TRAINED_FOR, ModelFile, layer_of
from pymtp.gguf.side_files import OWN_KEYS, mismatch
from pymtp.gguf.writer import Metadata, OnWrite, Tensor, stored, write_gguf
from pymtp.text.files import StrPath

_PART = re.compile(r"-\d{5}-of-\d{5}$")


def default_target(model: StrPath) -> Path:
    """Where pymtp looks for the heads of a model: mtp-*.gguf next to it."""
    path = Path(model)
    return path.with_name(f"mtp-{_PART.sub('', path.stem)}.gguf")


def check_target(target: Path, inputs: Iterable[Path], *, force: bool) -> None:
    """Refuse a file that is read, or one that is there without `force`, or a folder that is not. Raises ModelError.

    A pipe or a device is refused even with `force`, which would put a file in its place. Path's own questions would
    raise for names that are too long, which write_gguf explains.
    """
    if target == Path("-"):
        raise ModelError("heads are not written to stdout; name a file")
    if os.path.exists(target) and any(each.exists() and target.samefile(each) for each in inputs):
        raise ModelError(f"{target} is read and cannot be written as well; name another file")
    if os.path.isdir(target):
        raise ModelError(f"{target} is a directory; name the file to write")
    if os.path.exists(target) and not os.path.isfile(target):
        raise ModelError(f"{target} is not a regular file; name the file to write")
    if not os.path.isdir(target.parent):
        raise ModelError(f"{target.parent}: no such directory; make it first, or name another file")
    if os.path.lexists(target) and not force:
        raise ModelError(f"{target} exists; name another file, or replace it (--force)")


def need_heads(model: ModelFile) -> None:
    """Raise UnsupportedModel unless all MTP heads that a file names are in it."""
    if model.is_assistant:
        raise UnsupportedModel(f"{model.path} is an assistant, a model of its own, and no MTP heads; name another file")
    if model.n_heads_declared == 0:
        raise UnsupportedModel(f"{model.path} names no MTP heads (nextn_predict_layers = 0); name a file that has some")
    if model.n_heads != model.n_heads_declared:
        what = f"names {model.n_heads_declared} MTP heads and holds the tensors of {model.n_heads}"
        raise UnsupportedModel(f"{model.path} {what}; name a file that was converted with them")


def extract_heads(
    path: StrPath,
    target: StrPath | None = None,
    *,
    bare: bool = False,
    force: bool = False,
    on_write: OnWrite | None = None,
) -> Path:
    """Write the MTP heads of the model at `path` to a file of their own, mtp-*.gguf next to the model by default.

    `bare`: without the copies of embedding, last norm and output that other programs need and pymtp takes from the
    model. Returns the file. Raises ModelError.
    """
    model, out = ModelFile(Path(path)), Path(target) if target else default_target(path)
    need_heads(model)
    if model.is_heads_alone:
        raise UnsupportedModel(f"{path} holds MTP heads alone already; name a model")
    check_target(out, [shard.path for shard in model.shards], force=force)
    metadata = Metadata(model.shards[0])
    outside = [] if bare else [tensor for name, tensor in model.tensors.items() if layer_of(name) is None]
    # embeddings by layer are large, and no head reads them
    shared = [stored(tensor) for tensor in outside if tensor.name != "per_layer_token_embd.weight"]
    write_gguf(out, metadata, [*shared, *_tensors_of_heads(model)], on_write)
    return out


def _tensors_of_heads(model: ModelFile) -> list[Tensor]:
    return [stored(tensor) for name, tensor in model.tensors.items() if name.startswith(model.head_prefixes)]


def attach_heads(
    path: StrPath, heads: StrPath, target: StrPath, *, force: bool = False, on_write: OnWrite | None = None
) -> Path:
    """Write the model at `path`, which has no heads, and the heads in a file of their own to one file.

    Metadata is the model's, but for what says that there are heads. Returns the file. Raises ModelError: for heads that
    are not this model's too.
    """
    model, side, out = ModelFile(Path(path)), ModelFile(Path(heads)), Path(target)
    if side.is_assistant or side.n_draft_vocab is not None:
        what = "is an assistant" if side.is_assistant else "drafts a part of the vocabulary"
        raise UnsupportedModel(f"{heads} {what}, which stays in a file of its own; name it with --draft-model")
    if problem := mismatch(model, side):
        fix = "it needs none" if model.n_heads else "name the heads that belong to the model"
        raise ModelError(f"{problem}; {fix}")
    check_target(out, [shard.path for shard in [*model.shards, *side.shards]], force=force)
    tensors = {tensor.name: tensor for tensor in (*map(stored, model.tensors.values()), *_tensors_of_heads(side))}
    write_gguf(out, _joined_metadata(model, side), [*tensors.values()], on_write)
    return out


def _joined_metadata(model: ModelFile, side: ModelFile) -> Metadata:
    metadata, of_heads = Metadata(model.shards[0]), Metadata(side.shards[0])
    for key in of_heads.pairs:
        if not key.startswith((f"{model.architecture}.", TRAINED_FOR)):
            continue
        if key in metadata.pairs and not key.endswith(OWN_KEYS):
            if model.length(key) == side.length(key):
                continue
            name = key.removeprefix(f"{model.architecture}.")
            values = model.by_layer(name)
            if side.by_layer(name)[: len(values)] != values:
                what = f"does not hold the heads of {model.path} ({key} differs in the trunk's layers)"
                raise ModelError(f"{side.path} {what}; name the heads that belong to the model")
        metadata.pairs[key] = of_heads.pairs[key]
    return metadata
