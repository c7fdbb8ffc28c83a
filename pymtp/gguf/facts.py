"""What a GGUF says about the model in it, without loading a weight.

Owns the facts that other packages use: `GgufInfo`. Never touches the native library.

Does not check whether an architecture is supported: a list of our own would have to follow the
pinned llama.cpp. The loader decides: see loader.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pymtp.errors import ModelError
from pymtp.gguf.header import Shard, TensorInfo, Value
from pymtp.gguf.model_file import DRAFT_TOKENS, ModelFile, read_model
from pymtp.gguf.side_files import mismatch, side_files_of
from pymtp.gguf.types import FILE_TYPES, SAMPLING_PREFIX
from pymtp.text.files import StrPath

N_CTX_MAX = 4096
"""Tokens of a context that nobody has asked for."""


def context_size(n_ctx: int | None, n_ctx_train: int, n_ctx_max: int = N_CTX_MAX) -> int:
    """The tokens that `n_ctx` stands for. None: as the model was trained, but at most `n_ctx_max`; 0: as trained."""
    return min(n_ctx_train or N_CTX_MAX, n_ctx_max) if n_ctx is None else n_ctx or n_ctx_train


@dataclass(frozen=True)
class GgufInfo:
    """Facts of one model file; sizes and counts cover all the parts of a split model."""

    path: Path
    draft_model: Path | None
    """The file that holds the assistant, or the MTP heads if they are not in the model's own file."""
    has_assistant: bool
    """Whether `draft_model` is an assistant: a small model that drafts for this one, whose cache it reads."""
    files: tuple[Path, ...]
    """The model's files in the loader's order: metadata comes from the first; a tensor that is in several comes from
    the last. Without an assistant's, which is loaded separately."""
    architecture: str
    name: str | None
    quantization: str | None
    """Name of the file type, such as "Q4_K_M"."""
    n_layer: int
    """Layers of the target, MTP layers not counted."""
    n_ctx_train: int
    n_vocab: int
    n_heads_declared: int
    """MTP heads according to the metadata (`<architecture>.nextn_predict_layers`). An assistant counts as one."""
    n_heads: int
    """MTP heads whose tensors are in the file. Some converters keep the key and drop the tensors."""
    n_draft_vocab: int | None
    """Tokens that heads in a file of their own draft, if they are trimmed to a part of the vocabulary."""
    embedding_type: int | None
    """The ggml_type of the token embedding; None if there is none."""
    ties_embedding: bool
    """Whether the token embedding is the output matrix as well."""
    n_tensors: int
    n_parameters: int
    size_bytes: int
    chat_template: str | None
    sampling: Mapping[str, Value] = field(default_factory=dict, hash=False)
    """What the file recommends for sampling: `general.sampling.*`, by the part of the key after that."""
    model_file: ModelFile = field(kw_only=True, repr=False, compare=False)
    """What the headers of the model's file hold."""
    draft_file: ModelFile | None = field(kw_only=True, repr=False, compare=False)
    """What the headers of `draft_model` hold."""

    @property
    def shards(self) -> list[Shard]:
        """All files, an assistant's too, in the order of `files`."""
        return [*(self.draft_file.shards if self.draft_file else []), *self.model_file.shards]

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """What is loaded: tensors of the model, and those that heads in a file of their own add; no assistant's."""
        return _tensors(self.model_file, None if self.has_assistant else self.draft_file)

    @property
    def is_assistant(self) -> bool:
        """Whether the file is itself an assistant; only with `file_facts`."""
        return self.model_file.is_assistant

    @property
    def has_heads(self) -> bool:
        """Whether there are heads to draft with, or an assistant: the metadata names some, and all are in the file."""
        return self.n_heads == self.n_heads_declared > 0

    @property
    def n_layer_all(self) -> int:
        """Layers of the target and of its heads."""
        return self.n_layer + (0 if self.has_assistant else self.n_heads_declared)


