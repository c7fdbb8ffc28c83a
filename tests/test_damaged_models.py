"""Model files with numbers and types that cannot be meant: errors that name the key, where llama.cpp would crash."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import random_gguf
from fuzz.headers import Parts, take_apart
from machine import needs_no_gpu
from pymtp import Model, ModelError, PymtpError
from pymtp.gguf.limits import metadata_problem
from pymtp.gguf.shards import read_shards
from random_gguf.side_files import write_shards

F16, I32 = 1, 26
STRING, ARRAY = 8, 9


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[..., Path]:
    """Write a random model of a family, and change its parts."""

    def make(family: str, change: Callable[[Parts], None]) -> Path:
        path: Path = getattr(random_gguf, f"write_{family}")(tmp_path / "tiny.gguf")
        parts = take_apart(path.read_bytes())
        change(parts)
        path.write_bytes(parts.joined())
        return path

    return make


def set_number(key: str, number: int) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        (at,) = (i for i, (name, _, _) in enumerate(parts.values) if name.decode().partition(".")[2] == key)
        name, kind, value = parts.values[at]
        if kind == ARRAY:  # a single number is that of all layers
            kind = max(4, struct.unpack_from("<I", value)[0] % 7)  # bools as numbers
        parts.values[at] = (name, kind, struct.pack("<I", number))

    return change


def set_type(name: str, kind: int) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        (at,) = (i for i, tensor in enumerate(parts.tensors) if tensor[0].decode() == name)
        _, shape, _, offset = parts.tensors[at]
        parts.tensors[at] = (name.encode(), shape, kind, offset)

    return change


def run(path: Path) -> list[int]:
    with Model(path, n_ctx=64, n_threads=1, draft_max=2) as model:
        generation = model.generate([5, 6, 7], max_tokens=4, temperature=0, ignore_eos=True)
        list(generation)
        return generation.tokens


@pytest.mark.parametrize(
    ("family", "key", "number"),
    [
        ("qwen35", "full_attention_interval", 0),  # a division
        ("qwen3next", "full_attention_interval", 0),
        ("deepseek4", "attention.output_group_count", 0),  # a division
        ("glm_dsa", "attention.indexer.types", 0),  # a null pointer
        ("glm_dsa", "attention.indexer.types", 1),
        ("gemma4_shared", "attention.head_count_kv", 0),  # a division
        ("deepseek4", "hyper_connection.sinkhorn_iterations", 2**31 - 1),  # a graph that never ends
        ("deepseek4", "attention.head_count_kv", 4095),  # a cache that no memory holds
        ("qwen35", "ssm.inner_size", 2**20),  # states that no memory holds
        ("glm4moe", "rope.dimension_count", 0),  # a loop that never ends
        ("mimo2", "rope.dimension_count", 0),
        ("qwen35", "rope.dimension_count", 0),
        ("gemma4", "rope.dimension_count", 0),
        ("gemma4", "rope.dimension_count_swa", 0),
        ("glm4moe", "rope.dimension_count", 33),
        ("qwen35", "rope.dimension_sections", 33),
    ],
)
def test_a_number_that_cannot_be_meant_is_an_error_that_names_its_key(
    damaged: Callable[..., Path], family: str, key: str, number: int
) -> None:
    path = damaged(family, set_number(key, number))
    with pytest.raises(PymtpError, match=rf"metadata.*\b{key.removesuffix('_swa')}.*convert or download it again"):
        run(path)


@needs_no_gpu
@pytest.mark.parametrize(
    ("family", "name", "kind"),
    [
        ("qwen35", "blk.2.ssm_alpha.weight", I32),
        ("step35", "blk.2.ffn_gate_exps.weight", I32),
        ("step35", "blk.0.attn_q.weight", I32),
        ("mimo2", "blk.3.attn_qkv.weight", I32),
        ("mimo2", "blk.2.exp_probs_b.bias", F16),
        ("gemma4", "blk.2.post_ffw_norm.weight", I32),
        ("gemma4", "blk.0.layer_output_scale.weight", I32),
    ],
)
def test_a_type_that_cannot_be_computed_with_is_an_error_that_names_the_tensor(
    damaged: Callable[..., Path], family: str, name: str, kind: int
) -> None:
    with pytest.raises(PymtpError, match=f"{name} is of type .*; convert or download it again"):
        run(damaged(family, set_type(name, kind)))


@pytest.mark.parametrize("expert", [-1, 4, 2**31 - 1])
def test_a_table_that_names_an_expert_that_there_is_not_is_refused(tmp_path: Path, expert: int) -> None:
    """Its values are places in memory."""
    path = random_gguf.write_deepseek4(tmp_path / "tiny.gguf")
    (shard,) = read_shards(path)
    (table,) = (tensor for tensor in shard.tensors if "tid2eid" in tensor.name)
    with path.open("r+b") as file:
        file.seek(table.offset + 40)  # of token 5
        file.write(struct.pack("<i", expert))
    with pytest.raises(ModelError, match=f"ffn_gate_tid2eid.weight names expert {expert} of 4; download it again"):
        run(path)


@pytest.mark.parametrize("token", [-1, random_gguf.N_VOCAB])
def test_a_table_that_names_a_token_that_there_is_not_is_refused(tmp_path: Path, token: int) -> None:
    path = random_gguf.write_gemma4(tmp_path / "tiny.gguf")
    assistant = random_gguf.write_gemma4_choosing_assistant(tmp_path / "assistant.gguf")
    (shard,) = read_shards(assistant)
    (table,) = (tensor for tensor in shard.tensors if tensor.name == "masked_embd_ordering")
    with assistant.open("r+b") as file:
        file.seek(table.offset + 40)
        file.write(struct.pack("<i", token))
    match = f"masked_embd_ordering names token {token} of {random_gguf.N_VOCAB}; download it again"
    with pytest.raises(ModelError, match=match), Model(path, draft_model=assistant):
        pass


@pytest.mark.parametrize("n_chosen", [0, 33])
def test_groups_of_tokens_that_there_are_not_are_refused(
    tmp_path: Path, damaged: Callable[..., Path], n_chosen: int
) -> None:
    path = random_gguf.write_gemma4(tmp_path / "gemma.gguf")
    assistant = damaged("gemma4_choosing_assistant", set_number("masked_embd.top_k", n_chosen))
    match = f"512 tokens in 32 groups, of which {n_chosen} are chosen"
    with pytest.raises(ModelError, match=match), Model(path, draft_model=assistant):
        pass


def cut(part: Path, n_bytes: int) -> None:
    part.write_bytes(part.read_bytes()[:n_bytes])


def turn_matrices(part: Path) -> None:
    """As another model of the same family and number of layers may have them."""
    parts = take_apart(part.read_bytes())
    parts.tensors = [(name, shape[::-1], kind, at) for name, shape, kind, at in parts.tensors]
    part.write_bytes(parts.joined())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda parts, other: parts[1].unlink(), "{1}: no such file; check the path"),
        (lambda parts, other: parts[1].rename(other), "{1}: no such file; check the path"),
        (lambda parts, other: parts[1].write_bytes(parts[2].read_bytes()), "{1} is not part 2 of 3, as its name says"),
        (lambda parts, other: cut(parts[2], -1), "{2} is truncated: .* bytes; download it again"),
        (lambda parts, other: cut(parts[2], 40), "{2} is truncated: it ends inside its header; download it again"),
        (lambda parts, other: cut(parts[1], 0), r"{1} is empty \(0 bytes\); download it again"),
        (lambda parts, other: other.replace(parts[1]), "the parts of {0} are not of one model; download them again"),
        (lambda parts, other: turn_matrices(parts[1]), "{0}: llama.cpp cannot load .* has wrong shape"),
    ],
    ids=["missing", "renamed", "twice", "cut in its data", "cut in its header", "empty", "of mimo2", "of other widths"],
)
def test_a_shard_that_is_not_the_models_is_an_error_of_one_line(
    damage: Callable[[list[Path], Path], None], reason: str, tmp_path: Path
) -> None:
    whole, other = (getattr(random_gguf, f"write_{name}")(tmp_path / f"{name}.gguf") for name in ("glm4moe", "mimo2"))
    parts, others = (write_shards(model, tmp_path, 3) for model in (whole, other))
    assert run(parts[0]) == run(whole)
    damage(parts, others[1])
    with pytest.raises(PymtpError, match=reason.format(*parts)) as caught:
        run(parts[0])
    assert "\n" not in str(caught.value)


def problem(architecture: str, **numbers: int | list[int]) -> str | None:
    found = {key.replace("__", "."): each if isinstance(each, list) else [each] for key, each in numbers.items()}
    return metadata_problem(architecture, lambda key: found.get(key, []))


def test_numbers_are_compared_layer_by_layer() -> None:
    assert problem("a", attention__head_count=[4, 2], attention__head_count_kv=[2, 2]) is None
    found = problem("a", attention__head_count=[4, 2], attention__head_count_kv=4)
    assert found is not None and found.startswith("attention.head_count_kv is 4, attention.head_count is 2")
    assert problem("a", attention__head_count=8, attention__head_count_kv=[8, 0, 8]) is None


def test_heads_without_a_number_of_layers_are_too_many() -> None:
    assert problem("a") is None
    assert "nextn_predict_layers is 1, block_count is 0" in (problem("a", nextn_predict_layers=1) or "")


def test_a_product_holds_for_the_architectures_that_need_it() -> None:
    numbers = {"ssm__inner_size": 256, "ssm__time_step_rank": 4, "ssm__state_size": 32}
    assert problem("mamba2", **numbers) is None
    assert "ssm.inner_size is 256, ssm.time_step_rank times ssm.state_size is 128" in (
        problem("qwen35", **numbers) or ""
    )


def test_a_vocabulary_without_tokens_for_a_text_is_an_error(damaged: Callable[..., Path]) -> None:
    """llama.cpp throws there, through functions of C: the process ended."""

    def of_sentencepiece(parts: Parts) -> None:
        (at,) = (i for i, (name, _, _) in enumerate(parts.values) if name == b"tokenizer.ggml.model")
        parts.values[at] = (parts.values[at][0], STRING, struct.pack("<Q5s", 5, b"llama"))
        parts.values.append((b"tokenizer.ggml.scores", ARRAY, struct.pack("<IQ512f", 6, 512, *[0.0] * 512)))

    with (
        Model(damaged("glm4moe", of_sentencepiece), n_ctx=64, n_threads=1) as model,
        pytest.raises(PymtpError, match="the model's vocabulary has no tokens for the text .*; download it again"),
    ):
        model.generate("Hello", max_tokens=2)
