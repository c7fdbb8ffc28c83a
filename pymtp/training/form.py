"""The form of a trained head: its tensors, what they are before training, and the file that holds them.

native/src/heads/head-generic.cpp loads it. Knows no PyTorch.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pymtp.errors import ModelError, UnsupportedModel
from pymtp.gguf.header import TensorInfo
from pymtp.gguf.model_file import TRAINED_FOR, ModelFile, tensors_by_layer
from pymtp.gguf.writer import Metadata, Tensor, write_gguf
from pymtp.heads.quantize import F32, convert, converted, fitting_type

Array = npt.NDArray[np.float32]


class Form:
    """Sizes of a head for a model: those of the trunk's attention."""

    def __init__(self, model: ModelFile) -> None:
        """Raises UnsupportedModel for a trunk whose attention no such head can have."""
        self.value_in_key = bool(model.number("attention.key_length_mla"))
        """Whether values are the first part of compressed keys (MLA), which rotate in the rest."""
        odd = ("attention.indexer.key_length", "attention.key_length_mla_swa")
        if self.value_in_key and any(map(model.count, odd)):
            what = "has an index of its compressed keys, or windows"
            raise UnsupportedModel(f"{model.path} {what}, as no trained head has")
        like = _layer_like(model)
        self.n_embd, self.n_head = model.number("embedding_length"), model.count("attention.head_count", like)
        self.n_head_k = model.number("attention.key_length") or self.n_embd // self.n_head
        self.n_head_v = model.number("attention.value_length") or self.n_head_k
        if self.value_in_key:
            # the trunk's would be several times as wide as the model; GPUs take four at once
            self.n_head = max(1, self.n_embd * 3 // 2 // self.n_head_k // 4) * 4
            self.n_head_v = model.number("attention.kv_lora_rank")
        self.n_kv = model.count("attention.head_count_kv", like, self.n_head)
        up = tensors_by_layer(model.tensors.values())[like].get("ffn_up.weight")
        has_gate = f"blk.{like}.ffn_gate.weight" in model.tensors
        self.n_ff = up.shape[1] // (1 if has_gate else 2) if up else self.n_embd * 8 // 3 // 32 * 32
        eps = model.value("attention.layer_norm_rms_epsilon")
        self.eps = eps if isinstance(eps, float) and eps > 0 else 1e-5

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors that every head has, as NumPy names them."""
        n_embd, n_q = self.n_embd, self.n_head * self.n_head_k
        norms = ("nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "attn_norm", "ffn_norm")
        return {
            "nextn.eh_proj": (n_embd, 2 * n_embd),
            **dict.fromkeys(norms, (n_embd,)),
            "attn_q": (n_q, n_embd),
            "attn_k": (self.n_kv * self.n_head_k, n_embd),
            **({} if self.value_in_key else {"attn_v": (self.n_kv * self.n_head_v, n_embd)}),
            "attn_output": (n_embd, self.n_head * self.n_head_v),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (self.n_ff, n_embd)),
            "ffn_down": (n_embd, self.n_ff),
        }


def _layer_like(model: ModelFile) -> int:
    """The last layer of the trunk that has attention, and no window if there is a choice."""
    is_windowed = model.by_layer("attention.sliding_window_pattern")
    layers = tensors_by_layer(model.tensors.values())
    is_latent = model.number("attention.key_length_mla")
    named = {"attn_kv_a_mqa.weight"} if is_latent else {"attn_q.weight", "attn_qkv.weight"}
    attend = [i for i in range(model.n_layer) if named & layers.get(i, {}).keys()]
    attend = [i for i in attend if model.count("attention.head_count_kv", i, 1)]
    if not attend:
        raise UnsupportedModel(f"{model.path} has no layer with attention, which a trained head needs")
    return max([i for i in attend if i >= len(is_windowed) or not is_windowed[i]] or attend)


def read_tensor(tensor: TensorInfo) -> Array:
    """A stored tensor as float32."""
    return np.frombuffer(b"".join(converted(tensor, F32)()), np.float32).reshape(tensor.shape[::-1])


def first_tensors(model: ModelFile, form: Form, seed: int) -> dict[str, Array]:
    """A head before training: the trunk's last layer, which reads token and hidden state in equal parts."""
    rng, like = np.random.default_rng(seed), _layer_like(model)
    parts = ("attn_", "ffn_norm", "ffn_gate.", "ffn_up.", "ffn_down.")
    layer = tensors_by_layer(model.tensors.values())[like]
    of_layer = {name.removesuffix(".weight"): read_tensor(layer[name]) for name in layer if name.startswith(parts)}
    if (joined := of_layer.pop("attn_qkv", None)) is not None:
        ends = np.cumsum([form.shapes()[f"attn_{x}"][0] for x in "qk"])
        of_layer.update(zip(("attn_q", "attn_k", "attn_v"), np.split(joined, ends), strict=True))
    if form.value_in_key:
        of_layer["attn_k"] = of_layer["attn_kv_a_mqa"]
    if (up := of_layer.get("ffn_up")) is not None and "ffn_gate" not in of_layer:
        of_layer["ffn_gate"], of_layer["ffn_up"] = np.split(up, 2)
    half = np.eye(form.n_embd, dtype=np.float32)
    of_layer["nextn.eh_proj"] = np.concatenate([half, half], 1)
    if norm := model.tensors.get("output_norm.weight"):
        of_layer["nextn.shared_head_norm"] = read_tensor(norm)
    made: dict[str, Array] = {}
    for name, shape in form.shapes().items():
        values = of_layer.get(name)
        if values is None or values.shape != shape:
            first = rng.standard_normal(shape) * shape[-1] ** -0.5 if len(shape) > 1 else np.ones(shape)
            values = first.astype(np.float32)
        made[f"{name}.weight"] = values
    for name in ("attn_q_norm", "attn_k_norm"):
        if name in of_layer and of_layer[name].shape == (form.n_head_k,):
            made[f"{name}.weight"] = of_layer[name]
    for x in "qkv":
        if (bias := of_layer.get(f"attn_{x}.bias")) is not None:
            made[f"attn_{x}.bias"] = bias
    return made


def read_head(path: Path, form: Form) -> dict[str, Array]:
    """The tensors of a trained head in a file. Raises ModelError if they are of another form."""
    file = ModelFile(path)
    layer = tensors_by_layer(file.tensors.values()).get(file.n_layer, {})
    if not file.is_trained:
        raise ModelError(f"{path} holds no head that was trained by pymtp; name one that was, or none")
    made = {name: read_tensor(tensor) for name, tensor in layer.items()}
    for name, shape in form.shapes().items():
        if f"{name}.weight" not in made or made[f"{name}.weight"].shape != shape:
            raise ModelError(f"{path} is a head for a model of another shape ({name}); name one that fits, or none")
    return made


def write_head(path: Path, model: ModelFile, tensors: Mapping[str, Array], kind: str) -> None:
    """Write a head to a file of its own. Matrices become `kind`, or what fits their rows."""
    metadata = Metadata(model.shards[0])
    metadata.set(f"{model.architecture}.block_count", model.n_layer + 1)
    metadata.set(f"{model.architecture}.nextn_predict_layers", 1)
    metadata.set(TRAINED_FOR, model.trunk_id)
    made = [_stored(f"blk.{model.n_layer}.{name}", values, kind) for name, values in tensors.items()]
    write_gguf(path, metadata, made)


def _stored(name: str, values: Array, kind: str) -> Tensor:
    n_per_row, to = values.shape[-1], F32
    if values.ndim > 1:
        with suppress(UnsupportedModel):  # no type like it fits the rows
            to = fitting_type(kind, n_per_row, name)
    kinds = F32, to
    return Tensor(
        name, values.shape[::-1], to, lambda: convert([values.astype("<f4").tobytes()], kinds, n_per_row, name)
    )
