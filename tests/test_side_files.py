"""Heads in a file of their own: found, checked, and used like those in a model's file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from families import FAMILIES, one_of_each_kind
from machine import needs_exact_texts
from pymtp import Model, SamplingParams
from pymtp.binding.arrays import Logits
from pymtp.engine.session import Chunk
from pymtp.errors import InvalidParameter, ModelError, StateError, UnsupportedModel
from pymtp.gguf import shards
from pymtp.gguf.facts import find_draft_model, model_facts
from random_gguf import write_glm4moe, write_qwen35, write_step35
from random_gguf.side_files import split_heads, trim_heads

WriteGguf = Callable[..., Path]


@pytest.fixture
def apart(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A whole model, its trunk, and its heads, which are not where they would be found."""
    whole, trunk, heads = tmp_path / "whole.gguf", tmp_path / "trunk.gguf", tmp_path / "heads" / "mtp-heads.gguf"
    heads.parent.mkdir()
    split_heads(write_glm4moe(whole), trunk, heads)
    return whole, trunk, heads


def text(model: Model) -> list[int]:
    """What the model generates greedily."""
    generation = model.generate(list(range(40)), sampling=SamplingParams(temperature=0), max_tokens=20, ignore_eos=True)
    list(generation)
    return generation.tokens


def drafts(model: Model) -> Logits:
    """Logits of a draft, (draft_max, n_vocab)."""
    logits, n, session = [], model.session.n_draft_max, model.session
    session.truncate(0)
    session.decode([Chunk(list(range(40)), 0, feed=True)])
    for step in range(n):
        session.draft(step, n, [Chunk([5], 40 + step)])
        logits.append(session.draft_logits[0].copy())
    session.truncate(0)
    return np.stack(logits)


@needs_exact_texts
@pytest.mark.parametrize(
    "family", one_of_each_kind(name for name, family in FAMILIES.items() if not family.write_assistant)
)
def test_heads_in_a_file_of_their_own_draft_like_those_in_the_model(tmp_path: Path, family: str) -> None:
    whole, trunk, heads = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "heads"))
    split_heads(FAMILIES[family].write(whole), trunk, heads)
    with Model(whole, draft="mtp", n_threads=1) as one, Model(trunk, draft_model=heads, n_threads=1) as two:
        assert two.draft_note is None
        assert two.session.n_draft_max == one.session.n_draft_max > 0
        assert two.session.mtp_memory == FAMILIES[family].memory
        assert text(two) == text(one)
        np.testing.assert_array_equal(drafts(two), drafts(one))
        for each in ("n_layer", "n_heads", "n_parameters", "n_tensors"):
            assert getattr(two.info, each) == getattr(one.info, each)


def test_a_trunk_without_heads_drafts_by_lookup_to_the_same_text(apart: tuple[Path, Path, Path]) -> None:
    whole, trunk, _ = apart
    with Model(whole, draft="none", n_threads=1) as one, Model(trunk, n_threads=1) as two:
        assert (two.draft_max, two.draft_note, two.info.draft_model) == ("auto", None, None)
        assert two.session.n_heads == 0
        assert text(two) == text(one)
    with pytest.raises(UnsupportedModel, match=r"no usable MTP head \(nextn_predict_layers = 0\); use --draft none"):
        Model(trunk, draft="mtp")


def test_heads_next_to_the_model_are_found_but_only_used_if_wanted(apart: tuple[Path, Path, Path]) -> None:
    whole, trunk, heads = apart
    beside = trunk.with_name("mtp-tiny.gguf")
    shutil.copy(heads, beside)
    with Model(trunk, draft="mtp", n_threads=1) as model:
        assert model.info.draft_model == beside
        assert model.session.n_draft_max > 0
    with Model(trunk, draft="none", n_threads=1) as model:
        assert model.info.draft_model is None
    with Model(whole, n_threads=1) as model:  # has its own
        assert model.info.draft_model is None
        assert model.session.n_draft_max > 0


