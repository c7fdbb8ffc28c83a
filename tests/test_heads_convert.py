"""Heads of Hugging Face checkpoints become those of a GGUF; what does not fit is refused by name.

The checkpoints are made of the tests' own GGUFs, by a table of names that was written for these tests.
test_reference.py compares the heads of all families with those that llama.cpp's converter makes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pymtp import Model
from pymtp.errors import ModelError, UnsupportedModel
from pymtp.heads import HeadTypes, convert_heads
from pymtp.heads.checkpoint import Checkpoint, as_numbers
from random_gguf import write_glm4moe, write_qwen35, write_step35
from random_gguf.side_files import split_heads
from random_gguf.writer import N_EMBD, N_EXPERT
from test_heads import metadata, tensors
from test_side_files import drafts

Arrays = dict[str, np.ndarray[Any, Any]]

LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    **{f"attn_{x}.{kind}": f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")},
    **{f"ffn_{x}.weight": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
    **{f"ffn_{x}_shexp.weight": f"mlp.shared_experts.{x}_proj.weight" for x in ("gate", "up", "down")},
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
GLM_HEAD = {
    "nextn.eh_proj.weight": "eh_proj.weight",
    "nextn.enorm.weight": "enorm.weight",
    "nextn.hnorm.weight": "hnorm.weight",
    "nextn.shared_head_norm.weight": "shared_head.norm.weight",
    "nextn.shared_head_head.weight": "shared_head.head.weight",
    "nextn.embed_tokens.weight": "embed_tokens.weight",
}
QWEN_HEAD = {
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
}
GLM_CONFIG = {
    "architectures": ["Glm4MoeForCausalLM"],
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "hidden_size": N_EMBD,
    "n_routed_experts": N_EXPERT,
}
QWEN_CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {"num_hidden_layers": 4, "mtp_num_hidden_layers": 1, "hidden_size": N_EMBD},
}


STEP = {
    **GLM_HEAD,
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_gate.weight": "self_attn.g_proj.weight",
    "nextn.shared_head_norm.weight": "transformer.shared_head.norm.weight",
    "nextn.shared_head_head.weight": "transformer.shared_head.output.weight",
}
# layers 0 and 4 attend to all positions, and layer 0 has no experts, nor has any head
STEP_CONFIG = {
    "architectures": ["Step3p5ForCausalLM"],
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 3,
    "hidden_size": N_EMBD,
    "moe_num_experts": N_EXPERT,
    "layer_types": ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(6)],
    "swiglu_limits": [None, None, 7.0, None, None],
}


def published_by_glm(layer: int, part: str, numbers: np.ndarray[Any, Any]) -> Arrays:
    """One tensor of a head in the GGUF, as GLM-4.5 has it."""
    prefix = f"model.layers.{layer}."
    if part.endswith("_exps.weight"):
        which = part.split("_")[1]
        return {f"{prefix}mlp.experts.{i}.{which}_proj.weight": expert for i, expert in enumerate(numbers)}
    return {prefix + {**LAYER, **GLM_HEAD}[part]: numbers}


def published_by_qwen(layer: int, part: str, numbers: np.ndarray[Any, Any]) -> Arrays:
    """The same as Qwen3.5 has it: norms as what is to be added to 1."""
    name = QWEN_HEAD.get(part) or f"mtp.layers.0.{LAYER[part]}"
    return {name: numbers - np.float32(1) if part.endswith("norm.weight") else numbers}


def published_by_step(layer: int, part: str, numbers: np.ndarray[Any, Any]) -> Arrays:
    """The same as Step-3.5 has it."""
    name = f"model.layers.{layer}.{ {**LAYER, **STEP}[part] }"
    return {name: numbers - np.float32(1) if part.endswith("norm.weight") else numbers}


FAMILIES = {
    "glm": (write_glm4moe, published_by_glm, GLM_CONFIG, 3),
    "qwen": (write_qwen35, published_by_qwen, QWEN_CONFIG, 4),
    "step": (lambda path: write_step35(path, n_layer=3), published_by_step, STEP_CONFIG, 3),
}


def save(path: Path, arrays: Arrays, dtypes: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file. `dtypes`: of arrays of bytes or halves that stand for another type."""
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = (dtypes or {}).get(name) or {"float32": "F32", "float16": "F16"}[str(array.dtype)]
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Case:
    """A model without heads, the heads that belong to it, and the checkpoint of both."""

    def __init__(self, folder: Path, family: str = "glm") -> None:
        write, published, config, self.n_layer = FAMILIES[family]
        self.checkpoint, self.config, self.prefix = folder / "checkpoint", dict(config), f"blk.{self.n_layer}."
        self.whole, self.trunk, self.heads = (folder / f"{name}.gguf" for name in ("whole", "trunk", "heads"))
        split_heads(write(self.whole), self.trunk, self.heads)
        self.arrays: Arrays = {}
        for tensor in gguf.GGUFReader(self.whole).tensors:
            if self.is_of_head(tensor.name):
                _, layer, part = tensor.name.split(".", 2)
                self.arrays |= published(int(layer), part, tensor.data)

    def is_of_head(self, name: str) -> bool:
        return name.startswith("blk.") and int(name.split(".")[1]) >= self.n_layer

    def write(self, dtypes: Mapping[str, str] | None = None) -> Path:
        """The checkpoint in three files, of which one is not there: it holds nothing of the heads."""
        self.checkpoint.mkdir(exist_ok=True)
        names = list(self.arrays)
        files = {"model-00002-of-00003.safetensors": names[::2], "model-00003-of-00003.safetensors": names[1::2]}
        for file, held in files.items():
            save(self.checkpoint / file, {name: self.arrays[name] for name in held}, dtypes)
        where = {name: file for file, held in files.items() for name in held}
        where["model.embed_tokens.weight"] = "model-00001-of-00003.safetensors"
        (self.checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        (self.checkpoint / "config.json").write_text(json.dumps(self.config))
        return self.checkpoint


@pytest.fixture
def glm(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_heads_of_a_checkpoint_are_those_of_the_model(glm: Case) -> None:
    heads = convert_heads(glm.write(), glm.trunk)
    assert heads == glm.trunk.with_name("mtp-trunk.gguf")
    assert tensors(heads) == tensors(glm.heads)
    assert metadata(heads) == metadata(glm.whole)
    with Model(glm.whole, draft="mtp", n_threads=1) as one, Model(glm.trunk, draft="mtp", n_threads=1) as two:
        assert two.info.draft_model == heads
        np.testing.assert_array_equal(drafts(two), drafts(one))


@pytest.mark.parametrize("family", ["qwen", "step"])
def test_norms_that_count_from_one_get_it_added(tmp_path: Path, family: str) -> None:
    case = Case(tmp_path, family)
    expected, heads = tensors(case.whole), convert_heads(case.write(), case.trunk, bare=True)
    assert metadata(heads) == metadata(case.whole)
    made = tensors(heads)
    assert made.keys() == {name for name in expected if case.is_of_head(name)}
    for name, (shape, kind, data) in made.items():
        assert (shape, kind) == expected[name][:2]
        numbers = np.frombuffer(expected[name][2], np.float32)
        if name.endswith("norm.weight"):
            numbers = numbers - np.float32(1) + np.float32(1)
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), numbers)


