"""Images in prompts: against llama.cpp's own context with the same embeddings, and against texts."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import gc
import json
import os
import random
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

import pymtp
from http_server import Response, running
from pymtp.binding.arrays import Logits
from pymtp.binding.library import ffi
from pymtp.engine.context import ContextParams, native_params
from pymtp.engine.cores import usable_processors
from pymtp.engine.session import Chunk, Session
from pymtp.errors import ContextFull, InvalidParameter, ModelError, PymtpError, UnsupportedModel
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.images import Image, PlacedImage, Projector
from pymtp.loading.params import ModelParams
from pymtp.loading.vocabulary import Vocabulary
from pymtp.server.chat import prepare
from pymtp.server.errors import ApiError
from pymtp.server.fields import ChatBody
from pymtp.server.served_model import ServedModel
from pymtp.server.settings import ServerSettings
from random_gguf import (
    N_VOCAB,
    write_bailingmoe2,
    write_glm4moe,
    write_glm4moe_mrope,
    write_hy_v3,
    write_mimo2,
    write_qwen3next,
    write_qwen4exp_picking,
    write_qwen35,
    write_qwen35moe,
)
from random_gguf.adapter import write_adapter
from random_gguf.vision import ROW_PIXELS, png, write_glm4v_projector, write_qwen3vl_projector
from random_gguf.writer import N_EMBD

PARAMS = ContextParams(n_ctx=512, n_ubatch=32, n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
FAMILIES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path]]] = {
    "qwen35": (write_qwen35, write_qwen3vl_projector),
    "qwen35moe": (write_qwen35moe, write_qwen3vl_projector),
    "qwen4exp": (write_qwen4exp_picking, write_qwen3vl_projector),
    "glm4moe, M-RoPE": (write_glm4moe_mrope, write_glm4v_projector),
}
BEFORE, AFTER, DRAFTS = [5, 9, 2], [8, 300, 7, 41], [11, 12, 13]
K = len(DRAFTS)
TEXT = f" \t \n{pymtp.IMAGE_MARKER}\n\t  "


class Loaded:
    """A model and its projector."""

    def __init__(self, model: Path, projector: Path) -> None:
        self.params = ModelParams(mmproj=projector, device=(), n_gpu_layers=0)
        self.weights = Weights(model_facts(model), self.params, with_heads=True)
        self.vocabulary = Vocabulary(self.weights.model, None)
        self.projector = Projector(self.weights.model, self.vocabulary, self.params, 1)

    def place(self, image: Image) -> PlacedImage:
        """The image alone, as a prompt has it."""
        (placed,) = self.projector.prompt([" ", image, " "]).images
        return placed

    def session(self, n_seq_max: int = 1, **options: Any) -> Session:
        params = replace(PARAMS, n_seq_max=n_seq_max)
        return Session(self.weights.model, params, n_draft_max=K, model_id="model", **options)


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    write, write_projector = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        # read when a projector is loaded, and again when it encodes
        patch.setenv("MTMD_DEBUG_EMBEDDINGS", str(folder / "rows"))
        made = Loaded(write(folder / "tiny.gguf"), write_projector(folder / "mmproj.gguf"))
        yield made
    made.weights.close()


@pytest.mark.parametrize("write_projector", [write_qwen3vl_projector, write_glm4v_projector])
def test_a_glm_without_positions_of_images_takes_none(tmp_path: Path, write_projector: Callable[[Path], Path]) -> None:
    """llama.cpp would end the process at the first one."""
    with pytest.raises(ModelError, match=r"mmproj.gguf cannot be used with the model: .*\bpositions\b"):
        Loaded(write_glm4moe(tmp_path / "tiny.gguf"), write_projector(tmp_path / "mmproj.gguf"))


def test_what_is_kept_of_an_image_belongs_to_its_projector(tmp_path: Path) -> None:
    model = write_qwen35(tmp_path / "tiny.gguf")
    projectors = [write_qwen3vl_projector(tmp_path / f"{name}.gguf") for name in ("a", "b", "c")]
    with projectors[2].open("r+b") as file:  # other weights
        file.seek(-64, os.SEEK_END)
        file.write(os.urandom(64))
    keys = [Loaded(model, path).place(Image(png(128, 96))).keys for path in projectors]
    assert keys[0] == keys[1] != keys[2]


def test_rows_of_another_length_than_the_projectors_are_refused(tmp_path: Path, embedded_model: Path) -> None:
    made = Loaded(write_qwen35(tmp_path / "tiny.gguf"), write_qwen3vl_projector(tmp_path / "mmproj.gguf"))
    image = made.place(Image(png(128, 96)))
    weights = Weights(model_facts(embedded_model), ModelParams(), with_heads=True)
    with Session(weights.model, PARAMS) as session, pytest.raises(PymtpError, match=f"rows of {N_EMBD} numbers for a "):
        session.decode_image(image.media, image.chunk, 0)


def encoded() -> Logits:
    """The last image's rows, as llama.cpp writes them for debugging: (n_rows, n_embd) float32."""
    written = Path(os.environ["MTMD_DEBUG_EMBEDDINGS"]).read_bytes()
    return np.frombuffer(written, np.float32, offset=8).reshape(np.frombuffer(written, np.int32, 2))


def put(
    session: Session, image: PlacedImage, *, n_heads: int = 1, sequence: int = 0, before: list[int] = BEFORE
) -> int:
    """Decode tokens, the image, and more tokens, the heads in it; the position after them."""
    session.decode([Chunk(before, 0, sequence, feed=True)])
    session.decode_image(image.media, image.chunk, len(before), sequence=sequence, n_heads=n_heads)
    end = len(before) + image.n_pos
    session.decode([Chunk(AFTER[:-1], end, sequence, feed=True)])
    return end + len(AFTER) - 1


def play(session: Session, position: int, sequence: int = 0) -> tuple[Logits, Logits]:
    """The logits of drafts after the last token of AFTER, and those of the trunk over them."""
    rows = [AFTER[-1], *DRAFTS]
    drafts = []
    for step in range(K):
        session.draft(step, K, [Chunk([rows[step]], position + step, sequence)])
        drafts.append(session.draft_logits[0])
    session.decode([Chunk(rows, position, sequence, logits="all", feed=True)])
    return session.logits, np.array(drafts)


