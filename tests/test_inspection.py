"""What a file says about itself agrees with what llama.cpp makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from families import FAMILIES, REFUSED, Family
from log_level import logged
from machine import needs_no_gpu
from pymtp.binding.library import lib, text_of
from pymtp.engine.context import ContextParams
from pymtp.errors import ModelError
from pymtp.gguf.facts import model_facts
from pymtp.heads import extract_heads
from pymtp.inspection import Inspection
from pymtp.placement.demand import MemoryEstimate
from random_gguf import blocks, write_qwen35
from random_gguf.generic import write_trunk
from random_gguf.side_files import split_heads
from random_gguf.writer import HEAD, N_EMBD, N_KV, Writer

N_CTX = 1500
DRAFT_MAX = 3
N_VALUES = 8
"""Of K2 Horizon: not as many as there are experts."""

WriteGguf = Callable[..., Path]


def test_the_embedded_model(embedded_model: Path) -> None:
    found = Inspection(embedded_model)
    (head,) = found.heads
    assert (found.n_files, found.n_experts, found.n_experts_used, found.has_trunk) == (1, 0, 0, True)
    assert (head.layer, head.lm_head, head.tensor_types[0]) == (16, "shared", "Q4_K")
    assert (found.obstacle, found.mtp_context) == ("", "target")
    assert sum(found.tensor_types.values()) <= found.info.size_bytes


def check_pass_bytes(path: Path) -> Inspection:
    """A pass reads all its tensors but an embedding that is not the output matrix, too; of experts those of a token."""
    from gguf import GGUFReader

    found = Inspection(path)
    tensors = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    share = found.n_experts_used / (found.n_experts or 1)

    def read(names: list[str]) -> float:
        return sum(tensors[name] * (share if "_exps" in name else 1) for name in names)

    p, output = f"blk.{found.info.n_layer}.", "output.weight" if "output.weight" in tensors else "token_embd.weight"
    trunk = [name for name in tensors if not name.startswith((p, "token_embd", "output.")) or name == output]
    head = [name for name in tensors if name.startswith(p) and "embed_tokens" not in name]
    head += [output] if found.heads[0].lm_head == "shared" else []
    assert found.trunk_pass_bytes == read(trunk)
    assert found.heads[0].pass_bytes == read(head)
    assert found.draft_cost == pytest.approx(found.heads[0].pass_bytes / found.trunk_pass_bytes)
    return found


def test_a_pass_reads_the_output_matrix_and_one_row_of_the_embedding(embedded_model: Path) -> None:
    check_pass_bytes(embedded_model)


@pytest.mark.parametrize(("name", "lm_head"), [("glm4moe", "own"), ("cohere2moe", "shared")])
def test_a_pass_reads_the_experts_that_a_token_takes(name: str, lm_head: str, tmp_path: Path) -> None:
    found = check_pass_bytes(FAMILIES[name].write(tmp_path / "tiny.gguf"))
    assert 0 < found.n_experts_used < found.n_experts
    assert found.heads[0].lm_head == lm_head
    assert found.info.ties_embedding == (name != "glm4moe")  # cohere2moe's output is its embedding


def test_heads_with_an_lm_head_of_their_own(shared: Path) -> None:
    found = Inspection(shared / "models" / "nano-step-Q8_0.gguf")
    assert [(head.layer, head.lm_head) for head in found.heads] == [(6, "own"), (7, "own"), (8, "own")]
    assert found.mtp_context == "chained"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Family, Path, Inspection]:
    family = FAMILIES[request.param]
    path = family.write(tmp_path_factory.mktemp("family") / "tiny.gguf")
    return family, path, Inspection(path)


@pytest.mark.parametrize(
    "family", [name for name, family in FAMILIES.items() if not family.write_assistant], indirect=True
)
def test_heads_of_every_family_can_draft(family: tuple[Family, Path, Inspection]) -> None:
    known, _, found = family
    assert len(found.heads) == known.n_heads
    assert found.obstacle == ""


@needs_no_gpu
def test_memory_is_what_llama_cpp_allocates(
    family: tuple[Family, Path, Inspection], capfd: pytest.CaptureFixture[str]
) -> None:
    _, path, found = family
    check_memory(path, found, capfd)


@needs_no_gpu
def test_a_number_says_which_layers_have_no_window(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_trunk(tmp_path / "tiny.gguf", "gemma3", 6, {"attention.sliding_window_pattern": 3})
    check_memory(path, Inspection(path), capfd)


@needs_no_gpu
def test_layers_that_a_pass_goes_through_several_times_count_as_often(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    once, thrice = (Inspection(write_nanbeige(tmp_path / f"{n}.gguf", n)) for n in (1, 3))
    check_memory(thrice.info.path, thrice, capfd)
    outside = sum(4 * tensor.n_elements for name, tensor in once.info.tensors.items() if name.startswith("output"))
    assert thrice.trunk_pass_bytes - outside == 3 * (once.trunk_pass_bytes - outside)


def write_nanbeige(path: Path, n_loops: int) -> Path:
    w = Writer(path, "nanbeige", 2, 0, {"num_loops": n_loops})
    blocks.embeddings(w)
    for p in ("blk.0.", "blk.1."):
        w.norm(p + "attn_norm.weight")
        w.norm(p + "ffn_norm.weight")
        blocks.attention(w, p)
        blocks.feed_forward(w, p)
    return w.finish()


@needs_no_gpu
def test_a_pass_reads_the_value_experts_that_a_token_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """K2 Horizon's layers choose among matrices of values, as others do among feed-forwards."""
    one, two = (Inspection(write_k2_horizon(tmp_path / f"{n}.gguf", n)) for n in (1, 2))
    check_memory(two.info.path, two, capfd)
    (values,) = (tensor for name, tensor in two.info.tensors.items() if "attn_v_exps" in name)
    assert two.trunk_pass_bytes - one.trunk_pass_bytes == values.size_bytes / N_VALUES


