"""What a GGUF says about the model in it, without loading a weight.

Owns the facts that other packages use: `GgufInfo`. Never touches the native library.

Does not check whether an architecture is supported: a list of our own would have to follow the
pinned llama.cpp. The loader decides: see loader.py.
"""

from pymtp.errors import ModelError
from pymtp.gguf.model_file import DRAFT_TOKENS, ModelFile, read_model
from pymtp.gguf.side_files import mismatch, side_files_of
from pymtp.gguf.types import FILE_TYPES, SAMPLING_PREFIX
from pymtp.text.files import StrPath

N_CTX_MAX = 4096
"""Tokens of a context that nobody has asked for."""


def context_size(n_ctx: int | None, n_ctx_train: int, n_ctx_max: int = N_CTX_MAX) -> int:
    """The tokens that `n_ctx` stands for. None: as the model was trained, but at most `n_ctx_max`; 0: as trained."""
    return min(n_ctx_train or N_CTX_MAX, n_ctx_max) if n_ctx is None else n_ctx or n_ctx_train


class GgufInfo:
    """Facts of a model's file, or of one with heads alone; sizes and counts cover all the parts of a split model."""

    def __init__(self, model: ModelFile, heads: ModelFile | None = None) -> None:
        """`heads`: the file that holds the assistant, or the MTP heads if they are not in the model's own file."""
        self.model_file, self.draft_file = model, heads
        """What the headers of the files hold."""
        self.path = model.path
        self.draft_model = heads.path if heads else None
        self.has_assistant = heads is not None and heads.is_assistant
        """Whether the draft model is an assistant: a small model that drafts for this one, whose cache it reads."""
        self.shards = [*(heads.shards if heads else []), *model.shards]
        """All files, an assistant's too, in the order of `files`."""
        of_heads = heads.tensors if heads and not self.has_assistant else {}  # they repeat tensors of the model
        if heads and heads.n_draft_vocab is not None:  # the loader leaves out their outputs, which are not the model's
            of_heads = {
                name: each for name, each in of_heads.items() if name != DRAFT_TOKENS and not heads.is_output(name)
            }
        self.tensors = {**of_heads, **model.tensors}
        """What is loaded: tensors of the model, and those that heads in a file of their own add; no assistant's."""
        tensors = [*self.tensors.values(), *(heads.tensors.values() if heads and self.has_assistant else [])]
        self.files = tuple(shard.path for shard in (model.shards if self.has_assistant else self.shards))
        """The model's files in the loader's order: metadata comes from the first; a tensor that is in several comes
        from the last. Without an assistant's, which is loaded separately."""
        self.architecture = model.architecture
        self.name = model.text("general.name")
        file_type = model.metadata.get("general.file_type")
        self.quantization = FILE_TYPES.get(file_type) if isinstance(file_type, int) else None
        """Name of the file type, such as "Q4_K_M"."""
        self.n_layer = model.n_layer
        """Layers of the target, MTP layers not counted."""
        self.n_ctx_train = model.number("context_length")
        self.n_vocab = model.n_vocab
        self.n_heads_declared = (heads or model).n_heads_declared
        """MTP heads according to the metadata (`<architecture>.nextn_predict_layers`). An assistant counts as one."""
        self.n_heads = (heads or model).n_heads
        """MTP heads whose tensors are in the file. Some converters keep the key and drop the tensors."""
        self.n_draft_vocab = heads.n_draft_vocab if heads else None
        """Tokens that heads in a file of their own draft, if they are trimmed to a part of the vocabulary."""
        embedding = self.tensors.get("token_embd.weight")
        self.embedding_type = embedding.type_id if embedding else None
        """The ggml_type of the token embedding; None if there is none."""
        self.ties_embedding = "output.weight" not in self.tensors
        """Whether the token embedding is the output matrix as well."""
        self.n_tensors = len(tensors)
        self.n_parameters = sum(tensor.n_elements for tensor in tensors)
        self.size_bytes = sum(shard.size_bytes for shard in self.shards)
        self.chat_template = model.text("tokenizer.chat_template")
        self.sampling = {
            key.removeprefix(SAMPLING_PREFIX): v for key, v in model.metadata.items() if key.startswith(SAMPLING_PREFIX)
        }
        """What the file recommends for sampling: `general.sampling.*`, by the part of the key after that."""

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
        return GgufInfo(model)
    heads = read_model(draft_model, model.replaced)
    if problem := mismatch(model, heads):
        raise ModelError(f"{problem}; name the draft file that belongs to the model, or none")
    return GgufInfo(model, heads)


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