def llama_cpp_logits(loaded: Loaded, image: PlacedImage, width: int, height: int) -> Logits:
    """The same of the last image in a context of llama.cpp's, with positions as transformers counts them: (t, y, x)."""
    native = llama_cpp.llama_context_params.from_buffer_copy(ffi.buffer(native_params(PARAMS, 0)))
    native.n_outputs_max = 0
    context = llama_cpp.llama_init_from_model(int(ffi.cast("intptr_t", loaded.weights.model)), native)
    rows = encoded()
    n_x, n_y = width // ROW_PIXELS, height // ROW_PIXELS
    assert (n_x * n_y, max(n_x, n_y)) == (image.n_rows, image.n_pos)
    begin = len(BEFORE)
    grid = [(begin, begin + i // n_x, begin + i % n_x, 0) for i in range(len(rows))]

    def decode(positions: list[int], tokens: list[int] | None = None, embeddings: Logits | None = None) -> None:
        n = len(tokens) if tokens is not None else len(embeddings)  # type: ignore[arg-type]
        ids = (ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.pointer(ctypes.c_int32(0)) for _ in range(n)])
        batch = llama_cpp.llama_batch(
            n_tokens=n,
            token=None if tokens is None else (ctypes.c_int32 * n)(*tokens),
            embd=None
            if embeddings is None
            else np.ascontiguousarray(embeddings).ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * len(positions))(*positions),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=ids,
            logits=(ctypes.c_int8 * n)(*[1] * n),
        )
        assert llama_cpp.llama_decode(context, batch) == 0

    decode(list(range(begin)), BEFORE)
    for start in range(0, len(rows), PARAMS.n_ubatch):
        part = slice(start, start + PARAMS.n_ubatch)
        decode([where[axis] for axis in range(4) for where in grid[part]], embeddings=rows[part])
    end = begin + image.n_pos
    decode(list(range(end, end + len(AFTER) - 1)), AFTER[:-1])
    text = [AFTER[-1], *DRAFTS]
    decode(list(range(end + len(AFTER) - 1, end + len(AFTER) - 1 + len(text))), text)
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(text), N_VOCAB)).copy()
    llama_cpp.llama_free(context)
    return logits


@pytest.mark.parametrize(("width", "height"), [(128, 96), (96, 128), (320, 160)], ids=["wide", "high", "two ubatches"])
def test_logits_after_an_image_equal_those_of_llama_cpp(loaded: Loaded, width: int, height: int) -> None:
    image = loaded.place(Image(png(width, height)))
    with loaded.session() as session:
        logits, _ = play(session, put(session, image))
        np.testing.assert_allclose(logits, llama_cpp_logits(loaded, image, width, height), atol=2e-4)
        session.truncate(0)
        other = loaded.place(Image(png(width, height, seed=2)))
        assert np.abs(play(session, put(session, other))[0] - logits).max() > 0.05


def constant(projector: Path, row: Logits) -> Path:
    """The projector changed so that each row of each image is this one."""
    for tensor in gguf.GGUFReader(projector, "r+").tensors:
        if tensor.name == "mm.2.weight":
            tensor.data[:] = 0
        elif tensor.name == "mm.2.bias":
            tensor.data[:] = row
    return projector


ONE_DIMENSION: dict[str, Callable[[Path], Path]] = {
    "mimo2": write_mimo2,
    "mimo2, chained heads": lambda path: write_mimo2(path, n_heads=3),
    "bailingmoe2": write_bailingmoe2,
    "hy_v3": write_hy_v3,
    "qwen3next": write_qwen3next,
}


@pytest.mark.parametrize("name", ONE_DIMENSION)
@pytest.mark.parametrize("n_rows", [8, 40], ids=["one ubatch", "two ubatches"])
def test_an_image_of_a_tokens_embeddings_is_as_good_as_the_tokens(name: str, n_rows: int, tmp_path: Path) -> None:
    """For trunk and heads alike: the heads take each row's embedding, and the hidden state of the row before."""
    model, token = ONE_DIMENSION[name](tmp_path / "tiny.gguf"), 123
    (table,) = (tensor for tensor in gguf.GGUFReader(model).tensors if tensor.name == "token_embd.weight")
    projector = constant(write_qwen3vl_projector(tmp_path / "mmproj.gguf"), table.data[token])
    made = Loaded(model, projector)
    image = made.place(Image(png(n_rows * ROW_PIXELS, ROW_PIXELS)))
    assert (image.n_rows, image.n_pos) == (n_rows, n_rows)
    with made.session() as session, made.session() as other:
        n_heads = session.n_heads
        got = play(session, put(session, image, n_heads=n_heads))
        tokens = [*BEFORE, *[token] * n_rows]
        for start in range(0, len(tokens), PARAMS.n_ubatch):
            other.decode([Chunk(tokens[start : start + PARAMS.n_ubatch], start, feed=True)])
        other.decode([Chunk(AFTER[:-1], len(tokens), feed=True)])
        wanted = play(other, len(tokens) + len(AFTER) - 1)
        for one, another in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, another, atol=2e-4)
        # and with heads that have not seen it the drafts are others
        session.truncate(0)
        without = play(session, put(session, image, n_heads=0))
        np.testing.assert_allclose(without[0], got[0], atol=2e-4)
        assert np.abs(without[1] - got[1]).max() > 1e-3
    made.weights.close()


def test_an_image_is_decoded_as_one_and_never_in_part(loaded: Loaded) -> None:
    image = loaded.place(Image(png(128, 96)))
    with loaded.session() as session:
        end = put(session, image)
        begin = len(BEFORE)
        for position in range(begin + 1, begin + image.n_pos):
            with pytest.raises(PymtpError, match=f"cannot go back to position {position}: it is in an image"):
                session.truncate(position)
        with pytest.raises(PymtpError, match=f"position {begin} of sequence 0, but {end} is next"):
            session.decode_image(image.media, image.chunk, begin)
        with pytest.raises(PymtpError, match="chunk 0 is no image"):
            session.decode_image(image.media, 0, end)
        with pytest.raises(PymtpError, match="chunk 7 of 3"):
            session.decode_image(image.media, 7, end)
        with pytest.raises(PymtpError, match="an image for 2 heads of 1"):
            session.decode_image(image.media, image.chunk, end, n_heads=2)
        with pytest.raises(PymtpError, match="has images: no context shift"):
            session.discard(0, 2)
        session.truncate(0)
        session.decode([Chunk(BEFORE, 0)])


