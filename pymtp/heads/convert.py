"""Heads of a checkpoint of Hugging Face, for a GGUF of the same model, or of one that was trained further from it.

Owns how tensors of a checkpoint become those of a GGUF, and what has to fit. Metadata is the GGUF's own, so that its
vocabulary and everything that the trunk needs stay what they are.
"""

import os
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from pymtp.errors import ModelError, UnsupportedModel
from pymtp.gguf.header import TensorInfo
from pymtp.gguf.model_file import ModelFile, tensors_by_layer
from pymtp.gguf.writer import Metadata, OnWrite, Tensor, write_gguf
from pymtp.heads.checkpoint import Checkpoint, CheckpointTensor, Made, Span
from pymtp.heads.files import check_target, default_target, shared_tensors
from pymtp.heads.names import ARCHITECTURES, EXPERT, FUSED_EXPERTS, INDEX_QK, JOINED, KV_B, NAMES, Names, place
from pymtp.heads.quantize import BF16, F16, F32, HeadTypes, convert, fitting_type, is_matrix, type_id

_REQUIRED = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight")
_UNUSED = ("_scale_inv", "rotary_emb.inv_freq", "hyper_connection_mixer.block_inject_weight.weight")
_OWN_TYPES = {"F32": F32, "F16": F16, "BF16": BF16, "F8_E4M3": BF16}
_WINDOWS = "attention.sliding_window_pattern"
# One value a layer, heads included. A head has that of the layer that it is like ...
_BY_LAYER = (
    *("attention.recurrent_layers", "attention.head_count", "attention.head_count_kv", _WINDOWS),
    *("expert_feed_forward_length", "attention.compress_ratios"),
)
# ... or its own, by the key of config.json, else that of all layers, _LIMIT; 0 where there is none.
_BY_HEAD = {"swiglu_clamp_exp": "swiglu_limits", "swiglu_clamp_shexp": "swiglu_limits_shared"}
_LIMIT = "swiglu_limit"
_FEED_FORWARD = ("ffn_", "exp_probs_b.")
_PAIRS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")


