"""MTP heads as files: what is taken out, put in and quantised, bit for bit; what does not fit is refused by name."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from pymtp import Model
from pymtp.binding.library import ffi, lib
from pymtp.errors import InvalidParameter, ModelError
from pymtp.gguf.header import ArrayLength
from pymtp.gguf.model_file import ModelFile
from pymtp.gguf.types import TENSOR_TYPES, WRITABLE_TYPES
from pymtp.gguf.writer import PIECE_BYTES
from pymtp.heads import HeadTypes, attach_heads, extract_heads, quantize_heads
from random_gguf import (
    write_deepseek4,
    write_gemma4_assistant,
    write_glm4moe,
    write_glm5_next,
    write_mimo2,
    write_nemotron_h_moe,
    write_qwen4exp,
    write_qwen35,
    write_step35,
)
from random_gguf.side_files import copied, split_heads, trim_heads, without_tensors
from random_gguf.writer import N_EMBD, Writer
from test_side_files import drafts

WriteGguf = Callable[..., Path]
Tensors = dict[str, tuple[tuple[int, ...], int, bytes]]
HEAD = "blk.3."


def tensors(path: Path) -> Tensors:
    """Shape, type and data of each tensor, as the gguf package reads them."""
    found = gguf.GGUFReader(path).tensors
    return {t.name: (tuple(map(int, t.shape)), int(t.tensor_type), t.data.tobytes()) for t in found}


def metadata(path: Path) -> dict[str, object]:
    fields = gguf.GGUFReader(path).fields.items()
    return {name: field.contents() for name, field in fields if not name.startswith("GGUF.")}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_glm4moe(tmp_path / "whole.gguf")


@pytest.fixture
def trunk(whole: Path) -> Path:
    path = whole.with_name("trunk.gguf")
    split_heads(whole, path, whole.with_name("unused.gguf"))
    whole.with_name("unused.gguf").unlink()
    return path


WRITERS = [
    *(write_glm4moe, write_step35, write_qwen35, write_mimo2, write_nemotron_h_moe, write_deepseek4),
    *(write_glm5_next, write_qwen4exp),
]


def test_what_a_killed_process_of_this_number_left_is_written_over(whole: Path, tmp_path: Path) -> None:
    """In a container every process is number 1."""
    left = tmp_path / f"heads.gguf.{os.getpid()}.incomplete"
    left.write_bytes(bytes(9_000_000))
    assert extract_heads(whole, tmp_path / "heads.gguf").stat().st_size < 9_000_000
    assert not left.exists()


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_heads_taken_out_and_put_back_are_the_original(write: Callable[[Path], Path], tmp_path: Path) -> None:
    whole, trunk, apart = write(tmp_path / "whole.gguf"), tmp_path / "trunk.gguf", tmp_path / "apart.gguf"
    split_heads(whole, trunk, apart)
    heads = extract_heads(whole)
    assert heads == tmp_path / "mtp-whole.gguf"
    assert metadata(heads) == metadata(apart) == metadata(whole)
    ours, theirs, original = tensors(heads), tensors(apart), tensors(whole)
    assert ours.items() >= theirs.items()
    assert {name for name in ours.keys() - theirs.keys() if name.startswith("blk.")} == set()
    assert ours.items() <= original.items()

    again = attach_heads(trunk, heads, tmp_path / "again.gguf")
    assert tensors(again) == original
    assert metadata(again) == metadata(whole)


@pytest.mark.parametrize("bare", [False, True])
def test_heads_taken_out_draft_like_those_in_the_model(trunk: Path, bare: bool) -> None:
    whole = trunk.with_name("whole.gguf")
    heads = extract_heads(whole, bare=bare)
    outside = {name for name in tensors(heads) if not name.startswith(HEAD)}
    assert outside == (set() if bare else {"token_embd.weight", "output_norm.weight", "output.weight"})
    with Model(whole, draft="mtp", n_threads=1) as one, Model(trunk, draft="mtp", n_threads=1) as two:
        assert two.info.draft_model == heads
        np.testing.assert_array_equal(drafts(two), drafts(one))


@pytest.mark.parametrize("lacks", ["", HEAD, "eh_proj"])
def test_a_finetune_that_lost_its_heads_gets_those_of_the_original(lacks: str, trunk: Path, tmp_path: Path) -> None:
    """Also where its metadata still declares them, or it has a part of them. All but the heads is the finetune's."""
    whole, finetune = trunk.with_name("whole.gguf"), tmp_path / "finetune.gguf"
    lost = without_tensors(whole, tmp_path / "lost.gguf", lacks) if lacks else trunk
    own: dict[str, str | int] = {
        "general.name": "finetune",
        "tokenizer.chat_template": "other",
        "tokenizer.ggml.eos_token_id": 7,
    }
    copied(gguf.GGUFReader(lost), finetune, own, [])
    heads = extract_heads(whole, tmp_path / "heads.gguf")
    joined = attach_heads(finetune, heads, tmp_path / "joined.gguf")
    assert tensors(joined) == tensors(whole)
    assert metadata(joined) == metadata(whole) | own
    with Model(whole, draft="mtp", n_threads=1) as one, Model(joined, draft="mtp", n_threads=1) as two:
        expected = drafts(one)
        np.testing.assert_array_equal(drafts(two), expected)
        two_ends = two.vocabulary.eos_text
        assert two_ends != one.vocabulary.eos_text
    with Model(finetune, draft_model=heads, draft="mtp", n_threads=1) as three:
        np.testing.assert_array_equal(drafts(three), expected)
        assert three.vocabulary.chat_template == "other"
        assert three.vocabulary.eos_text == two_ends