def test_a_model_that_declares_heads_and_lost_them_gets_them_back(glm: Case) -> None:
    lost = glm.trunk.with_name("lost.gguf")
    reader, writer = gguf.GGUFReader(glm.whole), gguf.GGUFWriter(lost, "glm4moe")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:][-1:])
    for tensor in reader.tensors:
        if not tensor.name.startswith(glm.prefix):
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    heads = convert_heads(glm.write(), lost)
    assert tensors(heads) == tensors(glm.heads)
    with Model(glm.whole, draft="mtp", n_threads=1) as one, Model(lost, draft="mtp", n_threads=1) as two:
        np.testing.assert_array_equal(drafts(two), drafts(one))


def test_large_tensors_are_read_in_pieces(glm: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymtp.heads.checkpoint.PIECE_BYTES", 7 * 4 * N_EMBD)
    assert tensors(convert_heads(glm.write(), glm.trunk)) == tensors(glm.heads)


def test_matrices_get_the_type_that_is_asked_for_and_keep_that_of_the_checkpoint_else(glm: Case) -> None:
    glm.arrays = {name: array.astype(np.float16) for name, array in glm.arrays.items()}
    folder, heads = glm.write(), glm.trunk.with_name("heads.gguf")
    convert_heads(folder, glm.trunk, heads, bare=True, force=True)
    kinds = {name.removeprefix(glm.prefix): kind for name, (_, kind, _) in tensors(heads).items()}
    assert {kinds[part] for part in kinds if "norm" in part or "bias" in part or "gate_inp" in part} == {0}
    assert {kinds[part] for part in kinds if kinds[part]} == {1}
    convert_heads(folder, glm.trunk, heads, types=HeadTypes("q8_0", experts_type="q4_0"), bare=True, force=True)
    made = {name.removeprefix(glm.prefix): tensor for name, tensor in tensors(heads).items()}
    assert (made["ffn_up_exps.weight"][1], made["attn_q.weight"][1], made["attn_norm.weight"][1]) == (2, 8, 0)
    numbers = glm.arrays["model.layers.3.self_attn.q_proj.weight"].astype(np.float32)
    assert made["attn_q.weight"][2] == gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0).tobytes()


