"""MTP heads in a file of their own, which llama.cpp's converter writes with --mtp and calls mtp-*.gguf.

Such a file has the metadata of the whole model, the tensors of the heads, and embeddings, last norm and output once
more. Owns which file belongs to which model; reads headers only.
"""

from __future__ import annotations

from pathlib import Path

from pymtp._gguf_header import ArrayLength
from pymtp._gguf_model import ModelFile

# differ as a matter of course between a model and its heads
_OWN_KEYS = ("block_count", "nextn_predict_layers")


def heads_beside(model: ModelFile) -> list[Path]:
    """The files beside `model` that are named as heads in a file of their own."""
    return sorted(path for path in model.path.parent.glob("mtp-*.gguf") if path != model.path)


def misfit(model: ModelFile, heads: ModelFile) -> str | None:
    """Why `heads` cannot be the heads of `model`, None if it can."""
    if model.n_heads:
        return f"{model.path} has MTP heads of its own, {heads.path} would be others"
    if heads.architecture == f"{model.architecture}-assistant":
        return f"{heads.path} is an assistant, a model that reads the cache of another, which pymtp cannot run"
    if heads.n_heads == 0 or heads.n_heads != heads.n_heads_declared:
        return f"{heads.path} holds no usable MTP heads"
    if len(heads.shards) > 1:
        return f"{heads.path} is one of several parts, and heads must be in one file"
    difference = _difference(model, heads)
    return f"{heads.path} does not hold the heads of {model.path} ({difference})" if difference else None


def _difference(model: ModelFile, heads: ModelFile) -> str | None:
    if heads.architecture != model.architecture:
        return f"its architecture is {heads.architecture}, not {model.architecture}"
    for what, theirs, ours in (("layers", heads.n_layer, model.n_layer), ("tokens", heads.n_vocab, model.n_vocab)):
        if theirs != ours:
            return f"it is of a model with {theirs} {what}, not {ours}"
    for key in model.metadata.keys() & heads.metadata.keys():
        if not key.startswith(f"{model.architecture}.") or key.endswith(_OWN_KEYS):
            continue
        ours_, theirs_ = model.metadata[key], heads.metadata[key]
        if isinstance(ours_, ArrayLength) and isinstance(theirs_, ArrayLength):
            # values for each layer: the heads are layers too
            fits = theirs_.length - ours_.length in (0, heads.n_heads)
        else:
            fits = theirs_ == ours_
        if not fits:
            return f"{key} is {theirs_}, not {ours_}"
    for name, tensor in heads.tensors.items():
        if name.startswith(heads.head_prefixes):
            continue
        if name not in model.tensors:
            return f"it holds {name}, which the model has not"
        if tensor.shape != model.tensors[name].shape:
            return f"{name} has another shape"
    return None