class _Head(NamedTuple):
    """`made`: its tensors, by their names in the layer. `by_layer`: what it adds to values by layer in the metadata."""

    made: dict[str, Made]
    by_layer: dict[str, int | float | str]


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
    `target`: mtp-*.gguf next to the model by default. `types`: those of the matrices; by default the checkpoint's, and
    BF16 for FP8. `bare`: see extract_heads. Returns the file. Raises ModelError, also for heads that do not fit the
    model.
    """
    model, source = ModelFile(Path(path)), Checkpoint(Path(checkpoint))
    out = Path(target) if target else default_target(path)
    if model.n_heads:
        raise UnsupportedModel(f"{path} has MTP heads; name a model without them")
    fit = _Fit(model, source)
    inputs = [*(shard.path for shard in model.shards), *(source.folder / name for name in set(source.names.values()))]
    check_target(out, inputs, force=force)
    made = fit.heads()
    heads = [
        _tensor(f"blk.{model.n_layer + i}.{part}", part, each, types, source)
        for i, head in enumerate(made)
        for part, each in head.made.items()
    ]
    metadata = Metadata(model.shards[0])
    metadata.set_number(f"{model.architecture}.block_count", model.n_layer + len(made))
    metadata.set_number(f"{model.architecture}.nextn_predict_layers", len(made))
    for key in made[0].by_layer:
        metadata.extend(f"{model.architecture}.{key}", [head.by_layer[key] for head in made])
    write_gguf(out, metadata, [*(() if bare else shared_tensors(model)), *heads], on_write)
    return out


def _tensor(name: str, part: str, made: Made, types: HeadTypes, source: Checkpoint) -> Tensor:
    what = f"{source.folder}: {name}"
    asked = types.of(name, part)
    kind = F32
    if is_matrix(part, made.shape):
        own = _OWN_TYPES[made.spans[0].sources[0].dtype]
        kind = fitting_type(own if asked is None else type_id(asked, "type"), made.shape[0], what)
    return Tensor(name, made.shape, kind, lambda: convert(made.pieces(), (F32, kind), made.shape[0], what))


class _Fit:
    """The heads of a checkpoint, held against the model that they are to draft for."""

    def __init__(self, model: ModelFile, source: Checkpoint) -> None:
        self._model, self._source = model, source
        text = source.config.get("text_config")
        self._config: Mapping[str, Any] = {**source.config, **(text if isinstance(text, dict) else {})}
        listed = source.config.get("architectures") or [None]
        self._published = str(listed[0] if isinstance(listed, list) else listed)
        self._names = self._check_model()
        self._layers = tensors_by_layer(model.tensors.values())
        self._layers.pop(-1, None)  # those outside of layers

    def heads(self) -> list[_Head]:
        found: dict[int, dict[str, str]] = {}
        for name in self._source.names:
            if spot := place(name, self._model.n_layer):
                found.setdefault(spot[0], {})[spot[1]] = name
        n_heads = self._number("num_nextn_predict_layers", "mtp_num_hidden_layers") or len(found)
        if not found or sorted(found) != list(range(n_heads)):
            self._refuse(f"it names {n_heads} MTP heads and holds tensors of {len(found)}")
        heads: list[_Head] = []
        for head, names in sorted(found.items()):
            made = self._head(names)
            number, like = self._like(head, made)
            self._check_parts(head, made, like)
            heads.append(_Head(made, self._by_layer(head, number)))
        return heads

    def _like(self, head: int, made: Container[str]) -> tuple[int, dict[str, TensorInfo]]:
        """The layer of the trunk that a head is like: its number, and the tensors that the head has to have.

        Of a hybrid trunk the last with attention, of one with windows the last that attends as the head does. Its
        feed-forward is like that of any layer, with experts or without.
        """
        layers, known = self._layers, set(self._names.parts.values())
        if self._names.windows != "none":
            windows = self._model.by_layer(_WINDOWS)
            if len(windows) < self._model.n_layer:
                self._refuse(f"the GGUF has no {_WINDOWS}")
            layers = {i: layer for i, layer in layers.items() if windows[i] == self._is_windowed(head)}
        if not layers:
            self._refuse(f"no layer of the GGUF attends as head {head} does")
        number, like = max(layers.items(), key=lambda item: (len(known & item[1].keys()), item[0]))
        feeds = [
            {p: tensor for p, tensor in one.items() if p.startswith(_FEED_FORWARD)} for one in self._layers.values()
        ]
        parts = max(feeds, key=lambda parts: sum(part in made for part in parts))
        return number, {part: tensor for part, tensor in like.items() if not part.startswith(_FEED_FORWARD)} | parts

    def _is_windowed(self, head: int) -> bool:
        if self._names.windows == "all":
            return True
        if self._names.windows == "as first":
            return bool(self._model.by_layer(_WINDOWS)[head])
        types, at = self._config.get("layer_types"), self._model.n_layer + head
        if not isinstance(types, list) or len(types) <= at:
            self._refuse(f"its layer_types do not say how head {head} attends")
        return bool(types[at] == "sliding_attention")

    def _by_layer(self, head: int, like: int) -> dict[str, int | float | str]:
        added: dict[str, int | float | str] = {}
        for key in (*_BY_LAYER, *_BY_HEAD):
            values = self._model.by_layer(key)
            if len(values) != self._model.n_layer:  # one for all layers, or the heads' too
                continue
            if key == _WINDOWS and self._names.windows == "as first":  # what is not said of a head
                continue
            limits, at = self._config.get(_BY_HEAD.get(key, "")), self._model.n_layer + head
            own = limits[at] if isinstance(limits, list) and len(limits) > at else self._config.get(_LIMIT)
            added[key] = values[like] if key in _BY_LAYER else float(own or 0)
        return added

    def _check_model(self) -> Names:
        architecture = ARCHITECTURES.get(self._published)
        if architecture is None:
            self._refuse(f"its architecture {self._published} is none of {', '.join(ARCHITECTURES)}")
        if architecture != self._model.architecture:
            self._refuse(f"it is a {architecture} model, the GGUF is {self._model.architecture}")
        for what, theirs, ours in (
            ("layers", self._number("num_hidden_layers"), self._model.n_layer),
            ("hidden states of the size", self._number("hidden_size"), self._model.number("embedding_length")),
            (
                "experts",
                self._number("n_routed_experts", "num_experts", "moe_num_experts"),
                self._model.number("expert_count"),
            ),
        ):
            if theirs != ours:
                self._refuse(f"it has {what} {theirs}, the GGUF {ours}")
        return NAMES[architecture]

    def _head(self, names: Mapping[str, str]) -> dict[str, Made]:
        """The tensors of one head by their names in the GGUF, from their names in the layer and the checkpoint."""
        made: dict[str, Made] = {}
        experts: dict[str, dict[int, Span]] = {}
        for part, name in names.items():
            if part.endswith(_UNUSED):
                continue
            if part not in {*self._names.parts, *FUSED_EXPERTS, *JOINED, INDEX_QK, KV_B} and not EXPERT.fullmatch(part):
                self._refuse(f"it holds {name}, which is no tensor of a head that is known")
            tensor = self._source.tensor(name)
            if match := EXPERT.fullmatch(part):
                experts.setdefault(match[2], {})[int(match[1])] = Span((tensor,))
            elif part in FUSED_EXPERTS:
                for which, spans in self._fused(tensor, FUSED_EXPERTS[part]).items():
                    experts.setdefault(which, {}).update(spans)
            elif part == KV_B:
                made.update(self._latent(tensor))
            elif part == INDEX_QK:
                made.update(self._index(tensor))
            elif part == JOINED[0] and JOINED[1] in names:
                made[_REQUIRED[0]] = self._side_by_side(tensor, self._source.tensor(names[JOINED[1]]))
            elif part in JOINED:
                continue  # with the other, or it is missing
            else:
                made[self._names.parts[part]] = self._plain(tensor, part)
        for which, of_experts in experts.items():
            if sorted(of_experts) != list(range(self._model.number("expert_count"))):
                self._refuse(f"it holds the {which} matrices of {len(of_experts)} experts")
            made[f"ffn_{which}_exps.weight"] = self._stacked([of_experts[i] for i in sorted(of_experts)])
        return made

    def _plain(self, tensor: CheckpointTensor, part: str) -> Made:
        if self._names.has_pairs and part in _PAIRS and any(self._model.by_layer("rope.dimension_sections")):
            return Made(self._pairs(tensor), tensor.shape[::-1])
        addend = 1.0 if self._names.counts_from_one and part.endswith("norm.weight") else 0.0
        return Made([Span((tensor,))], tensor.shape[::-1], addend)

    def _pairs(self, tensor: CheckpointTensor) -> list[Span]:
        """Of each head of attention the first of all pairs, the second, and what does not rotate."""
        n_rows = self._model.number("attention.key_length") or self._number("head_dim")
        n_rotate = self._model.number("rope.dimension_count")
        if not n_rows or tensor.n_rows % n_rows or n_rotate % 2 or n_rotate > n_rows:
            self._refuse(f"{tensor.name} has {tensor.n_rows} rows, {n_rotate} of {n_rows} in a head rotate")
        spans = []
        for first in range(0, tensor.n_rows, n_rows):
            spans += [Span((tensor,), first + i, first + n_rotate, stride=2) for i in (0, 1)]
            spans.append(Span((tensor,), first + n_rotate, first + n_rows))
        return spans

    def _stacked(self, spans: Sequence[Span]) -> Made:
        if len({span.shape for span in spans}) > 1:
            self._refuse(f"{spans[0].sources[0].name} and the others like it have different shapes")
        return Made(spans, (*spans[0].shape, len(spans)))

    def _fused(self, tensor: CheckpointTensor, parts: Sequence[str]) -> dict[str, dict[int, Span]]:
        if len(tensor.shape) != 3 or tensor.shape[1] % len(parts):
            self._refuse(f"{tensor.name} has the shape {list(tensor.shape)}")
        n_rows, n_all = tensor.shape[1] // len(parts), tensor.shape[1]
        starts = {part: range(i * n_rows, tensor.n_rows, n_all) for i, part in enumerate(parts)}
        return {
            part: {e: Span((tensor,), at, at + n_rows) for e, at in enumerate(begins)}
            for part, begins in starts.items()
        }

    def _latent(self, tensor: CheckpointTensor) -> dict[str, Made]:
        n_head = self._number("num_attention_heads")
        n_k, n_v = self._number("qk_nope_head_dim"), self._number("v_head_dim")
        if tensor.n_rows != n_head * (n_k + n_v) or not n_head * n_k * n_v:
            self._refuse(f"{tensor.name} has {tensor.n_rows} rows, not {n_head} times {n_k} and {n_v}")
        starts = range(0, tensor.n_rows, n_k + n_v)
        return {
            "attn_k_b.weight": self._stacked([Span((tensor,), at, at + n_k, is_transposed=True) for at in starts]),
            "attn_v_b.weight": self._stacked([Span((tensor,), at + n_k, at + n_k + n_v) for at in starts]),
        }

    def _index(self, tensor: CheckpointTensor) -> dict[str, Made]:
        n_q = self._model.number("attention.indexer.head_count") * self._model.number("attention.indexer.key_length")
        if not 0 < n_q < tensor.n_rows:
            self._refuse(f"{tensor.name} has {tensor.n_rows} rows, of which {n_q} are queries")
        parts = {"q": Span((tensor,), 0, n_q), "k": Span((tensor,), n_q)}
        return {f"indexer.{x}_proj.weight": Made([span], span.shape) for x, span in parts.items()}

    def _side_by_side(self, left: CheckpointTensor, right: CheckpointTensor) -> Made:
        if left.shape != right.shape or len(left.shape) != 2:
            self._refuse(f"{left.name} has the shape {list(left.shape)}, {right.name} {list(right.shape)}")
        both = Span((left, right))
        return Made([both], both.shape)

    def _check_parts(self, head: int, made: Mapping[str, Made], like: Mapping[str, TensorInfo]) -> None:
        """Refuse a head that lacks what the layer that it is like has, or has it in another shape."""
        expected = {part: tensor.shape for part, tensor in like.items()}
        n_embd = self._model.number("embedding_length")
        norms = dict.fromkeys((*_REQUIRED[1:], "nextn.shared_head_norm.weight"), (n_embd,))
        # what makes one stream of a head's hidden states: the trunk's; nothing where there are no streams
        outside = {part: self._model.tensors.get(f"output_hc_{part}.weight") for part in ("norm", "down", "up")}
        if mixer := {f"nextn.hc_head_{part}.weight": tensor.shape for part, tensor in outside.items() if tensor}:
            expected.update(mixer)
            norms["nextn.hnorm.weight"] = (n_embd * self._model.number("hyper_connection.count"),)
        vocabulary = dict.fromkeys(
            ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight"), (n_embd, self._model.n_vocab)
        )
        fits = {**expected, **norms, **vocabulary, _REQUIRED[0]: (2 * n_embd, n_embd)}
        known = {*self._names.parts.values(), "attn_k_b.weight", "attn_v_b.weight"}
        known.update(f"indexer.{x}_proj.weight" for x in "qk")
        known.update(f"ffn_{which}_exps.weight" for which in ("gate", "up", "down"))
        needed = [*_REQUIRED, *sorted(known & expected.keys())]
        if missing := [part for part in needed if part not in made]:
            self._refuse(f"head {head} has no {', '.join(missing)}, which the model's layers have")
        for part, each in made.items():
            if part in fits and _dimensions(each.shape) != _dimensions(fits[part]):
                self._refuse(f"{part} of head {head} has the shape {list(each.shape)}, not {list(fits[part])}")

    def _number(self, *keys: str) -> int:
        """A number of config.json; 0 if it is not there."""
        value = next((self._config[key] for key in keys if self._config.get(key) is not None), 0)
        return value if isinstance(value, int) else self._refuse(f"{keys[0]} is {value!r}")

    def _refuse(self, reason: str) -> NoReturn:
        raise ModelError(
            f"{self._source.folder} does not hold heads for {self._model.path} ({reason}); name the checkpoint that "
            "the GGUF was made of, or the one that it was trained from"
        )


def _dimensions(shape: Sequence[int]) -> list[int]:
    """The shape without dimensions of one number, which converters write or leave out."""
    return [n for n in shape if n > 1]