def test_the_command_line_names_the_heads_it_found(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart

    def run(*options: object) -> str:
        command = [sys.executable, "-m", "pymtp_cli", "run", trunk, "--raw", "-n", 3, "-t", 1, *options, "\t \t"]
        done = subprocess.run([*map(str, command)], capture_output=True, encoding="utf-8", timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "drafting with" not in run("--draft-model", heads)
    beside = trunk.with_name("mtp-tiny.gguf")
    shutil.copy(heads, beside)
    assert run().startswith(f"pymtp: drafting with the MTP heads in {beside}\n")


def test_several_files_next_to_the_model_are_not_used(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart
    for name in ("mtp-a.gguf", "mtp-b.gguf"):
        shutil.copy(heads, trunk.with_name(name))
    with Model(trunk, n_threads=1) as model:
        assert (model.draft_max, model.session.n_heads) == ("auto", 0)
        assert model.draft_note is not None
        assert (
            "(mtp-a.gguf, mtp-b.gguf), draft_model (--draft-model) picks one: drafts by lookup only" in model.draft_note
        )


def test_unsuitable_files_next_to_the_model_are_named_and_not_used(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart
    beside = trunk.with_name("mtp-other.gguf")
    beside.write_bytes(heads.read_bytes()[:1000])
    assert find_draft_model(trunk) == (None, f"{beside} is truncated: it ends inside its header; download it again")
    split_heads(write_qwen35(trunk.with_name("qwen.gguf")), trunk.with_name("qwen-trunk.gguf"), beside)
    with Model(trunk, n_threads=1) as model:
        assert model.draft_note == (
            f"{beside} does not hold the heads of {trunk} (its architecture is qwen35, not glm4moe): "
            "drafts by lookup only"
        )
    with pytest.raises(UnsupportedModel, match="its architecture is qwen35, not glm4moe"):
        Model(trunk, draft="mtp")


def test_heads_without_a_model_are_refused(apart: tuple[Path, Path, Path]) -> None:
    heads = apart[2]
    with pytest.raises(ModelError, match="holds only MTP heads; name the model, and this file with draft_model"):
        Model(heads)


def test_heads_of_another_model_are_refused(apart: tuple[Path, Path, Path], tmp_path: Path) -> None:
    whole, trunk, heads = apart

    def refusal(model: Path, draft_model: Path) -> str:
        with pytest.raises(ModelError) as caught:
            model_facts(model, draft_model)
        message = str(caught.value)
        assert "\n" not in message
        assert message.endswith("; name the draft file that belongs to the model, or none")
        return message

    assert f"{whole} has its own MTP heads" in refusal(whole, heads)
    assert f"{trunk} holds no usable MTP heads" in refusal(trunk, trunk)

    other, other_heads = tmp_path / "other.gguf", tmp_path / "other-heads.gguf"
    split_heads(write_glm4moe(other, n_layer=2), tmp_path / "other-trunk.gguf", other_heads)
    assert "it is of a model with 2 layers, not 3" in refusal(trunk, other_heads)
    split_heads(write_glm4moe(other, more={"expert_weights_scale": 2.0}), tmp_path / "other-trunk.gguf", other_heads)
    assert "glm4moe.expert_weights_scale is 2.0, not 1.5" in refusal(trunk, other_heads)
    step, step_trunk = write_step35(tmp_path / "step.gguf"), tmp_path / "step-trunk.gguf"
    split_heads(step, step_trunk, other_heads)
    assert model_facts(step_trunk, other_heads).n_heads == 3
    assert "its architecture is step35, not glm4moe" in refusal(trunk, other_heads)


def test_a_file_with_fewer_heads_than_declared_is_refused(write_gguf: WriteGguf) -> None:
    heads = write_gguf("heads.gguf", declared=3, heads=1)
    with pytest.raises(ModelError, match="holds no usable MTP heads"):
        model_facts(write_gguf("model.gguf"), heads)


def test_a_saved_state_needs_the_same_model_and_heads(apart: tuple[Path, Path, Path]) -> None:
    whole, trunk, heads = apart
    with Model(trunk, draft_model=heads, n_threads=1) as model, Model(whole, n_threads=1) as other:
        text(model)
        state = model.session.save()
        model.session.restore(state)
        with pytest.raises(StateError, match="another model"):
            other.session.restore(state)


def test_a_listed_draft_vocab_uses_the_heads_own_output_matrix(tmp_path: Path) -> None:
    whole, trunk, heads = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "heads"))
    split_heads(write_step35(whole), trunk, heads)
    vocab = [3, 100, 300, 511]
    with (
        Model(whole, draft="mtp", draft_vocab=vocab, n_threads=1) as one,
        Model(trunk, draft_model=heads, draft_vocab=vocab, n_threads=1) as two,
    ):
        np.testing.assert_array_equal(drafts(two), drafts(one))
        assert np.isfinite(drafts(two)[0]).sum() == len(vocab)


TRIMMED = [3, 100, 7, 300, 511]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("write", [write_step35, write_glm4moe, write_qwen35])  # the last one's heads share an output
def test_heads_that_are_trimmed_draft_the_tokens_that_they_list(tmp_path: Path, write: WriteGguf, kind: type) -> None:
    whole, trunk, heads, trimmed = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "heads", "trimmed"))
    split_heads(write(whole), trunk, heads)
    trim_heads(heads, trimmed, TRIMMED, kind=kind)
    with (
        Model(whole, draft="mtp", draft_vocab=TRIMMED, n_threads=1) as one,
        Model(trunk, draft_model=trimmed, n_threads=1) as two,
    ):
        assert two.info.n_draft_vocab == two.session.n_draft_vocab == len(TRIMMED)
        np.testing.assert_array_equal(drafts(two), drafts(one))
        assert np.flatnonzero(np.isfinite(drafts(two)[0])).tolist() == sorted(TRIMMED)
        assert text(two) == text(one)


