"""MTP heads or an assistant in a separate file, named mtp-*.gguf.

llama.cpp's converter writes heads with --mtp; their file repeats the metadata of the whole model, and its embeddings,
last norm and output. These heads may be trimmed: their output matrices have rows for a part of the vocabulary, which
the tensor d2t lists. An assistant is a separate model. Owns which file belongs to which model; reads headers only.
"""

from pathlib import Path

from pymtp.gguf.header import ArrayLength, Value
from pymtp.gguf.model_file import DRAFT_TOKENS, TRAINED_FOR, ModelFile
from pymtp.gguf.types import TYPE_IDS

OWN_KEYS = ("block_count", "nextn_predict_layers")
"""How the keys end that always differ between a model and its heads."""
# describe the keys and values that an assistant reads
_KV_KEYS = (
    *("attention.key_length", "attention.key_length_swa", "attention.sliding_window"),
    *("rope.dimension_count", "rope.dimension_count_swa", "rope.freq_base", "rope.freq_base_swa"),
)


def side_files_of(model: ModelFile) -> list[Path]:
    """The files next to `model` whose names say that they hold its heads or its assistant."""
    return sorted(path for path in model.path.parent.glob("mtp-*.gguf") if path != model.path)


def mismatch(model: ModelFile, heads: ModelFile) -> str | None:
    """Why `heads` cannot be the heads of `model`, or its assistant; None if it can."""
    if model.n_heads:
        return f"{model.path} has its own MTP heads, so those in {heads.path} cannot be used"
    if heads.is_assistant:
        other = _difference_of_assistant(model, heads)
        return f"{heads.path} is not an assistant of {model.path} ({other})" if other else None
    if heads.n_layers_read:
        what = f"({heads.architecture}, from hidden states of {heads.n_layers_read} layers)"
        return f"{heads.path} drafts in a way that pymtp does not have {what}"
    if heads.n_heads == 0 or heads.n_heads != heads.n_heads_declared:
        return f"{heads.path} holds no usable MTP heads"
    if len(heads.shards) > 1:
        return f"{heads.path} is one of several parts, but heads must be in one file"
    difference = _difference(model, heads)
    return f"{heads.path} does not hold the heads of {model.path} ({difference})" if difference else None


def _difference(model: ModelFile, heads: ModelFile) -> str | None:
    if heads.architecture != model.architecture:
        return f"its architecture is {heads.architecture}, not {model.architecture}"
    for what, theirs, ours in (("layers", heads.n_layer, model.n_layer), ("tokens", heads.n_vocab, model.n_vocab)):
        if theirs != ours:
            return f"it is of a model with {theirs} {what}, not {ours}"
    for key in sorted(model.metadata.keys() & heads.metadata.keys()):
        is_common = key.startswith(f"{model.architecture}.") and not key.endswith(OWN_KEYS)
        if is_common and not _agree(model.metadata[key], heads.metadata[key], heads.n_heads):
            return f"{key} is {heads.metadata[key]}, not {model.metadata[key]}"
    n_draft = heads.n_draft_vocab
    if n_draft is not None and (problem := _problem_of_trimmed(heads, n_draft)):
        return problem
    for name, tensor in heads.tensors.items():
        is_trimmed = n_draft is not None and (name == DRAFT_TOKENS or heads.is_output(name))
        if is_trimmed or name.startswith(heads.head_prefixes):
            continue
        if name not in model.tensors:
            return f"it holds {name}, which the model does not have"
        if tensor.shape != model.tensors[name].shape:
            return f"{name} has another shape"
    if heads.is_trained and heads.text(TRAINED_FOR) != model.trunk_id:
        return "it was trained for another model of this shape: train it further, heads train --init"
    return None


def _problem_of_trimmed(heads: ModelFile, n_draft: int) -> str | None:
    """Why heads that draft a part of the vocabulary cannot be used."""
    if n_draft == 0 or heads.tensors[DRAFT_TOKENS].type_id not in (TYPE_IDS["i32"], TYPE_IDS["i64"]):
        return f"{DRAFT_TOKENS} holds no token ids"
    shapes = {name: tensor.shape for name, tensor in heads.tensors.items() if heads.is_output(name)}
    if not shapes:
        return f"it has {DRAFT_TOKENS} and no output matrix"
    fits = (heads.number("embedding_length"), n_draft)
    other = next((name for name, shape in shapes.items() if tuple(shape) != fits), None)
    return f"{other} has the shape {tuple(shapes[other])}, not {fits} as {DRAFT_TOKENS} says" if other else None


def _difference_of_assistant(model: ModelFile, assistant: ModelFile) -> str | None:
    if assistant.architecture != f"{model.architecture}-assistant":
        return f"its architecture is {assistant.architecture}, the model's {model.architecture}"
    if assistant.n_vocab != model.n_vocab:
        return f"it is of a model with {assistant.n_vocab} tokens, not {model.n_vocab}"
    theirs, ours = assistant.number("embedding_length_out"), model.number("embedding_length")
    if theirs != ours:
        return f"it is of a model with hidden states of {theirs} numbers, not {ours}"
    for key in _KV_KEYS:
        found, expected = assistant.value(key), model.value(key)
        if None not in (found, expected) and found != expected:
            return f"{key} is {found}, not {expected}"
    return None


def _agree(ours: Value, theirs: Value, n_heads: int) -> bool:
    if isinstance(ours, ArrayLength) and isinstance(theirs, ArrayLength):
        return theirs.length - ours.length in (0, n_heads)  # one value for each layer: heads are layers too
    return theirs == ours
