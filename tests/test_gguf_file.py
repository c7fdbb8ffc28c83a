"""What the header of a GGUF shows, and an error for each kind of unusable file."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from fuzz.headers import take_apart
from pymtp.errors import ModelError
from pymtp.gguf.facts import model_facts
from pymtp.gguf.header import read_header
from pymtp.gguf.types import FILE_TYPES, TENSOR_TYPES
from pymtp.inspection import Inspection
from pymtp.loader import load_failure

WriteGguf = Callable[..., Path]


def failure(path: Path | str) -> str:
    with pytest.raises(ModelError) as caught:
        model_facts(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def n_calls(function: Callable[[], object]) -> int:
    """Functions that are called, of Python and of C: what it takes, on any machine."""
    n = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return n


def test_the_embedded_model_matches_its_card(embedded_model: Path) -> None:
    info = model_facts(embedded_model)
    assert (info.architecture, info.quantization, info.n_layer) == ("step35", "Q4_K_M", 16)
    assert (info.n_heads_declared, info.n_heads, info.has_heads) == (1, 1, True)
    assert (info.n_vocab, info.n_ctx_train) == (8192, 2048)
    assert not info.ties_embedding
    assert info.size_bytes == embedded_model.stat().st_size
    assert round(info.n_parameters / 1e6, 1) == 60.3
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template


def test_our_header_reader_agrees_with_the_gguf_package(embedded_model: Path) -> None:
    from gguf import GGUFReader

    from pymtp.gguf.header import ArrayLength, read_header

    header, reader = read_header(embedded_model), GGUFReader(embedded_model)
    assert [(t.name, list(t.shape), t.type_id) for t in header.tensors] == [
        (t.name, t.shape.tolist(), t.tensor_type) for t in reader.tensors
    ]
    for key, value in header.metadata.items():
        field = reader.fields[key]
        assert value == (ArrayLength(len(field.data)) if isinstance(value, ArrayLength) else field.contents())


def test_three_chained_heads_are_counted(shared: Path) -> None:
    info = model_facts(shared / "models" / "nano-step-Q8_0.gguf")
    assert (info.architecture, info.n_layer, info.n_heads) == ("step35", 6, 3)
    assert not info.ties_embedding


@pytest.mark.parametrize(("declared", "heads"), [(0, 0), (1, 1), (3, 3), (1, 0), (3, 1)])
def test_only_heads_whose_tensors_are_present_count(write_gguf: WriteGguf, declared: int, heads: int) -> None:
    info = model_facts(write_gguf(declared=declared, heads=heads, n_layer=4))
    assert (info.n_layer, info.n_heads_declared, info.n_heads) == (4, declared, heads)
    assert info.has_heads is (0 < heads == declared)


def test_a_model_may_lack_a_chat_template(write_gguf: WriteGguf) -> None:
    assert model_facts(write_gguf()).chat_template is None
    assert model_facts(write_gguf(chat_template="{{ x }}")).chat_template == "{{ x }}"


def test_an_unknown_architecture_is_left_to_the_loader(write_gguf: WriteGguf) -> None:
    info = model_facts(write_gguf(architecture="novelty"))
    error = load_failure(info, "llama_model_load: error loading model: unknown model architecture: 'novelty'")
    assert "'novelty'" in str(error)
    assert str(info.path) in str(error)


def test_other_errors_of_the_loader_are_passed_on(write_gguf: WriteGguf) -> None:
    error = load_failure(model_facts(write_gguf()), "noise\nerror loading model: missing tensor 'output_norm.weight'\n")
    assert "missing tensor 'output_norm.weight'" in str(error)


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in failure(tmp_path / "missing.gguf")
    assert "not a file name" in failure("a\0b.gguf")


def test_a_directory(tmp_path: Path) -> None:
    assert "is a directory" in failure(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    assert "is empty" in failure(path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in failure(tmp_path / "pipe.gguf")


@pytest.mark.parametrize("content", [b"P", b"PK\x03\x04 and so on", b"\n" * 100])
def test_not_a_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    assert "not a GGUF" in failure(path)
    assert f"if it is a prompt, use -f {path}" in failure(path)


def test_a_file_cut_anywhere_is_truncated(write_gguf: WriteGguf) -> None:
    path = write_gguf(declared=1, heads=1)
    whole = path.read_bytes()
    for size in range(4, len(whole), 7):
        path.write_bytes(whole[:size])
        assert "truncated" in failure(path), f"cut to {size} of {len(whole)} bytes"


def test_the_embedded_model_without_its_last_byte_is_truncated(embedded_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(embedded_model.read_bytes()[:-32])
    assert f"{path.stat().st_size} of " in failure(path)


def test_impossible_counts_are_reported_as_truncation_and_do_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63))
    assert "truncated" in failure(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1))
    assert "truncated" in failure(path)
    array_of_huge_strings = struct.pack("<Q1sIIQQ", 1, b"k", 9, 8, 2, 2**64 - 1)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array_of_huge_strings)
    assert "truncated" in failure(path)


def test_a_vocabulary_of_numbers_is_not_read(embedded_model: Path, tmp_path: Path) -> None:
    parts = take_apart(embedded_model.read_bytes())
    parts.data = b""
    numbers = struct.pack("<IQ", 0, 2**22) + bytes(2**22)
    odd = {b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"}
    parts.values = [(key, kind, numbers if key in odd else value) for key, kind, value in parts.values]
    path = tmp_path / "numbers.gguf"
    path.write_bytes(parts.joined())
    os.truncate(path, path.stat().st_size + embedded_model.stat().st_size)  # tensors of zeros
    tracemalloc.start()
    Inspection(path)
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("size", [2**18 + 1, 17 * 2**20])
def test_a_long_text_in_a_header_is_not_kept_whole(write_gguf: WriteGguf, size: int) -> None:
    path = write_gguf(chat_template="c" * size)
    header = read_header(path)
    assert header.metadata["tokenizer.chat_template"] == "c" * 2**18
    tracemalloc.start()
    Inspection(path)
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_an_array_beyond_the_end_of_the_file_is_truncation(tmp_path: Path) -> None:
    path = tmp_path / "array.gguf"
    for kind in (8, 4):  # strings, of which the last one is too long, and numbers
        array = struct.pack("<Q1sIIQ", 1, b"k", 9, kind, 1) + struct.pack("<Q", 50)[: 8 if kind == 8 else 2]
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
        assert "truncated" in failure(path)


def test_a_damaged_header_is_described(tmp_path: Path, write_gguf: WriteGguf) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 77))
    assert "unknown type 77" in failure(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    assert "no general.architecture" in failure(path)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"n_blocks": 100_000_000}, "block_count is 100000000, not 0 to 512: llama.cpp takes at most 512 layers"),
        ({"n_blocks": 513}, "block_count is 513, not 0 to 512: llama.cpp takes at most 512 layers"),
        (
            {"declared": 2_000_000_000, "n_blocks": 3},
            "nextn_predict_layers is 2000000000, block_count is 3: heads are layers too",
        ),
        ({"n_blocks": 400}, "it names 400 layers, the last tensors are those of layer 1"),
        ({"declared": 1, "heads": 1, "n_blocks": 100}, "it names 99 layers, the last tensors are those of layer 2"),
    ],
)
def test_numbers_of_layers_that_no_model_has_are_refused_at_once(
    write_gguf: WriteGguf, wrong: dict[str, int], what: str
) -> None:
    path = write_gguf(**wrong)

    def refused() -> None:
        assert f"{path} has damaged metadata ({what})" in failure(path)
        with pytest.raises(ModelError, match="damaged metadata"):
            Inspection(path)

    assert n_calls(refused) < 100_000


@pytest.mark.parametrize(
    ("version", "what"),
    [
        (struct.pack("<I", 1), "a GGUF of version 1"),
        (struct.pack(">I", 3), "a big-endian GGUF"),
        (struct.pack("<I", 9), "a GGUF of version 9"),
    ],
)
def test_a_gguf_of_another_kind_is_not_called_damaged(tmp_path: Path, version: bytes, what: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"GGUF" + version + bytes(16))
    assert f"{path} is {what}" in failure(path)


def test_a_gguf_without_a_model(write_gguf: WriteGguf) -> None:
    assert "'adapter'" in failure(write_gguf(kind="adapter"))


def test_a_file_without_read_permission(write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pymtp.gguf.shards.read_header", refuse)
    message = failure(write_gguf())
    assert "Permission denied" in message
    assert "permissions" in message


def test_heads_in_a_later_part_of_a_split_model_are_found(write_gguf: WriteGguf) -> None:
    first = write_gguf("m-00001-of-00002.gguf", declared=1, heads=0, split=(0, 2))
    assert "m-00002-of-00002.gguf: no such file" in failure(first)
    second = write_gguf("m-00002-of-00002.gguf", declared=1, heads=1, split=(1, 2))
    info = model_facts(first)
    assert info.n_heads == 1
    assert info.size_bytes == first.stat().st_size + second.stat().st_size
    assert "-00001-of-00002.gguf" in failure(second)


def test_parts_that_are_not_those_of_the_model_are_named(write_gguf: WriteGguf) -> None:
    """llama.cpp would find it, in words of its own, when it loads; what only reads headers would not at all."""
    first = write_gguf("m-00001-of-00003.gguf", declared=1, split=(0, 3))
    second = write_gguf("m-00002-of-00003.gguf", declared=1, heads=1, split=(1, 3))
    third = write_gguf("m-00003-of-00003.gguf", split=(2, 3))
    assert model_facts(first).n_heads == 1
    kept = third.read_bytes()
    for wrong in (second.read_bytes(), write_gguf("whole.gguf").read_bytes()):
        third.write_bytes(wrong)
        assert f"{third} is not part 3 of 3, as its name says; download it again" in failure(first)
    third.write_bytes(kept)
    second.write_bytes(write_gguf("other-00002-of-00002.gguf", heads=1, split=(1, 2)).read_bytes())
    assert f"{second} is not part 2 of 3" in failure(first)
    write_gguf("m-00002-of-00003.gguf", declared=1, heads=1, split=(1, 3))
    write_gguf("m-00003-of-00003.gguf", heads=2, split=(2, 3))  # of a model that was split elsewhere
    assert f"the parts of {first} are not of one model; download them again" in failure(first)


def test_a_split_model_under_another_name_is_refused(write_gguf: WriteGguf) -> None:
    assert "NAME-00001-of-00002.gguf" in failure(write_gguf("renamed.gguf", split=(0, 2)))


def test_the_types_are_those_of_the_gguf_package() -> None:
    sizes = {kind.value: (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert sizes == TENSOR_TYPES
    names = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    assert names == FILE_TYPES


def test_a_vocabulary_of_150_000_tokens_is_inspected_quickly(write_gguf: WriteGguf) -> None:
    path = write_gguf(n_vocab=150_000)
    assert n_calls(lambda: model_facts(path)) < 160_000  # one for each token
    assert model_facts(path).n_vocab == 150_000