def model_facts(path: StrPath, draft_model: StrPath | None = None) -> GgufInfo:
    """Read metadata and tensor infos of the GGUF at `path`, and of its other parts if it is split.

    `draft_model` names the model's assistant, or the file with its MTP heads if they are not in its own.

    Raises ModelError with one line that names the fix: no such file, a directory, an empty file, not
    a GGUF or one of an unknown version, truncated, damaged, unreadable, a missing part, something
    other than a model, heads without a model, or heads that are not this model's.
    """
    model = read_model(path)
    fix = "model, and this file with draft_model (--draft-model)"
    if model.is_assistant:
        raise ModelError(f"{model.path} is an assistant, which drafts for another model; name that {fix}")
    if model.is_heads_alone:
        raise ModelError(f"{model.path} holds only MTP heads; name the {fix}")
    if draft_model is None:
        return _info(model, None)
    heads = read_model(draft_model, model.replaced)
    if problem := mismatch(model, heads):
        raise ModelError(f"{problem}; name the draft file that belongs to the model, or none")
    return _info(model, heads)


def file_facts(path: StrPath) -> GgufInfo:
    """Like `model_facts`, but also accepts files that are not complete models: MTP heads alone, or an assistant."""
    return _info(read_model(path), None)


def find_draft_model(path: StrPath) -> tuple[ModelFile | None, str | None]:
    """Look for a file mtp-*.gguf with heads or an assistant next to the model at `path`, if that has no heads itself.

    Returns the file, or one line that says why none of the files can be used; (None, None) if there are none.
    """
    model = read_model(path)
    fitting: list[ModelFile] = []
    problems: list[str] = []
    for candidate in side_files_of(model) if model.n_heads == 0 else []:
        try:
            heads = ModelFile(candidate, model.replaced)
            if problem := mismatch(model, heads):
                problems.append(problem)
            else:
                fitting.append(heads)
        except ModelError as error:  # the user did not name this file: not an error
            problems.append(str(error))
    if len(fitting) > 1:
        names = ", ".join(heads.path.name for heads in fitting)
        several = f"several files next to {model.path} hold its MTP heads ({names})"
        return None, f"{several}, draft_model (--draft-model) picks one"
    return (fitting[0], None) if fitting else (None, next(iter(problems), None))


def _info(model: ModelFile, heads: ModelFile | None) -> GgufInfo:
    source = heads or model
    has_assistant = heads is not None and heads.is_assistant
    named = _tensors(model, None if has_assistant else heads)
    tensors = [*named.values(), *(heads.tensors.values() if heads and has_assistant else [])]
    shards = [*(heads.shards if heads else []), *model.shards]
    file_type = model.metadata.get("general.file_type")
    embedding = named.get("token_embd.weight")
    return GgufInfo(
        path=model.path,
        draft_model=heads.path if heads else None,
        has_assistant=has_assistant,
        files=tuple(shard.path for shard in (model.shards if has_assistant else shards)),
        architecture=model.architecture,
        name=model.text("general.name"),
        quantization=FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        n_layer=model.n_layer,
        n_ctx_train=model.number("context_length"),
        n_vocab=model.n_vocab,
        n_heads_declared=source.n_heads_declared,
        n_heads=source.n_heads,
        n_draft_vocab=heads.n_draft_vocab if heads else None,
        embedding_type=embedding.type_id if embedding else None,
        ties_embedding="output.weight" not in named,
        n_tensors=len(tensors),
        n_parameters=sum(tensor.n_elements for tensor in tensors),
        size_bytes=sum(shard.size_bytes for shard in shards),
        chat_template=model.text("tokenizer.chat_template"),
        sampling={
            key.removeprefix(SAMPLING_PREFIX): v for key, v in model.metadata.items() if key.startswith(SAMPLING_PREFIX)
        },
        model_file=model,
        draft_file=heads,
    )


def _tensors(model: ModelFile, heads: ModelFile | None) -> dict[str, TensorInfo]:
    of_heads = heads.tensors if heads else {}  # they repeat tensors of the model
    if heads and heads.n_draft_vocab is not None:  # their outputs are not the model's, and the loader leaves them out
        of_heads = {name: each for name, each in of_heads.items() if name != DRAFT_TOKENS and not heads.is_output(name)}
    return {**of_heads, **model.tensors}