def test_trimmed_heads_keep_the_type_of_their_output(tmp_path: Path) -> None:
    whole, trunk, heads, trimmed = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "heads", "trimmed"))
    split_heads(write_step35(whole), trunk, heads)
    trim_heads(heads, trimmed, TRIMMED, to=gguf.GGMLQuantizationType.Q8_0)
    with (
        Model(whole, draft="mtp", draft_vocab=TRIMMED, n_threads=1) as one,
        Model(trunk, draft_model=trimmed, n_threads=1) as two,
    ):
        exact, rounded = (drafts(model)[0, sorted(TRIMMED)] for model in (one, two))
        assert not np.array_equal(rounded, exact)
        np.testing.assert_allclose(rounded, exact, atol=0.05 * np.abs(exact).max())
        assert text(two) == text(one)


def test_trimmed_heads_are_not_limited_any_further(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart
    trimmed = heads.with_name("trimmed.gguf")
    trim_heads(heads, trimmed, TRIMMED)
    with pytest.raises(InvalidParameter, match="must be left out: the heads in .* are trimmed to 5 tokens"):
        Model(trunk, draft_model=trimmed, draft_vocab=64)


@pytest.mark.parametrize("tokens", [[3, 100, 3], [3, -1], [3, 512]])
def test_trimmed_heads_must_list_distinct_tokens(apart: tuple[Path, Path, Path], tokens: list[int]) -> None:
    _, trunk, heads = apart
    trimmed = heads.with_name("trimmed.gguf")
    trim_heads(heads, trimmed, tokens)
    with pytest.raises(ModelError, match="d2t does not list distinct tokens of a vocabulary of 512"):
        Model(trunk, draft_model=trimmed)


@pytest.mark.parametrize(("tokens", "kind"), [(TRIMMED, np.float32), ([], np.int64)])
def test_trimmed_heads_need_token_ids(apart: tuple[Path, Path, Path], tokens: list[int], kind: type) -> None:
    _, trunk, heads = apart
    trimmed = heads.with_name("trimmed.gguf")
    trim_heads(heads, trimmed, tokens, kind=kind)
    with pytest.raises(ModelError, match="d2t holds no token ids"):
        Model(trunk, draft_model=trimmed)


def test_token_ids_of_an_unknown_type_are_refused(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart
    trimmed = heads.with_name("trimmed.gguf")
    trim_heads(heads, trimmed, TRIMMED)
    data, name = bytearray(trimmed.read_bytes()), (3).to_bytes(8, "little") + b"d2t"
    type_at = data.index(name) + len(name) + 4 + 8  # after the number of dimensions, which is one, and its size
    data[type_at : type_at + 4] = (99).to_bytes(4, "little")
    trimmed.write_bytes(data)
    with pytest.raises(ModelError, match="d2t holds no token ids"):
        Model(trunk, draft_model=trimmed)


def test_trimmed_heads_need_a_row_for_each_token(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart
    trimmed = heads.with_name("trimmed.gguf")
    trim_heads(heads, trimmed, TRIMMED, n_rows=4)
    with pytest.raises(ModelError, match=r"has the shape \(128, 4\), not \(128, 5\) as d2t says"):
        Model(trunk, draft_model=trimmed)


@pytest.fixture
def n_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the header of each file is read."""
    counts, read_header = Counter[str](), shards.read_header

    def counted(path: Path) -> shards.Header:
        counts[path.name] += 1
        return read_header(path)

    monkeypatch.setattr(shards, "read_header", counted)
    return counts


@pytest.mark.parametrize("options", [{}, {"draft_vocab": 100}, {"draft_vocab": [1, 2]}], ids=str)
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_model_reads_each_header_once(
    apart: tuple[Path, Path, Path], is_beside: bool, options: dict[str, Any], n_reads: Counter[str]
) -> None:
    _, trunk, heads = apart
    if is_beside:
        shutil.move(heads, trunk.parent)
    with Model(trunk, draft_model=None if is_beside else heads, n_ctx=64, n_threads=1, **options) as model:
        assert model.info.draft_model
    assert n_reads == {"trunk.gguf": 1, "mtp-heads.gguf": 1}


def test_a_run_reads_each_header_once(embedded_model: Path, tmp_path: Path, n_reads: Counter[str]) -> None:
    trunk, heads = tmp_path / "trunk.gguf", tmp_path / "heads.gguf"
    split_heads(embedded_model, trunk, heads)
    for flags in ([], ["-m", str(trunk), "--draft-model", str(heads)]):
        assert CliRunner().invoke(app, ["run", *flags, "-q", "-n", "1", "Hello"]).exit_code == 0
    assert n_reads == {embedded_model.name: 1, "trunk.gguf": 1, "heads.gguf": 1}


def test_an_inspection_reads_each_header_once(apart: tuple[Path, Path, Path], n_reads: Counter[str]) -> None:
    assert CliRunner().invoke(app, ["inspect", str(apart[0])]).exit_code == 0
    assert n_reads == {"whole.gguf": 1}


def test_an_inspection_names_the_file_that_drafts(apart: tuple[Path, Path, Path]) -> None:
    _, trunk, heads = apart
    shown = CliRunner().invoke(app, ["inspect", str(trunk), "--draft-model", str(heads)]).stdout
    assert re.search(rf"^drafting: +by {re.escape(str(heads))}$", shown, re.MULTILINE)