def test_numbers_of_8_and_16_bits_are_read_as_they_are_published(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    bf16 = rng.integers(0x3C00, 0x4100, (5, 7), np.uint16)
    fp8 = rng.integers(0, 0x7F, (5, 7), np.uint8)
    fp8[[0, 4]] = [0x38, 0xB8, 0x7E, 0x01, 0x08, 0x00, 0x40]
    scales = np.array([[1, 2, 4], [8, 16, 32], [64, 128, 0.5]], np.float32)
    arrays = {"a": bf16, "b": fp8, "b_scale_inv": scales}
    save(tmp_path / "model.safetensors", arrays, {"a": "BF16", "b": "F8_E4M3"})
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"weight_block_size": [2, 3]}}))
    source = Checkpoint(tmp_path)
    wide = as_numbers(source.tensor("a").rows())
    np.testing.assert_array_equal(wide, (bf16.astype(np.uint32) << 16).view(np.float32))
    first = np.array([1, -1, 448, 2**-9, 2**-6, 0, 2], np.float32)
    rows = as_numbers(source.tensor("b").rows())
    np.testing.assert_array_equal(rows[0], first * [1, 1, 1, 2, 2, 2, 4])
    np.testing.assert_array_equal(rows[4], first * [64, 64, 64, 128, 128, 128, 0.5])


def without(name: str) -> Callable[[Case], object]:
    return lambda case: case.arrays.pop(f"model.layers.3.{name}")


def config(**changes: object) -> Callable[[Case], object]:
    return lambda case: case.config.update(changes)