@pytest.mark.parametrize("n_used", [0, N_VALUES + 1])
def test_more_value_experts_than_there_are_is_an_error(n_used: int, tmp_path: Path) -> None:
    from pymtp import Model

    with pytest.raises(ModelError), Model(write_k2_horizon(tmp_path / "tiny.gguf", n_used), n_ctx=64):
        pass


def write_k2_horizon(path: Path, n_used: int) -> Path:
    values = {f"attention.value_expert_{key}": n for key, n in (("count", N_VALUES), ("used_count", n_used))}
    w = Writer(path, "k2-horizon", 1, 0, {**blocks.EXPERTS, **values})
    blocks.embeddings(w)
    w.norm("blk.0.attn_norm.weight")
    w.norm("blk.0.ffn_norm.weight")
    blocks.attention(w, "blk.0.", has_values=False)
    w.matrix("blk.0.attn_v_gate.weight", N_EMBD, N_VALUES)
    w.matrix("blk.0.attn_v_exps.weight", N_EMBD, N_KV * HEAD, N_VALUES)
    blocks.experts(w, "blk.0.", shared=False)
    return w.finish()


@pytest.mark.parametrize("architecture", ["eagle3", "dflash"])
def test_what_drafts_from_layers_of_another_model_says_so(architecture: str, tmp_path: Path) -> None:
    w = Writer(tmp_path / "draft.gguf", architecture, 1, 0, {"target_layers": [2, 5, 7]})
    w.norm("blk.0.attn_norm.weight")
    found = Inspection(w.finish())
    assert found.obstacle == "it drafts from hidden states of 3 layers of another model, which pymtp does not do"
    with pytest.raises(ModelError, match=rf"drafts in a way that pymtp does not have \({architecture}, "):
        model_facts(write_nanbeige(tmp_path / "model.gguf", 1), found.info.path)


def check_memory(path: Path, found: Inspection, capfd: pytest.CaptureFixture[str]) -> None:
    """What is estimated for `found` is about what llama.cpp allocates, and rather more."""
    from pymtp import Model

    capfd.readouterr()
    with logged("info"), Model(path, n_ctx=N_CTX, draft_max=DRAFT_MAX, flash_attn="on") as model:
        compute_bytes = model.session.compute_bytes
    sizes = re.findall(r"(?:KV|RS|DSV4 \w+ state) buffer size = +([\d.]+) MiB", capfd.readouterr().err)
    allocated = sum(map(float, sizes)) * 2**20
    memory = MemoryEstimate(found.info, ContextParams(), N_CTX, DRAFT_MAX if found.heads else 0)
    cached = memory.kv_bytes + memory.heads_kv_bytes + memory.state_bytes
    assert 0.9 < cached / allocated < 1.5
    assert 0.6 < memory.compute_bytes / compute_bytes < 1.5