def test_what_comes_after_an_image_can_be_taken_back(loaded: Loaded) -> None:
    """To the image's end, and to its begin where the memory can go back so far."""
    image, other = (loaded.place(Image(png(128, 96, seed=seed))) for seed in (1, 2))
    with loaded.session() as session, loaded.session() as fresh:
        play(session, put(session, other))
        try:
            session.truncate(len(BEFORE))
        except PymtpError:  # recurrent states cannot
            session.truncate(0)
            session.decode([Chunk(BEFORE, 0, feed=True)])
        session.decode_image(image.media, image.chunk, len(BEFORE), n_heads=1)
        end = len(BEFORE) + image.n_pos
        session.truncate(end)  # nothing
        session.decode([Chunk(AFTER[:-1], end, feed=True)])
        got, wanted = play(session, end + len(AFTER) - 1), play(fresh, put(fresh, image))
        for one, another in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, another, atol=1e-5)


def test_a_saved_sequence_has_its_images(loaded: Loaded) -> None:
    image = loaded.place(Image(png(128, 96)))
    with loaded.session(n_seq_max=2) as session, loaded.session(n_seq_max=2) as other:
        position = put(session, image)
        whole, one = session.save(), session.save_sequence(0)
        session.copy(0, 1)
        wanted = play(session, position)
        copied = play(session, position, 1)
        other.restore(whole)
        restored = play(other, position)
        other.restore_sequence(1, one)
        with pytest.raises(PymtpError, match="it is in an image"):
            other.truncate(len(BEFORE) + 1, sequence=1)
        for got in (copied, restored, play(other, position, 1)):
            for one_of, another in zip(got, wanted, strict=True):
                np.testing.assert_allclose(one_of, another, atol=1e-5)


def test_a_cache_without_room_for_an_image_stays_as_it_is(loaded: Loaded) -> None:
    """Also where the image is of several ubatches, and the memory cannot go back."""
    image, small = loaded.place(Image(png(320, 320))), loaded.place(Image(png(128, 96)))
    before = list(range(200))
    with (
        Session(loaded.weights.model, replace(PARAMS, n_ctx=256), n_draft_max=K) as session,
        loaded.session() as other,
    ):
        session.decode([Chunk(before, 0, feed=True)])
        for _ in range(2):
            with pytest.raises(ContextFull, match="no room for an image of 100 rows"):
                session.decode_image(image.media, image.chunk, len(before), n_heads=1)
        session.decode_image(small.media, small.chunk, len(before), n_heads=1)
        end = len(before) + small.n_pos
        session.decode([Chunk(AFTER[:-1], end, feed=True)])
        got, wanted = play(session, end + len(AFTER) - 1), play(other, put(other, small, before=before))
        for one, another in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, another, atol=1e-5)


def test_sequences_with_images_and_without_share_a_session(loaded: Loaded) -> None:
    images = [loaded.place(Image(png(width, 96, seed=width))) for width in (128, 160)]
    with loaded.session(n_seq_max=3) as session:
        ends = [put(session, image, sequence=i) for i, image in enumerate(images)]
        session.decode([Chunk([*BEFORE, *AFTER[:-1]], 0, 2, feed=True)])
        found = [play(session, end, i) for i, end in enumerate([*ends, len(BEFORE) + len(AFTER) - 1])]
    for i, image in enumerate(images):
        with loaded.session() as alone:
            for got, wanted in zip(found[i], play(alone, put(alone, image)), strict=True):
                np.testing.assert_allclose(got, wanted, atol=2e-5)


#
# texts
#


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("vision")
    return write_qwen35(folder / "tiny.gguf"), write_qwen3vl_projector(folder / "mmproj.gguf")


@pytest.fixture(scope="module")
def attending(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model whose memory can go back to any position."""
    folder = tmp_path_factory.mktemp("vision")
    return write_glm4moe_mrope(folder / "tiny.gguf"), write_glm4v_projector(folder / "mmproj.gguf")


def open_model(files: tuple[Path, Path], **options: Any) -> pymtp.Model:
    return pymtp.Model(files[0], mmproj=files[1], n_ctx=512, n_threads=1, n_gpu_layers=0, **options)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS binds no threads")
def test_a_projector_has_the_threads_of_rounds(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the processors that are named, though the machine may have more."""
    made: list[int] = []

    def recorded(*args: Any) -> Projector:
        made.append(args[-1])
        return Projector(*args)

    monkeypatch.setattr("pymtp.model.Projector", recorded)
    mask = hex(1 << min(usable_processors()))
    with pymtp.Model(files[0], mmproj=files[1], n_ctx=64, n_gpu_layers=0, cpu_mask=mask):
        assert made == [1]


def text_of(model: pymtp.Model, images: list[Any], text: str = TEXT, **options: Any) -> str:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, **options}
    return "".join(model.generate(text, images=images, **asked))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_draft_after_an_image_only_changes_the_speed(name: str, tmp_path: Path) -> None:
    write, write_projector = FAMILIES[name]
    pair = write(tmp_path / "tiny.gguf"), write_projector(tmp_path / "mmproj.gguf")
    texts = {}
    for draft in ("mtp", "none"):
        with open_model(pair, draft=draft) as model:
            texts[draft] = text_of(model, [png(128, 96)]), text_of(model, [png(128, 96, seed=2)])
            assert (model.stats.drafted > 0) == (draft == "mtp")
    assert texts["mtp"] == texts["none"]
    assert len(set(texts["none"])) == 2


def test_only_heads_that_draft_see_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_mimo2(tmp_path / "tiny.gguf", n_heads=3), write_qwen3vl_projector(tmp_path / "mmproj.gguf")
    seen, decode = [], Session.decode_image

    def noting(session: Session, *args: Any, n_heads: int = 0, **options: Any) -> None:
        seen.append(n_heads)
        decode(session, *args, n_heads=n_heads, **options)

    monkeypatch.setattr(Session, "decode_image", noting)
    with open_model(files) as model:
        texts = {text_of(model, [png(128, 96)], draft_max=n) for n in (0, 1, 2, 5, "auto")}
    assert seen == [0, 1, 2, 3, 3] and len(texts) == 1