def array(name: str, value: np.ndarray[Any, Any]) -> Callable[[Case], object]:
    return lambda case: case.arrays.update({f"model.layers.3.{name}": value})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (config(architectures=["LlamaForCausalLM"]), "its architecture LlamaForCausalLM is none of Bailing"),
        (config(architectures=["DeepseekV3ForCausalLM"]), "it is a deepseek2 model, the GGUF is glm4moe"),
        (config(num_hidden_layers=2), "it has layers 2, the GGUF 3"),
        (config(hidden_size=64), "it has hidden states of the size 64, the GGUF 128"),
        (config(n_routed_experts=8), "it has experts 8, the GGUF 4"),
        (config(num_nextn_predict_layers=2), "it names 2 MTP heads and holds tensors of 1"),
        (without("eh_proj.weight"), r"head 0 has no nextn\.eh_proj\.weight"),
        (without("self_attn.q_proj.weight"), r"head 0 has no attn_q\.weight, which the model's layers have"),
        (without("mlp.experts.1.up_proj.weight"), "it holds the up matrices of 3 experts"),
        (array("self_attn.q_proj.weight", np.zeros((8, N_EMBD), np.float32)), r"attn_q.weight of head 0 has the shape"),
        (array("mlp.mystery.weight", np.zeros((8, 8), np.float32)), "it holds .*, which is no tensor of a head"),
        (lambda case: case.arrays.clear(), "it names 1 MTP heads and holds tensors of 0"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused(glm: Case, spoil: Callable[[Case], object], problem: str) -> None:
    spoil(glm)
    with pytest.raises(ModelError, match=rf"checkpoint does not hold heads for .*trunk\.gguf \({problem}"):
        convert_heads(glm.write(), glm.trunk)
    assert not glm.trunk.with_name("mtp-trunk.gguf").exists()


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        (STEP_CONFIG["layer_types"][:4], "its layer_types do not say how head 1 attends"),
        (["sliding_attention"] * 6, r"attn_output\.weight of head 1 has the shape \[256, 128\], not \[384, 128\]"),
    ],
)
def test_a_head_has_to_attend_as_its_layer_does(tmp_path: Path, types: list[str], problem: str) -> None:
    step = Case(tmp_path, "step")
    step.config["layer_types"] = types
    with pytest.raises(ModelError, match=problem):
        convert_heads(step.write(), step.trunk)


def test_what_cannot_be_read_is_refused(glm: Case, tmp_path: Path) -> None:
    folder = glm.write()
    with pytest.raises(UnsupportedModel, match="whole.gguf has MTP heads"):
        convert_heads(folder, glm.whole)
    with pytest.raises(ModelError, match="no such directory; name the folder of a checkpoint"):
        convert_heads(tmp_path / "none", glm.trunk)
    part, index, settings = (
        folder / name for name in ("model-00002-of-00003.safetensors", "model.safetensors.index.json", "config.json")
    )
    for path, content, problem in (
        (part, part.read_bytes()[:-1], "is damaged .* reaches beyond its end"),
        (part, part.read_bytes()[:20], "is damaged .*its header reaches beyond its end"),
        (part, b"", "is damaged"),
        (part, (2**40).to_bytes(8, "little"), "is damaged"),
        (part, (2).to_bytes(8, "little") + b"[]", "is damaged"),
        (part, (10**5).to_bytes(8, "little") + b"[" * 10**5, "is damaged"),
        (part, None, "cannot read .*00002-of-00003.safetensors: No such file"),
        (index, b'{"weight_map": {"model.layers.3.x": "../secret"}}', "is damaged: it does not name the files"),
        (index, b"[]", "is damaged .no object"),
        (settings, b"{", "config.json is damaged"),
        (settings, None, "cannot read .*config.json"),
    ):  # fmt: skip
        intact = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ModelError, match=problem):
            convert_heads(folder, glm.trunk)
        path.write_bytes(intact)
    name = "model.layers.3.self_attn.q_proj.weight"
    matrix = glm.arrays[name]
    for numbers, dtype, problem in (
        (matrix, "I32", "is of the type I32"),
        (matrix, "F8_E4M3", "has another size than its shape"),
        (np.float32(1), "F32", r"has the shape \[\]; get the checkpoint again"),
        (matrix[:0], "F32", r"has the shape \[0, 128\]; get the checkpoint again"),
        (matrix.view(np.uint8)[:, :N_EMBD], "F8_E4M3", "is FP8 without scales of a known kind"),
    ):
        glm.arrays[name] = np.asarray(numbers)
        glm.write({name: dtype})
        with pytest.raises(ModelError, match=problem):
            convert_heads(folder, glm.trunk)
    glm.arrays[name] = matrix
    glm.arrays[name] = np.full_like(glm.arrays[name], np.inf)
    glm.write()
    with pytest.raises(ModelError, match="checkpoint: blk.3.attn_q.weight: row 0 holds numbers that are not finite"):
        convert_heads(folder, glm.trunk)
    assert not glm.trunk.with_name("mtp-trunk.gguf").exists()