@pytest.mark.parametrize("name", [name for name, refused in REFUSED.items() if refused.write])
def test_heads_that_llama_cpp_cannot_run_are_named(name: str, tmp_path: Path) -> None:
    from pymtp import Model

    write = REFUSED[name].write
    assert write is not None
    path = write(tmp_path / "tiny.gguf")
    with Model(path, n_ctx=64) as model:
        obstacle = Inspection(path).obstacle
        assert obstacle and obstacle in model.draft_note


@pytest.mark.parametrize(
    ("architecture", "n_heads", "has_lora_q", "has_mla", "obstacle"),
    [
        ("deepseek32", 1, False, True, ""),
        ("deepseek32", 1, True, False, "it needs attn_k_b and attn_v_b"),
        ("deepseek32", 2, True, True, "it runs a single head of them"),
        ("deepseek2", 1, False, True, "it needs attn_q_a and attn_q_b"),
        ("step35", 3, False, False, ""),
        ("a-new-one", 1, False, False, "it has no graph for them"),
    ],
)
def test_only_architectures_that_are_known_can_draft(
    architecture: str, n_heads: int, has_lora_q: bool, has_mla: bool, obstacle: str
) -> None:
    found = lib.pymtp_heads_obstacle(architecture.encode(), n_heads, has_lora_q, has_mla)
    assert (text_of(found) if found else "") == obstacle


@pytest.mark.parametrize(
    ("declared", "heads", "text"), [(0, 0, "names no MTP heads"), (2, 1, "names 2 MTP heads, the file holds")]
)
def test_heads_that_are_missing(write_gguf: WriteGguf, declared: int, heads: int, text: str) -> None:
    found = Inspection(write_gguf(declared=declared, heads=heads))
    assert text in found.obstacle
    assert len(found.heads) == heads


def test_a_split_model_is_one_model(write_gguf: WriteGguf) -> None:
    first = write_gguf("m-00001-of-00002.gguf", declared=1, heads=0, split=(0, 2))
    write_gguf("m-00002-of-00002.gguf", declared=1, heads=1, split=(1, 2))
    found = Inspection(first)
    assert (found.n_files, len(found.heads), found.obstacle) == (2, 1, "")


def test_side_files_are_listed_and_a_damaged_one_says_why(write_gguf: WriteGguf, tmp_path: Path) -> None:
    path = write_gguf("model.gguf")
    write_gguf("mtp-model.gguf", n_layer=0, declared=1, heads=1)
    (tmp_path / "mtp-torn.gguf").write_bytes(b"GGUF")
    good, torn = Inspection(path).side_files
    assert (good.path.name, good.architecture, good.problem) == ("mtp-model.gguf", "glm4moe", "")
    assert "truncated" in torn.problem


def test_a_side_file_itself_has_heads_and_no_trunk(write_gguf: WriteGguf) -> None:
    found = Inspection(write_gguf("mtp-model.gguf", n_layer=0, declared=1, heads=1))
    assert (found.has_trunk, len(found.heads)) == (False, 1)
    assert "without a trunk" in found.obstacle


@pytest.mark.parametrize("bare", [False, True])
def test_heads_in_a_side_file_read_what_they_read_in_the_model(bare: bool, tmp_path: Path) -> None:
    whole, trunk = write_qwen35(tmp_path / "whole.gguf"), tmp_path / "trunk.gguf"
    split_heads(whole, trunk, tmp_path / "unused.gguf")
    extract_heads(whole, tmp_path / "mtp-heads.gguf", bare=bare)
    (side,), expected = Inspection(trunk).side_files, Inspection(whole)
    assert list(map(vars, side.heads)) == list(map(vars, expected.heads))
    assert expected.heads[0].lm_head == "shared"


def test_our_arrays_of_numbers_are_those_of_the_gguf_package(embedded_model: Path) -> None:
    from gguf import GGUFReader

    from pymtp.gguf.header import ArrayLength, read_header, read_numbers

    fields = GGUFReader(embedded_model).fields
    arrays = {
        key: value for key, value in read_header(embedded_model).metadata.items() if isinstance(value, ArrayLength)
    }
    assert {key.rsplit(".")[-1] for key in arrays} == {
        *("head_count", "head_count_kv", "sliding_window_pattern", "tokens", "token_type", "merges")
    }
    for key, array in arrays.items():
        has_texts = key.endswith(("tokens", "merges"))
        assert read_numbers(embedded_model, array, 2**20) == ([] if has_texts else fields[key].contents())