@pytest.mark.parametrize("n_more", [0, 1, 2, 3, 5])
def test_drafts_change_nothing_where_an_image_leaves_little_room(attending: tuple[Path, Path], n_more: int) -> None:
    with open_model(attending, draft="none") as model:
        n_ctx = model.image_prompt(TEXT, [png(128, 96)]).n_cells + 1 + n_more
    texts = {}
    for draft_max in (0, 3):
        options: Any = {"draft_max": draft_max} if draft_max else {"draft": "none"}
        with pymtp.Model(attending[0], mmproj=attending[1], n_ctx=n_ctx, n_threads=1, **options) as model:
            generation = model.generate(TEXT, images=[png(128, 96)], temperature=0, ignore_eos=True)
            texts[draft_max] = "".join(generation), generation.tokens, generation.finish_reason
    assert texts[0] == texts[3]
    assert len(texts[0][1]) == n_more + 2 and texts[0][2] == "context"


def test_the_cache_never_takes_one_image_for_another(attending: tuple[Path, Path]) -> None:
    """The same image is reused, another one is computed, at any place of the prompt."""
    images = [png(128, 96, seed=seed) for seed in range(3)]
    marker = pymtp.IMAGE_MARKER
    prompts = [(f" \t{marker}\n {marker}\t ", images[i], images[j], i, j) for i in range(3) for j in range(3)]
    with open_model(attending) as alone:
        wanted = {(i, j): text_of(alone, [one, two], text) for text, one, two, i, j in prompts}
    assert len(set(wanted.values())) > 3
    rng = random.Random(5)
    for n_seq_max in (1, 2):
        with open_model(attending, n_seq_max=n_seq_max) as model:
            model.slots.keep_prefixes(1 << 26)
            asked = []
            for _ in range(15):
                text, one, two, i, j = rng.choice(prompts)
                generation = model.generate(
                    text, images=[one, two], temperature=0, max_tokens=40, ignore_eos=True, cache_prompt=True
                )
                assert "".join(generation) == wanted[i, j]
                asked.append(generation.n_cached)
            n_image = model.image_prompt(f"{marker} ", [images[0]]).images[0].n_pos
            assert max(asked) > 2 * n_image  # whole prompts were there


def test_images_of_several_texts_take_turns(files: tuple[Path, Path]) -> None:
    images = [png(32 * (4 + i), 96, seed=i) for i in range(4)]
    with open_model(files) as alone:
        wanted = [text_of(alone, [image]) for image in images]
        plain = "".join(alone.generate("\t \n", temperature=0, max_tokens=40, ignore_eos=True))
    with open_model(files, n_seq_max=3) as model:
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
        running = [model.generate(TEXT, images=[image], **asked) for image in images]
        other = model.generate("\t \n", **asked)
        assert ["".join(generation) for generation in running] == wanted
        assert "".join(other) == plain


def test_a_context_that_is_too_small_for_an_image_says_so(files: tuple[Path, Path]) -> None:
    with open_model(files) as model:
        with pytest.raises(
            ContextFull, match="has 6.. cells, those of its images included, the context only 512: use smaller"
        ):
            text_of(model, [png(32 * 25, 32 * 25)])
        n_pos = model.image_prompt(TEXT, [png(320, 320)]).images[0].n_pos
        generation = model.generate(TEXT, images=[png(320, 320)], temperature=0, ignore_eos=True)
        text = "".join(generation)
        assert text and generation.finish_reason == "context"
        # each row of the image takes a cell, and more rows than positions
        assert generation.n_prompt + len(generation.tokens) <= 512 - (100 - n_pos) + 1


def test_images_may_be_smaller(files: tuple[Path, Path]) -> None:
    with open_model(files, image_max_tokens=16) as model:
        assert model.image_prompt(TEXT, [png(640, 640)]).images[0].n_rows == 16


def as_url(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def test_a_chat_has_images_between_its_texts(files: tuple[Path, Path], tmp_path: Path) -> None:
    image = png(128, 96)
    file = tmp_path / "image.png"
    file.write_bytes(image)
    forms = [as_url(image), {"type": "image", "image": image}, {"type": "image", "image": Image(file)}]
    with open_model(files, chat_template="chatml") as model:
        found = set()
        for form in forms:
            content = [{"type": "text", "text": "a\tb"}, form, {"type": "text", "text": "c d"}]
            found.add("".join(model.chat([{"role": "user", "content": content}], temperature=0, max_tokens=20)))
        assert len(found) == 1
        prompt = model.chat_prompt([{"role": "user", "content": "a\tbc d"}])
        assert found != {"".join(model.generate(prompt, temperature=0, max_tokens=20))}
        # a text that looks like a marker stays a text
        content = f"a {pymtp.IMAGE_MARKER} b"
        assert "".join(model.chat([{"role": "user", "content": content}], temperature=0, max_tokens=20))


def test_a_conversation_keeps_its_images(attending: tuple[Path, Path]) -> None:
    with open_model(attending, chat_template="chatml") as model:
        conversation = pymtp.Conversation(model)
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 20}
        first = "".join(conversation.ask("a b", images=[png(128, 96)], **asked))
        answer = conversation.ask("c\td", **asked)
        second = "".join(answer)
        assert answer.n_cached > 4
        other = pymtp.Conversation(model)
        "".join(other.ask("a b", images=[png(128, 96, seed=2)], **asked))
        assert "".join(other.ask("c\td", **asked)) != second
        assert "".join(conversation.edit(0, "a b", **asked)) != first


def test_a_conversation_drops_turns_where_their_images_fill_the_context(attending: tuple[Path, Path]) -> None:
    """Each has 100 rows, and takes a cell for each, but 10 positions."""
    with open_model(attending, chat_template="chatml") as model:
        conversation = pymtp.Conversation(model)
        for seed in range(8):
            assert "".join(conversation.ask("a b", images=[png(320, 320, seed=seed)], temperature=0, max_tokens=8))
        assert len(conversation.messages) == 16 and conversation.n_dropped > 6
        with pytest.raises(ContextFull, match="the last message makes a prompt of 6.. tokens, the context has 512"):
            conversation.ask("a b", images=[png(800, 800)])


