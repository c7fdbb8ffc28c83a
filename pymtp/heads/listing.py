"""The heads of a model: in which file they are, their tensors, and what a draft with them reads.

Owns the search for them. Reads headers only.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pymtp.errors import UnsupportedModel
from pymtp.gguf.facts import find_draft_model
from pymtp.gguf.model_file import ModelFile, read_model
from pymtp.gguf.passes import Head, heads_of, output_of, trunk_pass_bytes, type_name
from pymtp.gguf.shards import tensor_bytes
from pymtp.heads.files import need_heads


@dataclass(frozen=True)
class HeadTensor:
    """A tensor of a head. `shape`: the fastest dimension first."""

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class ListedHead(Head):
    """One MTP head, and its tensors."""

    tensors: tuple[HeadTensor, ...]


@dataclass(frozen=True)
class HeadList:
    """The heads of a model, or in a file of their own."""

    path: Path
    architecture: str
    trunk_pass_bytes: int | None
    """Weights that the trunk reads for one token; None if the file has no trunk."""
    heads: tuple[ListedHead, ...]


def list_heads(path: str | os.PathLike[str]) -> HeadList:
    """List the MTP heads in the GGUF at `path`, else those in the file next to it that pymtp would draft with.

    Raises ModelError: UnsupportedModel if there are none.
    """
    model = read_model(path)
    found = model
    if not (model.n_heads or model.is_assistant or model.is_heads_alone):
        heads, problem = find_draft_model(model)
        if heads is None and problem:
            raise UnsupportedModel(f"{model.path} has no MTP heads ({problem}); name the file with the heads")
        found = heads or model
    need_heads(found)
    # a file with the heads alone may lack the output matrix that they share
    output_bytes = 0 if output_of(found) else sum(map(tensor_bytes, output_of(model)))
    return HeadList(
        path=found.path,
        architecture=found.architecture,
        trunk_pass_bytes=trunk_pass_bytes(model),
        heads=tuple(_listed(found, head, output_bytes) for head in heads_of(found)),
    )


def _listed(file: ModelFile, head: Head, output_bytes: int) -> ListedHead:
    prefix = f"blk.{head.layer}."
    tensors = [tensor for name, tensor in file.tensors.items() if name.startswith(prefix)]
    listed = tuple(HeadTensor(each.name, type_name(each), each.shape, tensor_bytes(each)) for each in tensors)
    pass_bytes = head.pass_bytes + (output_bytes if head.lm_head == "shared" else 0)
    return ListedHead(**vars(replace(head, pass_bytes=pass_bytes)), tensors=listed)