def test_the_parts_of_a_split_model_become_one_file(tmp_path: Path, whole: Path) -> None:
    original = gguf.GGUFReader(whole)
    for number in (1, 2):
        writer = gguf.GGUFWriter(tmp_path / f"split-{number:05}-of-00002.gguf", "glm4moe")
        writer.add_uint16("split.no", number - 1)
        writer.add_uint16("split.count", 2)
        for name, field in original.fields.items():
            if number == 1 and not name.startswith("GGUF.") and name != "general.architecture":
                kinds = field.types
                writer.add_key_value(name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
        for tensor in original.tensors[number - 1 :: 2]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    first = tmp_path / "split-00001-of-00002.gguf"
    heads = extract_heads(first)
    assert heads.name == "mtp-split.gguf"
    assert tensors(heads) == tensors(extract_heads(whole))
    quantised = tmp_path / "one.gguf"
    quantize_heads(first, quantised, HeadTypes(tensor_type=[("attn_q", "f16")]))
    assert len(ModelFile(quantised).shards) == 1
    assert tensors(quantised).keys() == tensors(whole).keys()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_matrices_of_the_heads_get_the_type_and_nothing_else_changes(whole: Path, kind: str) -> None:
    source, target = whole.with_name("source.gguf"), whole.with_name("target.gguf")
    if kind == "f32":
        quantize_heads(whole, source, HeadTypes(type="bf16"))
    else:
        source = whole
    changed = {change.name for change in quantize_heads(source, target, HeadTypes(type=kind))}
    before, after, expected = tensors(source), tensors(target), gguf.GGMLQuantizationType[kind.upper()]
    assert {name for name in before if before[name] != after[name]} == changed
    kept = {name for name in after if name.startswith(HEAD)} - changed
    assert len(kept) + len(changed) == sum(name.startswith(HEAD) for name in after)
    assert all("norm" in name or "bias" in name or "gate_inp" in name for name in kept)
    assert HEAD + "ffn_gate_inp.weight" in kept
    for tensor in gguf.GGUFReader(source).tensors:
        if tensor.name in changed:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            data = gguf.quants.quantize(numbers, expected).tobytes()
            assert after[tensor.name][1:] == (expected, data), tensor.name


def test_parts_of_a_head_get_types_of_their_own(whole: Path) -> None:
    types = HeadTypes("q8_0", "q6_k", "q4_0", [("attn_[qk]", "f16"), ("attn_q", "q4_1")])
    target = whole.with_name("mixed.gguf")
    changes = {change.name.removeprefix(HEAD): change for change in quantize_heads(whole, target, types)}
    assert changes["ffn_gate_exps.weight"].after == "Q4_0"
    assert changes["ffn_gate_shexp.weight"].after == "Q8_0"
    assert (changes["attn_q.weight"].after, changes["attn_k.weight"].after) == ("F16", "F16")
    # rows of 128 numbers have no blocks of 256
    output = changes["nextn.shared_head_head.weight"]
    assert (output.before, output.after, output.wanted) == ("F32", "Q8_0", "Q6_K")
    assert changes["attn_v.weight"].wanted is None
    with Model(target, draft="mtp", n_threads=1) as model:
        assert np.isfinite(drafts(model)).all()


def test_one_part_alone_leaves_the_others_as_they_are(whole: Path) -> None:
    target = whole.with_name("experts.gguf")
    changes = quantize_heads(whole, target, HeadTypes(experts_type="q8_0"))
    assert {change.name for change in changes} == {f"{HEAD}ffn_{x}_exps.weight" for x in ("gate", "up", "down")}


def test_every_type_that_is_named_can_be_written_and_no_other() -> None:
    row, out = ffi.new("float[]", [0.5] * 256), ffi.new("char[]", 4096)
    written = {
        kind.name.lower()
        for type_id, kind in TENSOR_TYPES.items()
        if lib.pymtp_convert_rows(0, type_id, 1, 256, row, out) == 0
    }
    assert written == set(WRITABLE_TYPES)
    assert lib.pymtp_convert_rows(0, 8, 1, 100, row, out) != 0  # blocks of 32


def test_numbers_that_are_not_finite_are_refused_by_the_tensors_name(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "nan.gguf", "glm4moe", 1, 1, {})
    writer.matrix("blk.0.attn_q.weight", N_EMBD, N_EMBD)
    writer.add_tensor("blk.1.nextn.eh_proj.weight", np.full((4, N_EMBD), np.nan, np.float32))
    target = tmp_path / "out.gguf"
    with pytest.raises(
        ModelError, match=r"nan.gguf: blk.1.nextn.eh_proj.weight: row 0 holds numbers that are not finite"
    ):
        quantize_heads(writer.finish(), target, HeadTypes(type="q8_0"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nan.gguf"]


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ({}, "type"),
        ({"type": "q9"}, "type"),
        ({"output_type": "iq2_xxs"}, "output_type"),
        ({"experts_type": "F16"}, "experts_type"),
        ({"tensor_type": [("attn", "none")]}, "tensor_type"),
        ({"tensor_type": [("(", "f16")]}, "tensor_type"),
        ({"tensor_type": [("blk.0.attn_q", "f16")]}, "tensor_type"),  # of the trunk
    ],
)
def test_wrong_types_are_refused_by_the_parameters_name(whole: Path, types: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        quantize_heads(whole, whole.with_name("out.gguf"), HeadTypes(**types))  # type: ignore[arg-type]
    assert caught.value.name == name


def test_what_does_not_fit_is_refused(tmp_path: Path, whole: Path, trunk: Path, write_gguf: WriteGguf) -> None:
    heads, out = extract_heads(whole, tmp_path / "heads.gguf"), tmp_path / "out.gguf"
    other = extract_heads(write_glm4moe(tmp_path / "four.gguf", n_layer=4), tmp_path / "mtp-four.gguf")
    assistant = write_gemma4_assistant(tmp_path / "assistant.gguf")
    trim_heads(heads, trimmed := tmp_path / "trimmed.gguf", [3, 100, 7])
    empty = write_gguf(name="empty.gguf", declared=1, heads=0)
    for call, problem in (
        (lambda: extract_heads(trunk, out), "names no MTP heads"),
        (lambda: extract_heads(heads, out), "holds MTP heads alone already"),
        (lambda: extract_heads(empty, out), "names 1 MTP heads and holds the tensors of 0"),
        (lambda: extract_heads(assistant, out), "is an assistant"),
        (lambda: attach_heads(whole, heads, out), "has its own MTP heads"),
        (lambda: attach_heads(trunk, other, out), "it is of a model with 4 layers, not 3"),
        (lambda: attach_heads(trunk, trunk, out), "holds no usable MTP heads"),
        (lambda: attach_heads(trunk, assistant, out), "is an assistant"),
        (lambda: attach_heads(trunk, trimmed, out), "drafts a part of the vocabulary, .* --draft-model"),
        (lambda: quantize_heads(trunk, out, HeadTypes("f16")), "names no MTP heads"),
        (lambda: quantize_heads(whole, out, HeadTypes("f32")), "no matrix of its heads gets another type"),
        (lambda: quantize_heads(whole, whole, HeadTypes("f16"), force=True), "is read and cannot be written as well"),
        (lambda: attach_heads(trunk, heads, heads, force=True), "is read and cannot be written as well"),
        (lambda: extract_heads(whole, trunk), r"trunk.gguf exists; .* \(--force\)"),
        (lambda: extract_heads(whole, tmp_path, force=True), "is a directory"),
        (lambda: extract_heads(whole, "-"), "not written to stdout; name a file"),
        (lambda: extract_heads(whole, os.devnull, force=True), f"{os.devnull} is not a regular file"),
        (lambda: extract_heads(whole, tmp_path / ("x" * 250)), "cannot write .*: File name too long"),
        (lambda: extract_heads(whole, tmp_path / ("x" * 256)), "cannot write .*: File name too long"),
        (lambda: extract_heads(whole, tmp_path / "none" / "x.gguf"), "none: no such directory"),
        (lambda: extract_heads(tmp_path / "none.gguf", out), "no such file"),
    ):
        with pytest.raises(ModelError, match=problem):
            call()
        assert not out.exists()


def test_heads_of_a_model_whose_layers_attend_otherwise_are_refused(tmp_path: Path) -> None:
    whole, trunk, heads = write_step35(tmp_path / "whole.gguf"), tmp_path / "trunk.gguf", tmp_path / "heads.gguf"
    split_heads(whole, trunk, heads)
    windows = ModelFile(heads).metadata["step35.attention.sliding_window_pattern"]
    assert isinstance(windows, ArrayLength)
    with heads.open("r+b") as file:
        file.seek(windows.offset)
        file.write(b"\1")
    with pytest.raises(ModelError, match=r"sliding_window_pattern differs in the trunk's layers"):
        attach_heads(trunk, heads, tmp_path / "out.gguf")


def test_a_file_is_there_when_it_is_complete_or_not_at_all(tmp_path: Path, whole: Path) -> None:
    target, seen = tmp_path / "heads.gguf", []
    target.write_bytes(b"precious")

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_heads(whole, target, force=True, on_write=stop)
    assert target.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heads.gguf", "whole.gguf"]
    extract_heads(whole, target, force=True, on_write=lambda done, total: seen.append((done, total)))
    assert ModelFile(target).n_heads == 1
    assert seen[-1][0] <= seen[-1][1] == target.stat().st_size


def test_no_room_is_noticed_before_anything_is_written(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ModelError, match=r"heads.gguf will have \d+ bytes, but .* has room for 1000; free some"):
        extract_heads(whole, tmp_path / "heads.gguf")
    assert not (tmp_path / "heads.gguf").exists()


def test_a_large_model_is_never_in_memory(tmp_path: Path) -> None:
    writer, n_bytes = Writer(tmp_path / "large.gguf", "glm4moe", 1, 1, {}), 16 * PIECE_BYTES
    writer.matrix("blk.0.attn_q.weight", N_EMBD, N_EMBD)
    zeros = np.zeros((n_bytes // 4 // N_EMBD, N_EMBD), np.float32)
    writer.add_tensor("blk.1.nextn.eh_proj.weight", zeros)
    large = writer.finish()
    tracemalloc.start()
    try:
        quantize_heads(large, tmp_path / "small.gguf", HeadTypes(type="q8_0"))
        extract_heads(large, tmp_path / "heads.gguf")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * PIECE_BYTES < n_bytes


def test_a_head_of_an_unknown_type_is_refused(whole: Path, tmp_path: Path) -> None:
    data, name = bytearray(whole.read_bytes()), f"{HEAD}nextn.eh_proj.weight".encode()
    type_at = data.index(name) + len(name) + 4 + 2 * 8  # after the number of dimensions, and two of them
    data[type_at : type_at + 4] = (99).to_bytes(4, "little")
    whole.write_bytes(data)
    with pytest.raises(ModelError, match="eh_proj.weight is of the unknown type 99; use a newer pymtp"):
        quantize_heads(whole, tmp_path / "small.gguf", HeadTypes(type="q8_0"))
