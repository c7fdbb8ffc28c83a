"""Everything that a GGUF says about drafting with the model in it: heads, their cost, what stands in the way.

Reads headers only, never a weight.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pymtp.binding.library import ffi, lib, text_of
from pymtp.errors import PymtpError
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.model_file import ModelFile, read_model
from pymtp.gguf.passes import Head, bytes_by_type, draft_cost, heads_of, trunk_pass_bytes
from pymtp.gguf.side_files import side_files_of
from pymtp.text.files import StrPath


@dataclass(frozen=True)
class SideFile:
    """A GGUF of MTP heads next to the model, named mtp-*.gguf. `problem`: why it could not be read, else ""."""

    path: Path
    architecture: str
    quantization: str | None
    size_bytes: int
    heads: tuple[Head, ...] = ()
    problem: str = ""


class Inspection:
    """What a model file shows without being loaded."""

    def __init__(self, path: StrPath) -> None:
        """Raises ModelError as `read_model` does."""
        model = read_model(path)
        pass_bytes = trunk_pass_bytes(model)
        self.info = GgufInfo(model)
        self.n_files = len(model.shards)
        """Parts of a split model; 1 if it is not split."""
        self.n_experts = model.count("expert_count")
        self.n_experts_used = model.count("expert_used_count")
        self.tensor_types = bytes_by_type(model.tensors.values())
        """Bytes of each type, the largest first."""
        self.has_trunk = pass_bytes is not None
        """False for a side file, which has only the heads."""
        self.heads = heads_of(model)
        self.obstacle = _obstacle(self.info, self.has_trunk)
        """Why the model cannot draft with its own heads, or ""."""
        self.mtp_context: Literal["chained", "target"] = "chained" if len(self.heads) > 1 else "target"
        """What the rows of the heads read by default: see Model."""
        self.trunk_pass_bytes = pass_bytes or 0
        self.side_files = tuple(_side_file(path, model) for path in side_files_of(model))
        self.draft_cost = draft_cost(self.heads, self.trunk_pass_bytes)
        """Weights that a draft pass reads, as a share of those of a trunk pass; the mean of the heads."""


def _obstacle(info: GgufInfo, has_trunk: bool) -> str:
    if info.model_file.is_assistant:
        return "an assistant: it drafts for another model, whose cache it reads"
    if n_layers := info.model_file.n_layers_read:
        return f"it drafts from hidden states of {n_layers} layers of another model, which pymtp does not do"
    if not has_trunk:
        return "a side file: it holds MTP heads without a trunk"
    if info.n_heads_declared == 0:
        return "the metadata names no MTP heads (nextn_predict_layers = 0)"
    if not info.has_heads:
        return f"the metadata names {info.n_heads_declared} MTP heads, the file holds the tensors of {info.n_heads}"
    if info.model_file.is_trained:
        return ""  # whether its cache can hold the head shows when it is loaded
    keys = ("q_lora_rank", "key_length_mla", "value_length_mla")
    has_lora_q, *has_mla = (info.model_file.count(f"attention.{key}") > 0 for key in keys)
    name, n_heads = info.architecture, info.n_heads_declared
    reason = lib.pymtp_heads_obstacle(name.encode(), n_heads, has_lora_q, all(has_mla))
    what = f"the pinned llama.cpp cannot run the MTP heads of this {name} model"
    return f"{what} ({text_of(reason)})" if reason != ffi.NULL else ""


def _side_file(path: Path, model: ModelFile) -> SideFile:
    try:
        file = ModelFile(path)
        info = GgufInfo(file)
    except PymtpError as error:
        return SideFile(path, "", None, 0, problem=str(error))
    return SideFile(path, info.architecture, info.quantization, info.size_bytes, heads_of(file, model))