def test_a_conversation_drops_turns_whose_images_are_too_many_for_a_prompt(
    attending: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymtp.loading.images._MAX_PIXELS", 3 * 64 * 64)
    with open_model(attending, chat_template="chatml") as model:
        conversation = pymtp.Conversation(model)
        for seed in range(5):
            assert "".join(conversation.ask("a b", images=[png(64, 64, seed=seed)], temperature=0, max_tokens=8))
        assert (len(conversation.messages), conversation.n_dropped) == (10, 4)


#
# what is refused
#


def huge(width: int, height: int) -> bytes:
    """The header of a PNG of this size, and nothing in it."""
    from random_gguf.vision import _png

    return _png(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(b""))


BAD_IMAGES = {
    "nothing": (b"", "the image is empty"),
    "a text": (b"Hello, I am a text.", "it is no JPEG, PNG, BMP or GIF"),
    "WebP": (b"RIFF\x24\0\0\0WEBPVP8 ", "is WebP, which is not supported"),
    "AVIF": (b"\0\0\0\x1cftypavif", "is AVIF, HEIC or a video"),
    "TIFF": (b"II*\0\x08\0\0\0", "is TIFF"),
    "PDF": (b"%PDF-1.7", "is a PDF"),
    "SVG": (b'<?xml version="1.0"?><svg>', "is SVG"),
    "a model": (b"GGUF\3\0\0\0", "is a GGUF"),
    "cut": (png(128, 96)[:2000], "it is damaged"),
    "a header alone": (huge(64, 64), "it is damaged"),
    "huge": (huge(9000, 9000), "it has 9000 x 9000 pixels, at most 67108864"),
    "wide beyond reason": (huge(2**31 - 1, 1), "cannot be used"),
}


@pytest.mark.parametrize("what", BAD_IMAGES)
def test_an_image_that_cannot_be_used_is_refused_by_name(what: str, tmp_path: Path) -> None:
    data, message = BAD_IMAGES[what]
    with pytest.raises(InvalidParameter, match="image must be a JPEG, PNG, BMP or GIF") as refused:
        Image(data)
    assert message in str(refused.value)
    file = tmp_path / "photo.bin"
    file.write_bytes(data)
    with pytest.raises(InvalidParameter, match="photo.bin"):
        Image(file)


def test_damage_to_an_image_never_ends_the_process() -> None:
    whole, rng = bytearray(png(64, 64)), random.Random(1)
    n_good = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        try:
            n_good += Image(bytes(data[: rng.randrange(8, len(data) + 1)])).width > 0
        except InvalidParameter as error:
            assert "image must be" in str(error)
    assert n_good < 300


@pytest.mark.parametrize("source", [None, 7, "/nowhere.png", ["a"], "/dev/zero", "a\0b"])
def test_what_is_no_image_is_refused(source: Any) -> None:
    with pytest.raises(InvalidParameter, match="image must be a file"):
        Image(source)


def test_a_directory_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="image must be a file; .* is a directory: name an image in it"):
        Image(tmp_path)


def test_a_file_that_is_too_long_or_never_comes_is_refused(tmp_path: Path) -> None:
    long, pipe = tmp_path / "long.png", tmp_path / "pipe.png"
    with long.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(InvalidParameter, match="long.png: it is longer than 64 MiB"):
        Image(long)
    os.mkfifo(pipe)
    with pytest.raises(InvalidParameter, match="pipe.png: it is not a regular file"):
        Image(pipe)


def test_a_model_without_a_projector_takes_no_images(files: tuple[Path, Path]) -> None:
    with pymtp.Model(files[0], n_ctx=256, n_threads=1, chat_template="chatml") as model:
        assert model.projector is None
        with pytest.raises(UnsupportedModel, match="load it with its projector"):
            model.generate(TEXT, images=[png(64, 64)])
        with pytest.raises(UnsupportedModel, match="load it with its projector"):
            model.chat([{"role": "user", "content": [as_url(png(64, 64))]}])


def test_markers_and_images_have_to_match(files: tuple[Path, Path]) -> None:
    with open_model(files) as model:
        with pytest.raises(InvalidParameter, match="images must be as many as the prompt has <__media__>: 1, not 2"):
            text_of(model, [png(64, 64)] * 2)
        with pytest.raises(InvalidParameter, match="a text that continues after its last image"):
            text_of(model, [png(64, 64)], f" {pymtp.IMAGE_MARKER}")
        with pytest.raises(InvalidParameter, match="prompt must be a text, if it has images"):
            model.generate([1, 2], images=[png(64, 64)])
        with pytest.raises(InvalidParameter, match="at most 256 in a prompt"):
            text_of(model, [png(64, 64)] * 257)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/a.png", "a data: URL; images are not fetched from elsewhere .https"),
        ("file:///etc/passwd", "not fetched from elsewhere .file"),
        ("data:image/png,abc", "base64"),
        ("data:;charset=utf-8,abc", "base64"),
        ("data:image/png;charset=utf-8;base64,AAAA", "image must be a JPEG"),
        ("data:image/png;base64,***", "base64"),
        ("", 'an object with a "url"'),
        (None, 'an object with a "url"'),
    ],
)
def test_an_url_that_holds_no_image_is_refused(files: tuple[Path, Path], url: Any, message: str) -> None:
    with open_model(files, chat_template="chatml") as model:
        part = {"type": "image_url", "image_url": {"url": url}}
        with pytest.raises(InvalidParameter, match=message):
            model.chat([{"role": "user", "content": [part]}])


DROPS_CONTENT = "{% for message in messages %}{{ message.role }}{% endfor %}: "


def test_a_template_that_drops_images_is_named(files: tuple[Path, Path]) -> None:
    messages = [{"role": "user", "content": [as_url(png(64, 64)), {"type": "text", "text": "a b"}]}]
    with open_model(files, chat_template=DROPS_CONTENT) as model:
        with pytest.raises(ModelError, match="the chat template of this model dropped the image") as refused:
            model.chat(messages)
        assert "__media" not in str(refused.value)


