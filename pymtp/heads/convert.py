"""Heads of a checkpoint of Hugging Face, for a GGUF of the same model, or of one that was trained further from it.

Owns how tensors of a checkpoint become those of a GGUF, and what has to fit. Metadata is the GGUF's own, so that its
vocabulary and everything that the trunk needs stay what they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pymtp.errors import ModelError, UnsupportedModel
from pymtp.gguf.header import TensorInfo
from pymtp.gguf.model_file import LAYER_TENSOR, ModelFile
from pymtp.heads.checkpoint import Checkpoint, CheckpointTensor
from pymtp.heads.files import default_target, shared_tensors
from pymtp.heads.metadata import Metadata
from pymtp.heads.names import ARCHITECTURES, EXPERT, FUSED_EXPERTS, KV_B, NAMES, Names, place
from pymtp.heads.quantize import HeadTypes, is_kept
from pymtp.heads.rows import BF16, F16, F32, convert, fitting_type, rows_per_piece, type_id
from pymtp.heads.tensors import PIECE_BYTES, Piece, Tensor
from pymtp.heads.writer import OnWrite, check_target, write_gguf

if TYPE_CHECKING:
    from pymtp.heads.checkpoint import Rows

_REQUIRED = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight")
_OWN_TYPES = {"F32": F32, "F16": F16, "BF16": BF16, "F8_E4M3": BF16}
_RECURRENT = "attention.recurrent_layers"  # one flag a layer: heads have no recurrent states


@dataclass(frozen=True)
class _Span:
    """Some rows of a tensor of the checkpoint, as they are or with rows and columns exchanged."""

    source: CheckpointTensor
    first: int
    n_rows: int
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of a row, and rows, as they are written."""
        n_columns = self.source.shape[-1]
        return (self.n_rows, n_columns) if self.is_transposed else (n_columns, self.n_rows)

    def pieces(self) -> Iterator[Rows]:
        import numpy as np

        if self.is_transposed:
            yield np.ascontiguousarray(self.source.rows(self.first, self.n_rows).T)
            return
        step, end = rows_per_piece(self.source.shape[-1], PIECE_BYTES), self.first + self.n_rows
        for first in range(self.first, end, step):
            yield self.source.rows(first, min(step, end - first))


@dataclass(frozen=True)
class _Made:
    """A tensor of a head, made of spans that follow each other. `addend`: to each of its numbers."""

    spans: Sequence[_Span]
    shape: tuple[int, ...]
    addend: float = 0.0

    def pieces(self) -> Iterator[Rows]:
        for span in self.spans:
            for rows in span.pieces():
                yield rows + self.addend if self.addend else rows


def convert_heads(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    types: HeadTypes = HeadTypes(),  # noqa: B008  # frozen
    bare: bool = False,
    force: bool = False,
    on_write: OnWrite | None = None,
) -> Path:
    """Write the MTP heads of a checkpoint to a file of their own, for the model at `path`, which has none.

    `checkpoint`: the folder with its config.json and safetensors files, of which those with the heads are enough.
    `target`: mtp-*.gguf beside the model by default. `types`: of the matrices; by default those of the checkpoint, BF16
    in the place of FP8. `bare`: see extract_heads. Returns the file. Raises ModelError: for heads that do not fit the
    model too.
    """
    model, source = ModelFile(Path(path)), Checkpoint(Path(checkpoint))
    out = Path(target) if target else default_target(path)
    if model.n_heads:
        raise UnsupportedModel(f"{path} has MTP heads; name a model without them")
    fit = _Fit(model, source)
    inputs = [*(shard.path for shard in model.shards), *(source.folder / name for name in set(source.names.values()))]
    check_target(out, inputs, force=force)
    n_heads, made = fit.heads()
    heads = [_tensor(name, part, each, types, f"{source.folder}: {name}") for (name, part), each in made.items()]
    metadata = Metadata(model.shards[0])
    metadata.drop("split.")
    metadata.set_number(f"{model.architecture}.block_count", model.n_layer + n_heads)
    metadata.set_number(f"{model.architecture}.nextn_predict_layers", n_heads)
    if metadata.length(f"{model.architecture}.{_RECURRENT}") == model.n_layer:
        metadata.append_flags(f"{model.architecture}.{_RECURRENT}", n_heads)
    write_gguf(out, metadata, [*(() if bare else shared_tensors(model)), *heads], on_write)
    return out


