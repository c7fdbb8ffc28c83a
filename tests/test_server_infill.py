"""/infill: the prompt for a text with a gap, and models that have no tokens for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import Client, running
from pymtp import GenerationParams, Model, SamplingParams
from pymtp.server.fields import InfillBody, InfillChunk
from pymtp.server.llama_server import infill_prompt
from random_gguf import write_glm4moe

PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE = 300, 301, 302, 303, 304
KEYS = {"pre": PREFIX, "suf": SUFFIX, "mid": MIDDLE, "rep": REPOSITORY, "sep": FILE}
N_CTX = 256
A, B, C = [257], [258], [259]
"""Of the texts <x1>, <x2> and <x3>. The random model's vocabulary has no letters."""
NEW_LINE = [266 - 256]


def write(path: Path, *kinds: str) -> Path:
    """A random model that has these of the tokens for gaps."""
    return write_glm4moe(path, more={f"tokenizer.ggml.fim_{kind}_token_id": KEYS[kind] for kind in kinds})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("infill") / "all.gguf", *KEYS)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model(path, n_ctx=N_CTX, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Client]:
    with running(lambda: Model(path, n_ctx=N_CTX, n_threads=1)) as client:
        yield client


def prompt(model: Model, n_max: int = N_CTX, **fields: Any) -> list[int]:
    return infill_prompt(InfillBody(**fields), model.vocabulary, n_max)


def test_the_gap_comes_after_both_sides(model: Model) -> None:
    files = [REPOSITORY, *NEW_LINE, FILE, *NEW_LINE]
    side = [PREFIX, *A, *B, SUFFIX, *C, MIDDLE]
    assert prompt(model, input_prefix="<x1><x2>", input_suffix="<x3>") == files + side
    assert prompt(model, input_prefix=["<x1>", *B], input_suffix=C) == files + side
    # what the gap begins with belongs to what is before it
    assert prompt(model, input_prefix="<x1>", input_suffix="<x3>", prompt="<x2>") == files + side


def test_other_files_come_first_with_their_names(model: Model) -> None:
    chunks = [InfillChunk(text="<x1>", filename="<x3>"), InfillChunk(text="<x2>")]
    found = prompt(model, input_prefix="", input_suffix="", input_extra=chunks)
    files = [FILE, *C, *NEW_LINE, *A, FILE, *NEW_LINE, *B, FILE, *NEW_LINE]
    assert found == [REPOSITORY, *NEW_LINE, *files, PREFIX, SUFFIX, MIDDLE]


def test_what_is_next_to_the_gap_is_kept_where_there_is_little_room(model: Model) -> None:
    before, after = "<x1>" * 80 + "<x2>", "<x3>" + "<x1>" * 80
    found = prompt(model, 43, input_prefix=before, input_suffix=after)
    assert found == [PREFIX, *A * 29, *B, SUFFIX, *C, *A * 9, MIDDLE]
    # the side that is short leaves its room to the other, and what is left goes to other files
    found = prompt(model, 43, input_prefix=before, input_suffix="<x3>")
    assert found == [PREFIX, *A * 38, *B, SUFFIX, *C, MIDDLE]
    found = prompt(model, 43, input_prefix="<x2>", input_suffix="<x3>", input_extra=[InfillChunk(text=before)])
    assert found == [*A * 35, *B, FILE, *NEW_LINE, PREFIX, *B, SUFFIX, *C, MIDDLE]


def test_texts_are_those_of_the_library(server: Client, model: Model) -> None:
    sides = {"input_prefix": "<x1><x2>", "input_suffix": "<x3>"}
    expected = prompt(model, **sides)
    reply = server.post("/infill", **sides, n_predict=12, temperature=0, return_tokens=True)
    assert reply.status == 200 and reply.json["tokens_evaluated"] == len(expected)
    with model.generate(expected, GenerationParams(SamplingParams(temperature=0), max_tokens=12)) as generation:
        "".join(generation)
    assert reply.json["tokens"] == generation.tokens
    streamed = server.post("/infill", **sides, n_predict=12, temperature=0, stream=True).events
    assert "".join(event["content"] for event in streamed) == reply.json["content"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_suffix": "b"}, "input_prefix"),
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_prefix": 3, "input_suffix": "b"}, "input_prefix"),
        ({"input_prefix": "a", "input_suffix": "b", "prompt": [1]}, "prompt"),
        ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "c"}]}, "text"),
        ({"input_prefix": [99999], "input_suffix": "b"}, "token ids"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(server: Client, fields: dict[str, Any], message: str) -> None:
    reply = server.post("/infill", **fields)
    assert reply.status == 400 and message in reply.json["error"]["message"]


def test_a_model_without_such_tokens_is_named(tmp_path: Path) -> None:
    with running(lambda: Model(write(tmp_path / "two.gguf", "pre", "suf"), n_ctx=64, n_threads=1)) as client:
        reply = client.post("/infill", input_prefix="a", input_suffix="b")
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert "middle" in reply.json["error"]["message"] and "prefix" not in reply.json["error"]["message"]