def damaged_projector(projector: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """A copy in which one tensor is another one, or missing (None)."""
    reader = gguf.GGUFReader(projector)
    path = projector.with_name("damaged.gguf")
    writer = gguf.GGUFWriter(path, "clip")
    for key, field in reader.fields.items():
        if key.startswith("clip."):
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        data = change(tensor.data) if tensor.name == name else tensor.data
        if data is not None:
            writer.add_tensor(tensor.name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


BAD_PROJECTORS: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "a model": (lambda model, projector: model, "is no projector but a model"),
    "an adapter": (
        lambda model, projector: write_adapter(model.with_name("lora.gguf"), model),
        "is no projector but a LoRA adapter (--lora)",
    ),
    "a directory": (lambda model, projector: model.parent, "is a directory; name the .gguf file inside it"),
    "nothing": (lambda model, projector: projector.with_name("none.gguf"), "no such file"),
    "another size": (
        lambda model, projector: write_qwen3vl_projector(projector, n_embd=64),
        "mismatch between text model",
    ),
    "an unknown kind": (
        lambda model, projector: write_qwen3vl_projector(projector, kind="hologram"),
        "unknown projector type",
    ),
    "a missing tensor": (
        lambda model, projector: damaged_projector(projector, "v.blk.1.ffn_up.weight", lambda data: None),
        "damaged.gguf cannot be used with the model",
    ),
    "a tensor of another shape": (
        lambda model, projector: damaged_projector(projector, "v.blk.0.attn_qkv.weight", lambda data: data[:50]),
        "damaged.gguf cannot be used with the model",
    ),
    "a missing merger": (
        lambda model, projector: damaged_projector(projector, "mm.0.weight", lambda data: None),
        "unable to find tensor mm.0.weight",
    ),
}


@pytest.mark.parametrize("what", BAD_PROJECTORS)
def test_a_projector_that_does_not_fit_is_refused_by_name(what: str, tmp_path: Path) -> None:
    make, message = BAD_PROJECTORS[what]
    model, projector = write_qwen35(tmp_path / "tiny.gguf"), write_qwen3vl_projector(tmp_path / "mmproj.gguf")
    path = make(model, projector)
    with pytest.raises(ModelError) as refused:
        pymtp.Model(model, mmproj=path, n_ctx=256, n_gpu_layers=0)
    assert message in str(refused.value) and str(path) in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"mmproj": 3}, {"image_min_tokens": 0}, {"image_max_tokens": "many"}, {"image_max_tokens": 1 << 21}]
)
def test_parameters_of_images_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        ModelParams(**{"mmproj": "mmproj.gguf", **options})


@pytest.mark.parametrize("name", ["image_min_tokens", "image_max_tokens"])
def test_sizes_of_images_need_a_projector(files: tuple[Path, Path], name: str) -> None:
    with pytest.raises(InvalidParameter, match=f"{name} must be left out without a projector"):
        ModelParams(**{name: 16})  # type: ignore[arg-type]
    result = command("run", "-m", files[0], f"--{name.replace('_', '-')}", "16", "-p", "a b")
    assert result.exit_code == 2 and "must be left out without a projector (mmproj, --mmproj)" in result.stderr


#
# commands and server
#


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_run_sends_images(files: tuple[Path, Path], tmp_path: Path) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.png").write_bytes(png(128, 96, seed=seed))

    def text(*images: str, prompt: str = "a b") -> str:
        flags = [flag for image in images for flag in ("--image", tmp_path / image)]
        model = ["-m", files[0], "--mmproj", files[1], "-c", "256", "-ngl", "0", "-t", "1", "--raw"]
        result = command("run", *model, *flags, "-n", "10", "--temp", "0", "--ignore-eos", "-p", prompt)
        assert result.exit_code == 0, result.stderr
        return str(result.stdout)

    with open_model(files) as model:
        one = text_of(model, [tmp_path / "1.png"], f"{pymtp.IMAGE_MARKER}a b", max_tokens=10)
    first = text("1.png")
    assert first.rstrip("\n") == one.rstrip("\n")
    assert text("1.png", prompt=f"{pymtp.IMAGE_MARKER}a b") == first
    found = {text(), first, text("2.png"), text("1.png", "2.png"), text("1.png", prompt="a <__media__> b")}
    assert len(found) == 5


