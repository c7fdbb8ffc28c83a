"""Rope scaling and metadata that replaces a file's: as llama.cpp computes with both, for the trunk and the heads."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from pymtp_cli.app import app
from pymtp_cli.asked import context_of
from typer.testing import CliRunner

from families import FAMILIES
from pymtp import InvalidParameter, Model, ModelError, StateError
from pymtp.engine.session import Chunk, Session
from pymtp.gguf.model_file import read_model
from random_gguf import write_gemma4, write_gemma4_assistant, write_glm4moe

TOKENS = [*range(3, 83)]
YARN = {
    **{"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 32, "yarn_ext_factor": 0.5},
    **{"yarn_attn_factor": 1.2, "yarn_beta_slow": 2.0, "yarn_beta_fast": 16.0},
}
POSITIONS: dict[str, dict[str, Any]] = {
    "base": {"rope_freq_base": 500.0},
    "linear": {"rope_scaling": "linear", "rope_freq_scale": 0.5},
    "none": {"rope_scaling": "none", "rope_freq_scale": 0.5},
    "yarn": YARN,
}


BASES = [("gemma4.rope.freq_base", 500.0), ("gemma4-assistant.rope.freq_base", 500.0)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glm4moe(tmp_path_factory.mktemp("positions") / "tiny.gguf")


def ours(path: Path, **options: Any) -> tuple[Any, Any]:
    """Logits after the tokens, and those of a draft."""
    exact: dict[str, Any] = {"flash_attn": "off", "type_k": "f32", "type_v": "f32"}
    with Model(path, n_ctx=128, n_threads=1, draft_max=1, **exact, **options) as model:
        return model.call(lambda: logits_of(model.session))


def logits_of(session: Session) -> tuple[Any, Any]:
    session.decode([Chunk(TOKENS, 0, feed=True)])
    logits = session.logits.copy()
    session.draft(0, 1, [Chunk([5], len(TOKENS))])
    return logits, session.draft_logits.copy()


def theirs(path: Path, **options: Any) -> Any:
    """Logits after the tokens, of a context that pymtp does not know, on the CPU."""
    of_model = llama_cpp.llama_model_default_params()
    nowhere_else = (ctypes.c_void_p * 1)()  # the end of a list of devices
    of_model.devices = ctypes.addressof(nowhere_else)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), of_model)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch, params.flash_attn_type = 128, 1, 1, 0
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    for name, value in options.items():
        kinds = {"none": 0, "linear": 1, "yarn": 2}
        setattr(params, *("rope_scaling_type", kinds[value]) if name == "rope_scaling" else (name, value))
    context = llama_cpp.llama_init_from_model(model, params)
    tokens = (llama_cpp.llama_token * len(TOKENS))(*TOKENS)
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(TOKENS))) == 0
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    found = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (n_vocab,)).copy()
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return found[None]


@pytest.mark.parametrize("options", POSITIONS.values(), ids=POSITIONS)
def test_positions_are_those_of_llama_cpp(tiny: Path, options: Mapping[str, Any]) -> None:
    plain, _ = ours(tiny, device=[])
    scaled, _ = ours(tiny, device=[], **options)
    np.testing.assert_allclose(scaled, theirs(tiny, **options), atol=2e-4)
    assert np.allclose(scaled, plain, atol=2e-4) is (options.get("rope_scaling") == "none")


@pytest.mark.parametrize("family", ["glm4moe", "mimo2", "qwen35", "glm-dsa", "dots3note", "deepseek4"])
def test_heads_have_the_positions_of_the_trunk(tmp_path: Path, family: str) -> None:
    """What a file says, what stands in its place, and what the context says instead: all the same."""
    path = FAMILIES[family].write(tmp_path / "tiny.gguf")
    plain, base = ours(path), ours(path, rope_freq_base=500.0)
    replaced = ours(path, override_kv=[(f"{read_model(path).architecture}.rope.freq_base", 500.0)])
    for before, after, same in zip(plain, base, replaced, strict=True):
        assert not np.allclose(before, after, atol=1e-3)
        np.testing.assert_array_equal(after, same)


def test_an_assistant_has_the_positions_of_the_trunk(tmp_path: Path) -> None:
    path, assistant = write_gemma4(tmp_path / "tiny.gguf"), write_gemma4_assistant(tmp_path / "assistant.gguf")
    plain, base = ours(path, draft_model=assistant), ours(path, draft_model=assistant, rope_freq_base=500.0)
    replaced = ours(path, draft_model=assistant, override_kv=BASES)
    for before, after, same in zip(plain, base, replaced, strict=True):
        assert not np.allclose(before, after, atol=1e-4)
        np.testing.assert_array_equal(after, same)
    with pytest.raises(ModelError, match="rope.freq_base is 1000000.0, not 500.0"):
        Model(path, draft_model=assistant, override_kv=BASES[:1])


def test_a_cache_on_the_host_changes_nothing_here(tiny: Path) -> None:
    for expected, found in zip(ours(tiny, device=[]), ours(tiny, device=[], offload_kqv=False), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("options", [YARN, {"override_kv": [("glm4moe.rope.freq_base", 500.0)]}], ids=str)
def test_states_belong_to_their_positions(tiny: Path, options: dict[str, Any]) -> None:
    def saved(**more: Any) -> bytes:
        with Model(tiny, n_ctx=128, n_threads=1, **more) as model:
            str(model.generate(TOKENS, max_tokens=1, cache_prompt=True))
            return model.call(lambda: model.session.save())

    with Model(tiny, n_ctx=128, n_threads=1, **options) as model:
        with pytest.raises(StateError, match="another model"):
            model.call(lambda: model.session.restore(saved()))
        model.call(lambda: model.session.restore(saved(**options)))


def test_metadata_is_read_with_what_stands_in_its_place(tiny: Path) -> None:
    with Model(tiny, n_threads=1, override_kv=[("glm4moe.context_length", 64), ("general.name", "other")]) as model:
        assert (model.n_ctx, model.info.n_ctx_train, model.info.name) == (64, 64, "other")
    file = read_model(tiny, {"glm4moe.context_length": 64})
    assert read_model(file) is file
    for value in (64.0, True, "64"):
        with pytest.raises(InvalidParameter, match="must be int for glm4moe.context_length, as in the file"):
            Model(tiny, override_kv=[("glm4moe.context_length", value)])
    with pytest.raises(InvalidParameter, match=r"must be left out for tokenizer.ggml.tokens, an array"):
        Model(tiny, override_kv=[("tokenizer.ggml.tokens", 5)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope_scaling": "ntk"}, "rope_scaling must be one of auto, none, linear, yarn"),
        ({"rope_freq_base": -1}, "rope_freq_base must be a number from 0 on"),
        ({"rope_freq_scale": float("nan")}, "rope_freq_scale must be a number from 0 on"),
        ({"yarn_beta_fast": float("inf")}, "yarn_beta_fast must be a number from -1 on"),
        ({"yarn_orig_ctx": -1}, "yarn_orig_ctx must be an integer between 0"),
        ({"offload_kqv": 1}, "offload_kqv must be True or False"),
        ({"override_kv": [("a", None)]}, "override_kv must be pairs of a key and a number"),
        ({"override_kv": [("a" * 128, 1)]}, "override_kv must be pairs of a key and a number"),
        ({"override_kv": [("a", 2**63)]}, "override_kv must be pairs of a key and a number"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Model(**options)


def test_metadata_on_a_command_line(tiny: Path) -> None:
    flags = ["--override-kv", "glm4moe.context_length=int:64,glm4moe.rope.freq_base=float:5e2"]
    flags += ["--override-kv", "general.name=str:a=b:c", "--override-kv", "tokenizer.ggml.add_bos_token=bool:false"]
    shown = CliRunner().invoke(app, ["inspect", str(tiny), "--json", *flags]).stdout
    facts = json.loads(shown)
    assert (facts["n_ctx_train"], facts["name"]) == (64, "a=b:c")


@pytest.mark.parametrize("text", ["a", "a=1", "a=int:x", "a=int:1.5", "a=bool:1", "=int:1", "a=i32:1", "a=int:1,b"])
def test_metadata_that_cannot_be_read_is_named(text: str) -> None:
    result = CliRunner().invoke(app, ["run", "hi", "--override-kv", text])
    assert result.exit_code == 2
    assert result.stderr.startswith("pymtp: Invalid value for --override-kv: must be KEY=int|float|bool|str:VALUE,...")


def test_a_context_scale_is_the_inverse_of_the_frequencies() -> None:
    result = CliRunner().invoke(app, ["run", "hi", "--rope-scale", "2", "--rope-freq-scale", "0.5"])
    assert "--rope-scale and --rope-freq-scale say the same" in result.stderr
    given = SimpleNamespace(rope_scale=4.0, rope_freq_base=1.0)
    assert context_of(given) == {"rope_freq_scale": 0.25, "rope_freq_base": 1.0}
