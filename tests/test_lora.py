"""LoRA adapters, for trunk and heads: against llama.cpp's own contexts with the same adapter, and merged weights."""

from __future__ import annotations

import ctypes
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from families import FAMILIES, one_of_each_kind
from http_server import Client, running
from pymtp.binding.arrays import Logits
from pymtp.binding.library import ffi
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import InvalidParameter, ModelError, NotFinite, PymtpError, StateError
from pymtp.gguf.facts import model_facts
from pymtp.gguf.weights import output_matrix
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import write_cohere2moe, write_gemma4, write_gemma4_assistant, write_glm4moe, write_mimo2, write_qwen35
from random_gguf.adapter import TOKEN_EMBEDDING, matrices, write_adapter, write_merged
from rpc_servers import rpc_servers
from two_contexts import TwoContexts

PARAMS = ContextParams(n_ctx=256, n_ubatch=32, n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
PROMPT = [7, 99, 3, 250, 12, 41, 300, 8, 77, 5]
DRAFTS = [5, 6, 7]
K = len(DRAFTS)
OF_HEAD = "nextn|blk\\.3\\."  # of a model with three layers and a head

# what llama.cpp's graphs of these trunks multiply without adapters
_LATENT = r"|attn_[qkv]_[ab]\.|attn_kv_a_mqa|indexer"
_OUTPUT = r"|^output\.weight"
PASSED_OVER = {
    "deepseek2 (GLM-4.7-Flash)": _LATENT,
    "deepseek2 (DeepSeek-V3)": _LATENT,
    "deepseek2, trained": _LATENT,
    "glm-dsa": _LATENT + _OUTPUT,
    "glm-dsa, an index a layer": _LATENT + _OUTPUT,
    "deepseek32": _LATENT + _OUTPUT,
    "dots3note": _LATENT,
    "glm5-next": _LATENT + _OUTPUT + r"|attn_[qkv]\.|attn_output|ssm_|hc_",
    "bailingmoe3": _LATENT + r"|attn_[qkv]\.|attn_gate|attn_output|ssm_[fg]_a",
    "qwen4exp": r"|ple_conv1d|per_layer_token_embd",
    "deepseek4": r"|^output|attn_output_a|hc_|indexer|compress",
}
WITH_HEADS = [name for name, family in FAMILIES.items() if not family.write_assistant and family.n_compared]


@contextmanager
def adapted(model: Path, *adapters: Path, scale: float = 1.0, n_seq_max: int = 1) -> Iterator[Session]:
    """A session that applies adapters; none: without."""
    weights = Weights(model_facts(model), ModelParams(lora=adapters, n_gpu_layers=0, device=()), with_heads=True)
    with Session(weights.model, replace(PARAMS, n_seq_max=n_seq_max), n_draft_max=K, model_id="model") as session:
        session.adapt([(one.native, scale) for one in weights.adapters], "adapters" if adapters else "")
        session.weights = weights  # type: ignore[attr-defined]  # for those who need its handles
        yield session
    weights.close()


def play(session: Session) -> tuple[Logits, Logits]:
    """Logits of the trunk after PROMPT and over DRAFTS, and those of the drafts."""
    session.decode([Chunk(PROMPT, 0, feed=True)])
    logits = [session.logits]
    drafts = []
    for step, token in enumerate(DRAFTS):
        session.draft(step, K, [Chunk([token], len(PROMPT) + step)])
        drafts.append(session.draft_logits[0])
    session.decode([Chunk(DRAFTS, len(PROMPT), logits="all", feed=True)])
    logits.append(session.logits)
    session.truncate(0)
    return np.concatenate(logits), np.array(drafts)


def assert_same(got: tuple[Logits, Logits], wanted: tuple[Logits, Logits]) -> None:
    """Trunk and drafts, bit for bit."""
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def two_contexts(session: Session, n_heads: int, scale: float) -> TwoContexts:
    """llama.cpp's own contexts with the adapters of a session."""
    weights: Weights = session.weights  # type: ignore[attr-defined]
    reference = TwoContexts(address(weights.model), PARAMS, n_heads)
    n = len(weights.adapters)
    handles = (ctypes.c_void_p * n)(*[address(one.native) for one in weights.adapters])
    scales = (ctypes.c_float * n)(*[scale] * n)
    for context in (reference._target, reference._draft):
        pointers = ctypes.cast(handles, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
        assert llama_cpp.llama_set_adapters_lora(context, pointers, n, scales) == 0
    return reference


def address(handle: object) -> int:
    return int(ffi.cast("intptr_t", handle))


@pytest.mark.parametrize("name", one_of_each_kind(WITH_HEADS, also=["exaone4"]))
def test_logits_equal_those_of_two_contexts_with_the_same_adapter(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = family.write(tmp_path / "tiny.gguf")
    left_out = re.compile("^$" + PASSED_OVER.get(name, ""))
    names = [each for each in matrices(model) if not left_out.search(each)]
    path = write_adapter(tmp_path / "adapter.gguf", model, names)
    with adapted(model) as plain, adapted(model, path, scale=0.5) as session:
        logits_before, drafts_before = play(plain)
        logits, drafts = play(session)
        reference = two_contexts(session, family.n_heads, 0.5)
        reference.decode(PROMPT, 0)
        np.testing.assert_allclose(logits[0], reference.logits[-1], atol=2e-4)
        reference.draft(DRAFTS[0], len(PROMPT), [*DRAFTS[1:], 8])
        np.testing.assert_allclose(drafts, reference.draft_logits, atol=5e-4)
        reference.decode(DRAFTS, len(PROMPT))
        np.testing.assert_allclose(logits[1:], reference.logits, atol=2e-4)
        reference.close()
    assert np.abs(logits - logits_before).max() > 0.1
    assert np.abs(drafts - drafts_before).max() > 0.1


@pytest.mark.parametrize("embedding", [[], [TOKEN_EMBEDDING]], ids=["matrices", "embedding"])
@pytest.mark.parametrize("write", [write_glm4moe, write_qwen35, write_mimo2], ids=lambda write: write.__name__)
def test_an_adapter_does_what_weights_do_that_are_merged_with_it(
    write: Callable[[Path], Path], embedding: list[str], tmp_path: Path
) -> None:
    """Heads look tokens up without adapters, as llama.cpp's do."""
    model = write(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model, [*embedding, *matrices(model)])
    merged = write_merged(tmp_path / "merged.gguf", model, path, scale=0.25)
    with adapted(model, path, scale=0.25) as session, adapted(merged) as other, adapted(model) as plain:
        both = list(zip(play(session), play(other), play(plain), strict=True))  # logits of the trunk, and of drafts
        for got, wanted, before in both[:1] if embedding else both:
            np.testing.assert_allclose(got, wanted, atol=2e-3)
            assert np.abs(wanted - before).max() > 0.1


def test_adapters_add_up(tmp_path: Path) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    one = write_adapter(tmp_path / "one.gguf", model)
    two = write_adapter(tmp_path / "two.gguf", model, seed=2)
    merged = write_merged(tmp_path / "a.gguf", write_merged(tmp_path / "b.gguf", model, one, 0.25), two, 0.25)
    with adapted(model, one, two, scale=0.25) as session, adapted(merged) as other:
        for got, wanted in zip(play(session), play(other), strict=True):
            np.testing.assert_allclose(got, wanted, atol=2e-3)


def test_a_session_that_has_computed_with_an_adapter_computes_without_it_and_with_it_again(tmp_path: Path) -> None:
    """Graphs that are kept are of the adapters that they were built for."""
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model)
    with adapted(model) as plain:
        without = play(plain)
    with adapted(model, path) as session:
        handle = session.weights.adapters[0].native  # type: ignore[attr-defined]
        whole = play(session)
        session.adapt([(handle, 0.5)], "half")
        half = play(session)
        session.adapt([], "")
        assert_same(play(session), without)
        session.adapt([(handle, 1.0)], "whole")
        assert_same(play(session), whole)
        session.adapt([(handle, 1.0)], "whole")  # as before
        assert_same(play(session), whole)
        # a draft right after the change, without a pass of the trunk in between
        session.decode([Chunk(PROMPT, 0, feed=True)])
        session.draft(0, 1, [Chunk([5], len(PROMPT))])
        with_adapter = session.draft_logits
        session.truncate(len(PROMPT))
        session.adapt([], "")
        session.draft(0, 1, [Chunk([5], len(PROMPT))])
        assert np.abs(session.draft_logits - with_adapter).max() > 0.1
    assert np.abs(half[0] - whole[0]).max() > 0.1


def test_an_adapter_of_the_head_changes_drafts_alone(tmp_path: Path) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model, matrices(model, OF_HEAD))
    with adapted(model) as plain, adapted(model, path) as session:
        (logits, drafts), (logits_before, drafts_before) = play(session), play(plain)
    np.testing.assert_array_equal(logits, logits_before)
    assert np.abs(drafts - drafts_before).max() > 0.1


def test_a_draft_vocabulary_of_its_own_has_no_adapter_of_the_output_matrix(tmp_path: Path) -> None:
    """Of the first tokens, and of a list of them."""
    model = write_qwen35(tmp_path / "tiny.gguf")  # whose head has no output matrix of its own
    path = write_adapter(tmp_path / "adapter.gguf", model, ["output.weight"])
    listed = [300, 7, 41, 9, 500, 12, 100, 2]
    with adapted(model) as plain, adapted(model, path) as session:
        _, whole = play(plain)
        assert np.abs(play(session)[1] - whole).max() > 0.1
        session.limit_drafts(64)
        _, first = play(session)
        np.testing.assert_allclose(first[:, :64], whole[:, :64], atol=1e-5)
        session.limit_drafts_to(listed, [output_matrix(model_facts(model), 0)[listed]])
        _, some = play(session)
        np.testing.assert_allclose(some[:, listed], whole[:, listed], atol=1e-5)


def test_an_assistant_has_no_part_in_the_adapters_of_the_trunk(tmp_path: Path) -> None:
    """Its tensors have the same names, and other shapes."""
    model = write_gemma4(tmp_path / "tiny.gguf")
    assistant = write_gemma4_assistant(tmp_path / "mtp-tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model, matrices(model, r"blk\.\d+\.(attn|ffn_(up|down|gate)\.)"))
    texts = {}
    for draft in ("mtp", "none"):
        with pymtp.Model(model, lora=[(path, 0.3)], draft=draft, draft_model=assistant, n_ctx=128, n_threads=1) as made:
            generation = made.generate(PROMPT, temperature=0, max_tokens=40, ignore_eos=True)
            texts[draft] = "".join(generation)
            assert (made.stats.drafted > 0) == (draft == "mtp")
    assert texts["mtp"] == texts["none"]


def test_a_draft_only_changes_the_speed_of_a_text(tmp_path: Path) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model)
    texts = {}
    for draft, lora in (("mtp", [path]), ("none", [path]), ("none", [])):
        with pymtp.Model(model, lora=lora, draft=draft, n_ctx=256, n_threads=1) as made:
            texts[draft, bool(lora)] = text_of(made, PROMPT)
            assert (made.stats.drafted > 0) == (draft == "mtp")
    assert texts["mtp", True] == texts["none", True] != texts["none", False]


def text_of(model: pymtp.Model, prompt: list[int], **options: Any) -> str:
    return "".join(model.generate(prompt, temperature=0, max_tokens=40, ignore_eos=True, **options))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model and two adapters."""
    folder = tmp_path_factory.mktemp("lora")
    model = write_glm4moe(folder / "tiny.gguf")
    return model, *(write_adapter(folder / f"{seed}.gguf", model, seed=seed) for seed in (1, 2))


CHOICES: list[dict[int, float]] = [{}, {0: 1.0}, {1: 0.5}, {0: 0.5, 1: 0.5}]


@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_texts_with_different_adapters_take_turns_and_never_reuse_what_others_left(
    tiny: tuple[Path, Path, Path], n_seq_max: int
) -> None:
    model, *paths = tiny
    with pymtp.Model(model, lora=paths, n_ctx=256, n_threads=1) as alone:
        wanted = [text_of(alone, PROMPT * 3, lora=lora) for lora in CHOICES]
    assert len(set(wanted)) == len(CHOICES)
    rng = random.Random(3)
    with pymtp.Model(model, lora=paths, n_ctx=256, n_threads=1, n_seq_max=n_seq_max) as made:
        made.slots.keep_prefixes(1 << 26)
        assert text_of(made, PROMPT * 3) == text_of(made, PROMPT * 3, lora={0: 1.0, 1: 1.0})  # those of the model
        order = [rng.randrange(len(CHOICES)) for _ in range(24)]
        running = [
            made.generate(
                PROMPT * 3,
                temperature=0,
                max_tokens=40,
                ignore_eos=True,
                lora=CHOICES[i],
                cache_prompt=rng.random() < 0.7,
            )
            for i in order
        ]
        for i, generation in zip(order, running, strict=True):
            assert "".join(generation) == wanted[i]
        assert any(generation.n_cached for generation in running)


def test_the_scales_of_later_texts_can_be_changed(tiny: tuple[Path, Path, Path]) -> None:
    model, *paths = tiny
    with pymtp.Model(model, lora=[(path, 0.0) for path in paths], n_ctx=256, n_threads=1) as made:
        assert [adapter.scale for adapter in made.adapters] == [0.0, 0.0]
        without = text_of(made, PROMPT)
        made.adapters.scale({1: 0.5})
        assert [(adapter.path, adapter.scale) for adapter in made.adapters] == [(paths[0], 0.0), (paths[1], 0.5)]
        assert text_of(made, PROMPT) == text_of(made, PROMPT, lora={1: 0.5}) != without
        assert text_of(made, PROMPT, lora={}) == without
        for scales in ({2: 1.0}, {-1: 1.0}, {0: float("nan")}, {0: 1e39}, {"a": 1}, 7):
            with pytest.raises(InvalidParameter, match="lora|scales"):
                made.adapters.scale(scales)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match="lora must be scales of adapters that are loaded: 2"):
            made.generate(PROMPT, lora={5: 1.0})


def test_a_state_belongs_to_the_adapters_that_it_was_computed_with(tiny: tuple[Path, Path, Path]) -> None:
    model, path, _ = tiny
    with adapted(model, path) as session, adapted(model) as plain, adapted(model, path) as same:
        session.decode([Chunk(PROMPT, 0, feed=True)])
        state = session.save()
        with pytest.raises(StateError, match="another model"):
            plain.restore(state)
        same.restore(state)
        same.decode([Chunk([5], len(PROMPT))])
        session.decode([Chunk([5], len(PROMPT))])
        np.testing.assert_array_equal(same.logits, session.logits)


def test_a_saved_slot_is_for_texts_with_the_same_adapters(tiny: tuple[Path, Path, Path]) -> None:
    model, *paths = tiny
    with pymtp.Model(model, lora=paths, n_ctx=256, n_threads=1) as made:
        text = text_of(made, PROMPT, cache_prompt=True)
        tokens, data = made.slots.save(0)
        assert tokens[: len(PROMPT)] == PROMPT
        text_of(made, PROMPT, lora={}, cache_prompt=True)
        made.slots.restore(0, tokens, data)
        again = made.generate(PROMPT, temperature=0, max_tokens=40, ignore_eos=True, cache_prompt=True)
        assert "".join(again) == text
        assert again.n_cached == len(PROMPT) - 1
        made.adapters.scale({})
        with pytest.raises(StateError, match="another model"):
            made.slots.restore(0, tokens, data)


REFUSED = {
    "a model": (lambda folder, model: model, "is no LoRA adapter but a model"),
    "nothing": (lambda folder, model: folder / "nowhere.gguf", "nowhere.gguf: no such file"),
    "a directory": (lambda folder, model: folder, "is a directory; name the .gguf file inside it"),
    "another architecture": (
        lambda folder, model: write_adapter(folder / "a.gguf", model, architecture="llama"),
        "is an adapter for llama models, and tiny.gguf is glm4moe",
    ),
    "another size": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a[:, :64], b)),
        "blk.1.attn_q.weight' has incorrect shape",
    ),
    "another rank": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a[:2], b)),
        "lora_a tensor is not transposed",
    ),
    "fewer experts": (
        lambda folder, model: changed(folder, model, "blk.2.ffn_up_exps.weight", lambda a, b: (a[:2], b)),
        "blk.2.ffn_up_exps.weight has another shape than the model's",
    ),
    "one factor": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a, None)),
        "blk.1.attn_q.weight' is missing one component",
    ),
    "an unknown tensor": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a, b), "blk.9.attn_q.weight"),
        "blk.9.attn_q.weight' does not exist in base model",
    ),
    "integers": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a.astype(np.int32), b)),
        "blk.1.attn_q.weight is of a type that cannot be multiplied",
    ),
    "a bias": (
        lambda folder, model: changed(
            folder, model, "blk.1.attn_q.weight", lambda a, b: (a[:, :1], b), "blk.1.attn_q.bias"
        ),
        "blk.1.attn_q.bias",
    ),
    "what no graph applies": (
        lambda folder, model: write_adapter(folder / "a.gguf", model, ["blk.3.nextn.embed_tokens.weight"]),
        "blk.3.nextn.embed_tokens.weight is for one that llama.cpp applies no adapters to",
    ),
    "not a number": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a, b), alpha=float("nan")),
        "its alpha",
    ),
    "tokens that it waits for": (
        lambda folder, model: changed(folder, model, "blk.1.attn_q.weight", lambda a, b: (a, b), tokens=[1, 2]),
        "is an activated LoRA",
    ),
}


def changed(
    folder: Path,
    model: Path,
    name: str,
    change: Callable[[Any, Any], tuple[Any, Any]],
    new_name: str | None = None,
    *,
    alpha: float = 1.0,
    tokens: list[int] | None = None,
) -> Path:
    """An adapter for one tensor, whose factors are not as they should be."""
    whole = write_adapter(folder / "whole.gguf", model, [name])
    factors = [tensor.data for tensor in gguf.GGUFReader(whole).tensors]
    writer = gguf.GGUFWriter(folder / "changed.gguf", "glm4moe")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    if tokens:
        writer.add_key_value(
            "adapter.alora.invocation_tokens", tokens, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32
        )
    for letter, factor in zip("ab", change(*factors), strict=True):
        if factor is not None:
            writer.add_tensor(f"{new_name or name}.lora_{letter}", np.ascontiguousarray(factor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "changed.gguf"


@pytest.mark.parametrize("what", REFUSED)
def test_an_adapter_that_does_not_fit_is_refused_by_name(what: str, tmp_path: Path) -> None:
    make, message = REFUSED[what]
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = make(tmp_path, model)
    with pytest.raises(ModelError, match=re.escape(message)) as refused:
        pymtp.Model(model, lora=[path], n_ctx=256)
    assert str(path) in str(refused.value)


def test_a_tensor_that_the_graph_of_a_family_passes_over_is_named(tmp_path: Path) -> None:
    """llama.cpp would leave it out in silence."""
    model = FAMILIES["deepseek2 (DeepSeek-V3)"].write(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model, matrices(model, "attn_q_a|ffn_down"))
    with pytest.raises(
        PymtpError, match="the adapter is for blk.0.attn_q_a.weight, to which llama.cpp's graph of deepseek2"
    ):
        pymtp.Model(model, lora=[(path, 0.0)], n_ctx=256)


def test_an_embedding_that_is_the_output_matrix_too_is_refused(tmp_path: Path) -> None:
    model = write_cohere2moe(tmp_path / "tiny.gguf")
    path = write_adapter(tmp_path / "adapter.gguf", model, [TOKEN_EMBEDDING])
    with pytest.raises(ModelError, match="token_embd.weight is also the model's output matrix"):
        pymtp.Model(model, lora=[path], n_ctx=256)


@pytest.mark.parametrize("n_bytes", [0, 3, 100, 2000])
def test_a_damaged_adapter_is_refused(tiny: tuple[Path, Path, Path], tmp_path: Path, n_bytes: int) -> None:
    model, path, _ = tiny
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.raises(ModelError, match="damaged.gguf"):
        pymtp.Model(model, lora=[damaged], n_ctx=256)


@pytest.mark.parametrize(
    "lora",
    ["a.gguf", ["a.gguf", 3], [("a.gguf", "x")], [("a.gguf", float("inf"))], [("a.gguf", 101)], [("a.gguf", 1, 2)], 7],
)
def test_what_is_no_list_of_adapters_is_refused(lora: Any) -> None:
    with pytest.raises(InvalidParameter, match="lora must be a list of files, or of pairs"):
        ModelParams(lora=lora)


def poisoned(path: Path, model: Path, value: float, names: list[str] | None = None) -> Path:
    """An adapter whose weights are all this number."""
    write_adapter(path, model, names)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        tensor.data[:] = value
    return path


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "of a few": {"temperature": 0.8},
    "of the whole row": {"temperature": 0.8, "top_k": 0, "min_p": 0, "top_p": 1},
    "rejection": {"temperature": 0.8, "accept": "rejection"},
    "mirostat": {"mirostat": 2},
    "with a grammar": {"temperature": 0, "grammar": "root ::= [ \\t\\n]+"},
    "with probabilities": {"temperature": 0.8, "logprobs": 2},
}


@pytest.mark.parametrize("how", SAMPLING)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_model_that_computes_no_numbers_says_so_by_name(tmp_path: Path, value: float, how: str) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = poisoned(tmp_path / "poison.gguf", model, value)
    with pymtp.Model(model, lora=[path], n_ctx=256, n_threads=1, n_seq_max=2) as made:
        with pytest.raises(
            NotFinite, match=r"^tiny.gguf with poison.gguf produced NaN or infinite logits: .*not finite"
        ):
            "".join(made.generate(PROMPT, max_tokens=20, **SAMPLING[how]))
        # and other texts go on
        assert "".join(made.generate(PROMPT, max_tokens=20, lora={}, ignore_eos=True, temperature=0))


def test_heads_that_compute_no_numbers_change_no_text(tmp_path: Path) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = poisoned(tmp_path / "poison.gguf", model, float("nan"), matrices(model, OF_HEAD))
    options: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
    with pymtp.Model(model, lora=[path], n_ctx=256, n_threads=1, draft="none") as made:
        plain = "".join(made.generate(PROMPT, temperature=0, **options))
    with pymtp.Model(model, lora=[path], n_ctx=256, n_threads=1, draft="mtp", draft_max=2) as made:
        generation = made.generate(PROMPT, temperature=0, **options)
        assert "".join(generation) == plain
        assert generation.stats.drafted > 10
        assert "".join(made.generate(PROMPT, temperature=0.8, accept="rejection", seed=1, **options))


def test_run_ends_with_an_error_where_there_are_no_numbers(tmp_path: Path) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = poisoned(tmp_path / "poison.gguf", model, float("nan"))
    flags = ["run", "-m", str(model), "--lora", str(path), "--raw", "-n", "8", "-c", "128", "--json", "--logprobs", "2"]
    result = command(*flags, "-p", "a b c")
    assert result.exit_code == 1 and result.stdout == ""
    assert (
        result.stderr.count("\n") == 1 and "tiny.gguf with poison.gguf produced NaN or infinite logits" in result.stderr
    )


def test_adapters_and_tensor_splits_exclude_each_other() -> None:
    with pytest.raises(InvalidParameter, match="lora must be left out with split_mode tensor"):
        ModelParams(lora=["a.gguf"], split_mode="tensor")


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_the_commands_apply_adapters(tiny: tuple[Path, Path, Path]) -> None:
    model, one, two = map(str, tiny)

    def text(*flags: str) -> str:
        result = command(
            "run", "-m", model, "--raw", "-n", "20", "--temp", "0", "--ignore-eos", "-c", "128", *flags, "-p", "a b c"
        )
        assert result.exit_code == 0, result.stderr
        return result.stdout

    plain = text()
    both = text("--lora", f"{one},{two}")
    assert both == text("--lora", one, "--lora", two) == text("--lora-scaled", f"{one}:1,{two}:1.0")
    assert len({plain, both, text("--lora", one), text("--lora-scaled", f"{one}:0.5")}) == 4
    assert text("--lora-scaled", f"{one}:0") == plain


@pytest.mark.parametrize(
    "flags",
    [["--lora", ""], ["--lora", "a,,b"], ["--lora", "a\nb"], *(["--lora-scaled", f"a{x}"] for x in ("", ":x", ":101"))],
)
def test_flags_that_name_no_adapters_are_refused(flags: list[str]) -> None:
    refused = command("run", *flags, "-p", "a")
    assert refused.exit_code == 2 and f"value for {flags[0]}: " in refused.stderr


def test_a_server_shows_and_changes_adapters_as_llama_server_does(tiny: tuple[Path, Path, Path]) -> None:
    model, *paths = tiny
    with pymtp.Model(model, lora=paths, n_ctx=256, n_threads=1) as made:
        wanted = {scale: text_of(made, PROMPT, lora={0: scale}) for scale in (0.0, 0.5, 1.0)}

    def text(client: Client, **body: Any) -> str:
        asked = {"prompt": PROMPT, "temperature": 0, "n_predict": 40, "ignore_eos": True}
        return str(client.post("/completion", **asked, **body).json["content"])

    with running(lambda: pymtp.Model(model, lora=[(path, 0.0) for path in paths], n_ctx=256, n_threads=1)) as client:
        assert client.get("/lora-adapters").json[1] == {
            "id": 1,
            "path": str(paths[1]),
            "scale": 0.0,
            "task_name": "",
            "prompt_prefix": "",
        }
        assert text(client) == wanted[0.0]
        assert text(client, lora=[{"id": 0, "scale": 0.5}]) == wanted[0.5]
        assert client.send("POST", "/lora-adapters", [{"id": 0, "scale": 1.0}]).json == {"success": True}
        assert [each["scale"] for each in client.get("/lora-adapters").json] == [1.0, 0.0]
        assert text(client) == wanted[1.0]
        assert text(client, lora=[{"id": 0, "scale": 0}]) == wanted[0.0]
        for body in ([{"id": 7, "scale": 1}], [{"scale": 1}], {}, [3]):
            assert client.send("POST", "/lora-adapters", body).status == 400
        assert client.post("/completion", prompt="a", lora=[{"id": 7, "scale": 1}]).status == 400


def test_a_server_that_computes_no_numbers_refuses_one_text_and_serves_on(tmp_path: Path) -> None:
    model = write_glm4moe(tmp_path / "tiny.gguf")
    path = poisoned(tmp_path / "poison.gguf", model, float("nan"))
    with running(lambda: pymtp.Model(model, lora=[(path, 0.0)], n_ctx=256, n_threads=1)) as client:
        for _ in range(3):
            failed = client.post("/completion", prompt="a b", n_predict=4, lora=[{"id": 0, "scale": 1.0}])
            assert failed.status == 500 and "produced NaN or infinite logits" in failed.json["error"]["message"]
            assert client.post("/completion", prompt=PROMPT, n_predict=4).status == 200
        assert client.get("/health").status == 200


def test_a_thread_may_change_scales_while_others_generate(tiny: tuple[Path, Path, Path]) -> None:
    """Each text is that of one of the scales, from its begin to its end."""
    model, *paths = tiny
    options: dict[str, Any] = {"lora": [(path, 0.0) for path in paths], "n_ctx": 256, "n_threads": 1}
    scales = [{}, {0: 1.0}, {1: 1.0}, {0: 0.5, 1: 0.5}]
    with pymtp.Model(model, **options) as made:
        wanted = {text_of(made, PROMPT, lora=scale) for scale in scales}
    assert len(wanted) == len(scales)
    with pymtp.Model(model, n_seq_max=2, **options) as made:
        is_over = threading.Event()

        def change() -> None:
            rng = random.Random(1)
            while not is_over.is_set():
                made.adapters.scale(rng.choice(scales))
                time.sleep(0.002)

        changing = threading.Thread(target=change)
        changing.start()
        try:
            with ThreadPoolExecutor(3) as pool:
                found = set[str]()
                for _ in range(10):  # a machine with much else to do may change scales rarely
                    found |= set(pool.map(lambda _: text_of(made, PROMPT), range(24)))
                    if len(found) > 1:
                        break
        finally:
            is_over.set()
            changing.join()
    assert found <= wanted and len(found) > 1


def test_an_adapter_lies_where_the_weights_lie_on_another_machine_too(tiny: tuple[Path, Path, Path]) -> None:
    model, *paths = tiny
    options: dict[str, Any] = {"lora": [(path, 0.5) for path in paths], "n_ctx": 256, "n_threads": 1, "device": ()}
    with (
        rpc_servers(1) as (server,),
        pymtp.Model(model, **options) as here,
        pymtp.Model(model, rpc=[server.endpoint], **options) as there,
    ):
        assert text_of(there, PROMPT) == text_of(here, PROMPT)
        assert text_of(there, PROMPT, lora={0: 1.0}) == text_of(here, PROMPT, lora={0: 1.0})