def test_run_refuses_images_that_it_cannot_send(files: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "photo.webp"
    file.write_bytes(BAD_IMAGES["WebP"][0])
    result = command("run", "-m", files[0], "--mmproj", files[1], "--image", file, "-p", "a b")
    assert result.exit_code == 2 and "photo.webp is WebP" in result.stderr and result.stderr.count("\n") == 1
    file.write_bytes(png(64, 64))
    result = command("run", "-m", files[0], "--image", file, "-p", "a b")
    assert result.exit_code == 1 and "--image needs the model's projector: --mmproj FILE" in result.stderr


def test_a_chat_takes_images(files: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(128, 96))
    flags = ["-m", files[0], "-c", "256", "-ngl", "0", "-n", "8", "--temp", "0", "--chat-template", "chatml"]
    typed = f"/image {file}\na b\n/image {tmp_path / 'none.png'}\nc d\n"
    result = CliRunner().invoke(app, list(map(str, ["chat", *flags, "--mmproj", files[1]])), input=typed)
    assert "128 x 96 pixels go with the next message" in result.stderr
    assert "none.png: No such file" in result.stderr
    result = CliRunner().invoke(app, list(map(str, ["chat", *flags])), input=typed)
    assert "the model takes no images; restart with its projector: --mmproj FILE" in result.stderr


def chat(files: tuple[Path, ...], *lines: str) -> Any:
    """A chat by these lines, with a projector if there is one."""
    flags = ["-c", "256", "-ngl", "0", "-n", "8", "--temp", "0", "--chat-template", "chatml"]
    with_projector = ["--mmproj", str(files[1])] if len(files) > 1 else []
    return CliRunner().invoke(
        app, ["chat", "-m", str(files[0]), *with_projector, *flags], input="".join(f"{line}\n" for line in lines)
    )


def test_a_saved_chat_has_its_images(files: tuple[Path, Path], tmp_path: Path) -> None:
    image, saved, later = (tmp_path / name for name in ("a.png", "chat.json", "later.json"))
    image.write_bytes(png(128, 96))

    def messages(path: Path) -> Any:
        return json.loads(path.read_text())["messages"]

    chat(files, f"/image {image}", "a b", f"/save {saved}", "c d", f"/save {later}")
    (url,) = messages(saved)[0]["images"]
    assert url.startswith("data:image/png;base64,") and base64.b64decode(url.partition(",")[2]) == image.read_bytes()
    wanted = messages(later)
    image.unlink()
    result = chat(files, f"/load {saved}", "c d", f"/save {later}", "/show chat")
    assert result.exit_code == 0 and messages(later) == wanted
    assert "[an image of 128 x 96 pixels]" in result.stderr

    result = chat(files[:1], f"/load {saved}", "a b")
    assert result.exit_code == 1 and "the model takes no images: load it with its projector" in result.stderr


@pytest.mark.parametrize("images", [["/etc/passwd"], ["file:///etc/passwd"], [3], 3, ["data:image/png;base64,*"]])
def test_a_saved_chat_names_no_files(files: tuple[Path, Path], tmp_path: Path, images: Any) -> None:
    saved = tmp_path / "chat.json"
    turn = [{"role": "user", "content": "a", "images": images}, {"role": "assistant", "content": "b"}]
    saved.write_text(json.dumps({"format": "pymtp chat", "system": None, "messages": turn}))
    assert "is not a saved chat" in chat(files, f"/load {saved}").stderr


def test_an_image_without_room_goes_with_the_message_that_fails(files: tuple[Path, Path], tmp_path: Path) -> None:
    large, small = tmp_path / "large.png", tmp_path / "small.png"
    large.write_bytes(png(800, 800))
    small.write_bytes(png(64, 64))
    result = chat(
        files, f"/image {large}", "a b", "c d", f"/image {small}", "/undo", "/save " + str(tmp_path / "c.json")
    )
    assert "the last message makes a prompt of 6" in result.stderr and "the context has 256" in result.stderr
    assert "what was attached is dropped" in result.stderr
    assert "dropped what was to go with the next message; 1 turn left" in result.stderr
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [message["content"] for message in messages[::2]] == ["c d"] and "images" not in messages[0]


def test_a_server_takes_images_in_all_chat_apis(files: tuple[Path, Path]) -> None:
    image = png(128, 96)
    data = base64.b64encode(image).decode()
    with open_model(files, chat_template="chatml") as model:
        messages = [{"role": "user", "content": [as_url(image), {"type": "text", "text": "a b"}]}]
        wanted = "".join(model.chat(messages, temperature=0, max_tokens=8))
    settings = ServerSettings(params=pymtp.GenerationParams())
    with running(lambda: open_model(files, chat_template="chatml"), settings) as client:
        assert client.get("/props").json["modalities"]["vision"] is True
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
        answer = client.post("/v1/chat/completions", messages=messages, **asked).json
        assert answer["choices"][0]["message"]["content"] == wanted
        assert client.post("/v1/chat/completions/input_tokens", messages=messages).json["input_tokens"] >= 8
        source = {"type": "base64", "media_type": "image/png", "data": data}
        content = [{"type": "image", "source": source}, {"type": "text", "text": "a b"}]
        answer = client.post("/v1/messages", messages=[{"role": "user", "content": content}], **asked).json
        assert answer["content"][0]["text"] == wanted
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
        parts = [picture, {"type": "input_text", "text": "a b"}]
        answer = client.post(
            "/v1/responses", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=8
        ).json
        assert answer["output"][0]["content"][0]["text"] == wanted
        template = client.post("/apply-template", messages=messages).json["prompt"]
        assert pymtp.IMAGE_MARKER in template and "__media_" not in template.replace(pymtp.IMAGE_MARKER, "")
        for url, message in (
            ("https://example.com/a.png", "not fetched from elsewhere"),
            ("data:image/png;base64,AAAA", "image must be a JPEG, PNG, BMP or GIF"),
            ("data:image/png;base64," + base64.b64encode(huge(9000, 9000)).decode(), "9000 x 9000 pixels"),
        ):
            part = {"type": "image_url", "image_url": {"url": url}}
            response = client.post("/v1/chat/completions", messages=[{"role": "user", "content": [part]}], **asked)
            assert response.status == 400 and message in response.json["error"]["message"]


def test_images_that_the_context_has_no_room_for_are_the_fault_of_the_request(files: tuple[Path, Path]) -> None:
    large = [{"role": "user", "content": [as_url(png(800, 800)), {"type": "text", "text": "a b"}]}]
    data = base64.b64encode(png(800, 800)).decode()
    with running(lambda: open_model(files, chat_template="chatml"), ServerSettings()) as client:
        prompt = {"prompt_string": TEXT, "multimodal_data": [data]}
        for response in (
            client.post("/v1/chat/completions", messages=large),
            client.post("/v1/chat/completions", messages=large, stream=True),
            client.post("/completion", prompt=prompt),
        ):
            error = response.json["error"]
            assert response.status == 400 and error["type"] == "exceed_context_size_error"
            assert error["n_prompt_tokens"] > error["n_ctx"] == 512
        source = {"type": "base64", "media_type": "image/png", "data": data}
        content = [{"type": "image", "source": source}, {"type": "text", "text": "a b"}]
        response = client.post("/v1/messages", messages=[{"role": "user", "content": content}])
        assert response.status == 400 and response.json["type"] == "error"


def test_completions_take_images_as_llama_server_does(files: tuple[Path, Path]) -> None:
    images = [png(128, 96), png(96, 96, seed=2)]
    texts = [TEXT, f"a {pymtp.IMAGE_MARKER}\t{pymtp.IMAGE_MARKER} b"]
    with open_model(files) as model:
        wanted = [text_of(model, images[: i + 1], text, max_tokens=8) for i, text in enumerate(texts)]
    encoded = [base64.b64encode(image).decode() for image in images]
    prompts = [
        {"prompt_string": text.replace(pymtp.IMAGE_MARKER, "<__media__>"), "multimodal_data": encoded[: i + 1]}
        for i, text in enumerate(texts)
    ]
    asked: dict[str, Any] = {"temperature": 0, "n_predict": 8, "ignore_eos": True}
    with running(lambda: open_model(files)) as client:
        assert client.get("/props").json["media_marker"] == "<__media__>"
        assert client.post("/completion", prompt=prompts[0], **asked).json["content"] == wanted[0]
        both = client.post("/completion", prompt=prompts, **asked).json
        assert [each["content"] for each in both] == wanted
        choices = client.post("/v1/completions", prompt=prompts[1], **asked).json["choices"]
        assert choices[0]["text"] == wanted[1]
        for odd in (
            {"multimodal_data": [encoded[0]]},
            {"prompt_string": [1], "multimodal_data": [encoded[0]]},
            {"prompt_string": TEXT, "multimodal_data": "AAAA"},
            {"prompt_string": TEXT, "multimodal_data": [3]},
            {"prompt_string": TEXT, "multimodal_data": ["*"]},
            {"prompt_string": TEXT, "multimodal_data": ["AAAA"]},
            {"prompt_string": TEXT, "multimodal_data": encoded},
            {"prompt_string": "a", "multimodal_data": [encoded[0]]},
        ):
            assert client.post("/completion", prompt=odd, **asked).status == 400, odd
    with running(lambda: pymtp.Model(files[0], n_ctx=256, n_threads=1)) as client:
        response = client.post("/completion", prompt=prompts[0], **asked)
        assert response.status == 400 and "--mmproj" in response.json["error"]["message"]


def test_a_server_never_opens_files_that_a_request_names(files: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(64, 64))
    parts: list[Any] = [
        {"type": "image", "image": str(file)},
        {"type": "image_url", "image_url": {"url": str(file)}},
        {"type": "image_url", "image_url": f"file://{file}"},
        {"type": "image_url", "image_url": {"url": None}, "image": str(file)},
        {"type": "image", "source": {"type": "base64", "data": str(file)}},
        {"type": "image", "source": {"type": "url", "url": f"file://{file}"}},
        {"type": "input_image", "image_url": f"file://{file}"},
        {"type": "input_image", "image": str(file)},
    ]
    opened = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[0] == str(file):
            opened.append(arguments)

    sys.addaudithook(watch)
    with running(lambda: open_model(files, chat_template="chatml"), ServerSettings()) as client:
        for part in parts:
            messages = [{"role": "user", "content": [part, {"type": "text", "text": "a"}]}]
            asked = [{"role": "user", "content": [part, {"type": "input_text", "text": "a"}]}]
            assert client.post("/v1/chat/completions", messages=messages, max_tokens=2).status == 400
            assert client.post("/v1/responses", input=asked, max_output_tokens=2).status in (400, 501)
            assert client.post("/v1/messages", messages=messages, max_tokens=2).status in (400, 501)
        prompt = {"prompt_string": TEXT, "multimodal_data": [str(file)]}
        assert client.post("/completion", prompt=prompt).status == 400
    assert opened == []


def test_images_in_the_queue_are_limited(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, decode = threading.Event(), Session.decode

    def decode_later(self: Session, *arguments: Any, **options: Any) -> Any:
        assert may_go.wait(60)
        return decode(self, *arguments, **options)

    monkeypatch.setattr(Session, "decode", decode_later)
    with running(lambda: open_model(files, chat_template="chatml"), ServerSettings(image_rows_max=250)) as client:

        def ask(width: int) -> Response:
            content = [as_url(png(width, width)), {"type": "text", "text": "a b"}]
            messages = [{"role": "user", "content": content}]
            return client.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=2)

        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, 320) for _ in range(6)]  # images of 100 rows
            try:
                refused = [each.result() for _, each in zip(range(4), as_completed(asked, 60), strict=False)]
            finally:
                may_go.set()
        assert sorted(each.result().status for each in asked) == [200] * 2 + [429] * 4
        assert all(each.status == 429 and int(each.headers["retry-after"]) >= 1 for each in refused)
        assert "are in the queue already" in refused[0].json["error"]["message"]
        text = client.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=2)
        assert text.status == 200
        # one that is larger than that has its turn alone
        assert ask(576).status == 200