def _tensor(name: str, part: str, made: _Made, types: HeadTypes, what: str) -> Tensor:
    is_matrix = len(made.shape) > 1 and part.endswith(".weight") and not is_kept(part)
    asked = types.of(name, part)
    kind: int | None = F32
    if is_matrix:
        own = _OWN_TYPES[made.spans[0].source.dtype]
        kind = fitting_type(own if asked is None else type_id(asked, "type"), made.shape[0])
    if kind is None:
        raise UnsupportedModel(
            f"{what} has rows of {made.shape[0]} numbers, which the blocks of {asked} do not fit; name another type"
        )

    def pieces(to: int = kind) -> Iterator[Piece]:
        return convert(made.pieces(), (F32, to), made.shape[0], what)

    return Tensor(name, made.shape, kind, pieces)


class _Fit:
    """The heads of a checkpoint, held against the model that they are to draft for."""

    def __init__(self, model: ModelFile, source: Checkpoint) -> None:
        self._model, self._source = model, source
        text = source.config.get("text_config")
        self._config: Mapping[str, Any] = {**source.config, **(text if isinstance(text, dict) else {})}
        listed = source.config.get("architectures") or [None]
        self._published = str(listed[0] if isinstance(listed, list) else listed)
        self._names = self._check_model()
        layers: dict[int, dict[str, TensorInfo]] = {}
        for name, tensor in model.tensors.items():
            if match := LAYER_TENSOR.fullmatch(name):
                layers.setdefault(int(match[1]), {})[match[2]] = tensor
        # a head is a layer like those of the trunk: of a hybrid one, like the last with attention
        parts = set(self._names.parts.values())
        self._like = max(layers.items(), key=lambda item: (len(parts & item[1].keys()), item[0]), default=(0, {}))[1]

    def heads(self) -> tuple[int, dict[tuple[str, str], _Made]]:
        """How many there are, and their tensors, by name and by name in the layer."""
        found: dict[int, dict[str, str]] = {}
        for name in self._source.names:
            if spot := place(name, self._model.n_layer):
                found.setdefault(spot[0], {})[spot[1]] = name
        n_heads = self._number("num_nextn_predict_layers", "mtp_num_hidden_layers") or len(found)
        if not found or sorted(found) != list(range(n_heads)):
            self._refuse(f"it names {n_heads} MTP heads and holds tensors of {len(found)}")
        made: dict[tuple[str, str], _Made] = {}
        for head, names in sorted(found.items()):
            prefix = f"blk.{self._model.n_layer + head}."
            of_head = self._head(names)
            self._check_parts(head, of_head)
            made.update({(prefix + part, part): each for part, each in of_head.items()})
        return n_heads, made

    def _check_model(self) -> Names:
        architecture = ARCHITECTURES.get(self._published)
        if architecture is None:
            self._refuse(f"its architecture {self._published} is none of {', '.join(ARCHITECTURES)}")
        if architecture != self._model.architecture:
            self._refuse(f"it is a {architecture} model, the GGUF is {self._model.architecture}")
        for what, theirs, ours in (
            ("layers", self._number("num_hidden_layers"), self._model.n_layer),
            ("hidden states of the size", self._number("hidden_size"), self._model.number("embedding_length")),
            ("experts", self._number("n_routed_experts", "num_experts"), self._model.number("expert_count")),
        ):
            if theirs != ours:
                self._refuse(f"it has {what} {theirs}, the GGUF {ours}")
        return NAMES[architecture]

    def _head(self, names: Mapping[str, str]) -> dict[str, _Made]:
        """The tensors of one head by their names in the GGUF, from their names in the layer and the checkpoint."""
        made: dict[str, _Made] = {}
        experts: dict[str, dict[int, _Span]] = {}
        for part, name in names.items():
            if part.endswith(("_scale_inv", "rotary_emb.inv_freq")):
                continue
            if part not in {*self._names.parts, *FUSED_EXPERTS, KV_B} and not EXPERT.fullmatch(part):
                self._refuse(f"it holds {name}, which is no tensor of a head that is known")
            tensor = self._source.tensor(name)
            if match := EXPERT.fullmatch(part):
                experts.setdefault(match[2], {})[int(match[1])] = _whole(tensor)
            elif part in FUSED_EXPERTS:
                for which, spans in self._fused(tensor, FUSED_EXPERTS[part]).items():
                    experts.setdefault(which, {}).update(spans)
            elif part == KV_B:
                made.update(self._latent(tensor))
            else:
                made[self._names.parts[part]] = self._plain(tensor, part)
        for which, of_experts in experts.items():
            if sorted(of_experts) != list(range(self._model.number("expert_count"))):
                self._refuse(f"it holds the {which} matrices of {len(of_experts)} experts")
            made[f"ffn_{which}_exps.weight"] = self._stacked([of_experts[i] for i in sorted(of_experts)])
        return made

    def _plain(self, tensor: CheckpointTensor, part: str) -> _Made:
        addend = 1.0 if self._names.counts_from_one and part.endswith("norm.weight") else 0.0
        return _Made([_whole(tensor)], tensor.shape[::-1], addend)

    def _stacked(self, spans: Sequence[_Span]) -> _Made:
        if len({span.shape for span in spans}) > 1:
            self._refuse(f"{spans[0].source.name} and the others like it have different shapes")
        return _Made(spans, (*spans[0].shape, len(spans)))

    def _fused(self, tensor: CheckpointTensor, parts: Sequence[str]) -> dict[str, dict[int, _Span]]:
        if len(tensor.shape) != 3 or tensor.shape[1] % len(parts):
            self._refuse(f"{tensor.name} has the shape {list(tensor.shape)}")
        n_rows = tensor.shape[1] // len(parts)
        return {
            part: {e: _Span(tensor, e * tensor.shape[1] + i * n_rows, n_rows) for e in range(tensor.shape[0])}
            for i, part in enumerate(parts)
        }

    def _latent(self, tensor: CheckpointTensor) -> dict[str, _Made]:
        n_head = self._number("num_attention_heads")
        n_k, n_v = self._number("qk_nope_head_dim"), self._number("v_head_dim")
        if tensor.n_rows != n_head * (n_k + n_v) or not n_head * n_k * n_v:
            self._refuse(f"{tensor.name} has {tensor.n_rows} rows, not {n_head} times {n_k} and {n_v}")
        starts = range(0, tensor.n_rows, n_k + n_v)
        return {
            "attn_k_b.weight": self._stacked([_Span(tensor, at, n_k, is_transposed=True) for at in starts]),
            "attn_v_b.weight": self._stacked([_Span(tensor, at + n_k, n_v) for at in starts]),
        }

    def _check_parts(self, head: int, made: Mapping[str, _Made]) -> None:
        """Refuse a head that lacks what layers of the trunk have, or has it in another shape."""
        expected = {part: tensor.shape for part, tensor in self._like.items()}
        n_embd = self._model.number("embedding_length")
        norms = dict.fromkeys((*_REQUIRED[1:], "nextn.shared_head_norm.weight"), (n_embd,))
        vocabulary = dict.fromkeys(
            ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight"), (n_embd, self._model.n_vocab)
        )
        fits = {**expected, **norms, **vocabulary, _REQUIRED[0]: (2 * n_embd, n_embd)}
        known = {*self._names.parts.values(), "attn_k_b.weight", "attn_v_b.weight"}
        known.update(f"ffn_{which}_exps.weight" for which in ("gate", "up", "down"))
        needed = [*_REQUIRED, *sorted(known & expected.keys())]
        if missing := [part for part in needed if part not in made]:
            self._refuse(f"head {head} has no {', '.join(missing)}, which the model's layers have")
        for part, each in made.items():
            if part in fits and _dimensions(each.shape) != _dimensions(fits[part]):
                self._refuse(f"{part} of head {head} has the shape {list(each.shape)}, not {list(fits[part])}")

    def _number(self, *keys: str) -> int:
        """Of config.json; 0 if it is not there."""
        value = next((self._config[key] for key in keys if self._config.get(key) is not None), 0)
        return value if isinstance(value, int) else self._refuse(f"{keys[0]} is {value!r}")

    def _refuse(self, reason: str) -> NoReturn:
        raise ModelError(
            f"{self._source.folder} does not hold heads for {self._model.path} ({reason}); name the checkpoint that "
            "the GGUF was made of, or the one that it was trained from"
        )


def _dimensions(shape: Sequence[int]) -> list[int]:
    """Without those of one number, which converters write or leave out."""
    return [n for n in shape if n > 1]


def _whole(tensor: CheckpointTensor) -> _Span:
    return _Span(tensor, 0, tensor.n_rows)