def test_prompts_of_a_request_are_limited_before_their_images_are_decoded(files: tuple[Path, Path]) -> None:
    data = base64.b64encode(png(320, 320)).decode()  # 100 rows
    image, broken = ({"prompt_string": TEXT, "multimodal_data": [each]} for each in (data, "*"))
    with running(lambda: open_model(files), ServerSettings(image_rows_max=250, n_queue_max=5)) as client:
        for prompt, message in (
            ([broken] * 7, "7 answers at once are too many"),
            ([image, image, image, broken], "more than 250 tokens together"),
            ([image, image, broken], "images in base64"),
        ):
            response = client.post("/completion", prompt=prompt, n_predict=2)
            assert response.status == 400 and message in response.json["error"]["message"]
        assert client.post("/completion", prompt=[image, [5, 9], image], n_predict=2).status == 200


def test_requests_that_wait_for_their_images_are_limited(files: tuple[Path, Path]) -> None:
    async def ask(engine: ServedModel) -> None:
        may_go = threading.Event()
        tasks = [asyncio.create_task(engine.decode(lambda: may_go.wait(60))) for _ in range(3)]
        try:
            await asyncio.sleep(0)
            for _ in range(2):
                with pytest.raises(ApiError, match="images of 3 requests are waiting already") as refused:
                    await engine.decode(lambda: None)
                assert refused.value.status == 429 and int(refused.value.headers["Retry-After"]) >= 1
            tasks.pop().cancel()
            tasks.append(asyncio.create_task(engine.decode(lambda: True)))
        finally:
            may_go.set()
        assert await asyncio.gather(*tasks) == [True] * 3
        assert await engine.decode(lambda: 1) == 1

    with open_model(files) as model:
        engine = ServedModel(lambda: model, ServerSettings(n_queue_max=2))
        engine._model, engine.phase = model, "ready"
        asyncio.run(ask(engine))


def test_pixels_go_once_a_prompt_is_prepared(files: tuple[Path, Path]) -> None:
    """They take up to a thousand times the memory of a file, and answers take long."""
    with open_model(files, chat_template="chatml") as model:
        engine = ServedModel(lambda: model, ServerSettings())
        engine._model, engine.phase = model, "ready"
        n_before = n_images()
        content = [as_url(png(128, 96)), {"type": "text", "text": "a b"}]
        tokens, of_chat = prepare(engine, ChatBody(messages=[{"role": "user", "content": content}]))
        assert tokens and of_chat["chat"] and n_images() == n_before


def n_images() -> int:
    """Images that are alive."""
    gc.collect()
    return sum(isinstance(each, Image) for each in gc.get_objects())


def test_a_server_without_a_projector_says_so(files: tuple[Path, Path]) -> None:
    with running(lambda: pymtp.Model(files[0], n_ctx=256, n_threads=1, chat_template="chatml")) as client:
        messages = [{"role": "user", "content": [as_url(png(64, 64))]}]
        response = client.post("/v1/chat/completions", messages=messages)
        assert response.status == 400
        message = response.json["error"]["message"]
        assert message == "image input is not supported: the server was started without --mmproj"
