"""A model and the assistant that drafts for it: found, checked, loaded with it, and run on its cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contexts import contexts
from log_level import logged
from pymtp import Model, SamplingParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import ModelError, PymtpError, StateError, UnsupportedModel
from pymtp.gguf.facts import find_draft_model, model_facts
from pymtp.inspection import Inspection
from random_gguf import write_gemma4, write_gemma4_assistant, write_glm4moe
from test_families import PARAMS, draft, load
from test_side_files import drafts, text
from two_contexts import TwoContexts

WriteGguf = Callable[..., Path]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and its assistant, which is not where it would be found."""
    (tmp_path / "assistant").mkdir()
    return write_gemma4(tmp_path / "gemma.gguf"), write_gemma4_assistant(tmp_path / "assistant" / "tiny.gguf")


def test_an_assistant_drafts_in_the_models_context(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    path, assistant = pair
    with (
        logged("debug"),
        Model(path, draft_model=assistant, draft="mtp", draft_max=3, n_threads=1) as model,
        Model(path, draft="none", n_threads=1) as plain,
    ):
        assert contexts(capfd).n_made == 2
        assert (model.session.n_heads, model.session.mtp_memory, model.draft_note) == (1, "shared", None)
        assert text(model) == text(plain)
        assert model.stats.drafted > 0
        assert model.info.n_parameters == plain.info.n_parameters + Inspection(assistant).info.n_parameters


def test_an_assistant_next_to_the_model_is_found_and_reported(pair: tuple[Path, Path]) -> None:
    path, assistant = pair
    beside = path.with_name("mtp-gemma.gguf")
    shutil.copy(assistant, beside)
    found, problem = find_draft_model(path)
    assert found and (found.path, problem) == (beside, None)
    command = [sys.executable, "-m", "pymtp_cli", "run", path, "--raw", "-n", 3, "-t", 1, "\t \t"]
    done = subprocess.run([*map(str, command)], capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"pymtp: drafting with the assistant in {beside}\n")


def test_an_assistant_never_has_to_catch_up(pair: tuple[Path, Path]) -> None:
    model, assistant = map(load, pair)
    tokens = list(range(100, 140))
    with (
        Session(model, PARAMS, n_draft_max=3, assistant=assistant) as fed,
        Session(model, PARAMS, n_draft_max=3, assistant=assistant) as unfed,
    ):
        fed.decode([Chunk(tokens, 0, feed=True)])
        unfed.decode([Chunk(tokens, 0)])
        assert fed.seen_end(0, 3) == unfed.seen_end(0, 3) == len(tokens)
        np.testing.assert_array_equal(*(draft(session, 5, len(tokens), [6, 7, 8]) for session in (fed, unfed)))
        for session in (fed, unfed):  # nor does it fall behind
            session.decode([Chunk([5], len(tokens))])
            assert session.seen_end(0, 3) == len(tokens) + 1


def test_a_sequence_that_waited_has_all_positions_that_the_assistant_sees(pair: tuple[Path, Path]) -> None:
    """Others take the cells that a cache with windows has no use for: the assistant sees more than the trunk."""
    model, assistant = map(load, pair)
    tokens, other, script = list(range(100, 140)), [i % 300 for i in range(360)], [6, 7, 8]
    with (
        Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=3, assistant=assistant) as session,
        Session(model, PARAMS, n_draft_max=3, assistant=assistant) as alone,
    ):
        for each in (session, alone):
            each.decode([Chunk(tokens, 0)])
        for begin in range(0, len(other), PARAMS.n_ubatch):
            session.decode([Chunk(other[begin : begin + PARAMS.n_ubatch], begin, 1)])
        found, expected = (draft(each, 5, len(tokens), script) for each in (session, alone))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rounds_of_several_sequences_rebuild_almost_no_graph(pair: tuple[Path, Path]) -> None:
    model, assistant = map(load, pair)
    with Session(model, replace(PARAMS, n_seq_max=2), n_draft_max=3, assistant=assistant) as session:
        positions = [40, 50]
        session.decode([Chunk([7] * n, 0, slot) for slot, n in enumerate(positions)])
        for i in range(40):
            newest = [Chunk([5], n, slot) for slot, n in enumerate(positions)]
            drafts, _ = session.draft_tokens(newest, 3)
            session.decode([Chunk([5, *drafts[slot]], n, slot) for slot, n in enumerate(positions)])
            positions = [n + 1 + (i + slot) % 4 for slot, n in enumerate(positions)]
            for slot, n in enumerate(positions):
                session.truncate(n, sequence=slot)
        assert session.counters.n_head_passes == 40
        assert session.counters.n_head_builds <= 3


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_an_assistant_reads_a_cache_of_any_type(pair: tuple[Path, Path], kind: str) -> None:
    model, assistant = map(load, pair)
    params = replace(PARAMS, flash_attn="on", type_k=kind, type_v=kind, n_ubatch=128)
    reference = TwoContexts(model, params, 1, assistant=assistant)
    tokens, script = list(range(100, 177)), [1, 2, 3]
    with Session(model, params, n_draft_max=3, assistant=assistant) as session:
        session.decode([Chunk(tokens, 0)])
        reference.decode(tokens, 0)
        reference.draft(5, len(tokens), script)
        # F16 and Q8_0 round; read in another way than it was written, such a cache gives logits that are off by 1
        np.testing.assert_allclose(draft(session, 5, len(tokens), script), reference.draft_logits, atol=0.05)
    reference.close()


def test_an_assistant_drafts_until_the_context_is_full(pair: tuple[Path, Path]) -> None:
    path, assistant = pair
    said = []
    for options in ({"draft_model": assistant, "draft_max": 3}, {"draft": "none"}):
        with Model(path, n_ctx=256, n_threads=1, **options) as model:  # type: ignore[arg-type]
            generation = model.generate([7] * 40, sampling=SamplingParams(temperature=0), ignore_eos=True)
            list(generation)
            said.append((generation.tokens, generation.finish_reason))
    assert said[0] == said[1]
    assert said[0][1] == "context"


def test_a_listed_draft_vocab_uses_the_assistants_output_matrix(pair: tuple[Path, Path]) -> None:
    path, assistant = pair
    vocab = [3, 100, 300, 511]
    with (
        Model(path, draft_model=assistant, draft_max=3, n_threads=1) as whole,
        Model(path, draft_model=assistant, draft_max=3, draft_vocab=vocab, n_threads=1) as limited,
    ):
        everything, chosen = drafts(whole), drafts(limited)
    assert np.isfinite(chosen).sum(axis=1).tolist() == [len(vocab)] * 3
    np.testing.assert_allclose(chosen[:, vocab], everything[:, vocab], atol=1e-4)


def test_a_saved_state_needs_the_same_model_and_assistant(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path, assistant = pair
    changed = write_gemma4_assistant(tmp_path / "changed.gguf", seed=2)
    with (
        Model(path, draft_model=assistant, n_threads=1) as model,
        Model(path, draft_model=changed, n_threads=1) as other,
    ):
        text(model)
        state = model.session.save()
        model.session.restore(state)
        with pytest.raises(StateError, match="another model"):
            other.session.restore(state)


def test_an_assistant_cannot_be_loaded_as_a_model(pair: tuple[Path, Path]) -> None:
    _, assistant = pair
    with pytest.raises(
        ModelError, match="is an assistant, which drafts for another model; name that model, and this file"
    ):
        Model(assistant)
    assert Inspection(assistant).obstacle.startswith("an assistant: it drafts for another model")


def test_an_assistant_of_another_model_is_refused(
    pair: tuple[Path, Path], tmp_path: Path, write_gguf: WriteGguf
) -> None:
    path, assistant = pair
    other = tmp_path / "other.gguf"

    def refusal(model: Path, draft_model: Path) -> str:
        with pytest.raises(ModelError) as caught:
            model_facts(model, draft_model)
        message = str(caught.value)
        assert message.endswith("; name the draft file that belongs to the model, or none")
        return message

    assert "its architecture is gemma4-assistant, the model's glm4moe" in refusal(
        write_gguf("glm.gguf", n_layer=2), assistant
    )
    assert "has its own MTP heads" in refusal(write_glm4moe(other), assistant)
    assert "it is of a model with 5 tokens, not 512" in refusal(
        path, write_gguf("few.gguf", architecture="gemma4-assistant", n_layer=0, declared=4)
    )
    write_gemma4_assistant(other, n_embd_trunk=256)
    assert "it is of a model with hidden states of 256 numbers, not 128" in refusal(path, other)
    write_gemma4_assistant(other, more={"attention.sliding_window": 32})
    assert "attention.sliding_window is 32, not 16" in refusal(path, other)


def test_an_assistant_that_llama_cpp_would_misread_is_refused_and_the_model_decodes_plainly(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    _, assistant = pair
    path = write_gemma4(tmp_path / "five.gguf", n_layer=5)  # the last has a window
    reason = "it needs a trunk whose last layers are one with a sliding window and one without"
    with Model(path, draft_model=assistant, n_threads=1) as model:
        assert model.draft_note is not None
        assert f"cannot run the assistant of this gemma4 model ({reason}): drafts by lookup only" in model.draft_note
        assert len(text(model)) == 20
    with pytest.raises(UnsupportedModel, match=reason):
        Model(path, draft_model=assistant, draft="mtp")
    five, loaded = load(path), load(assistant)
    with pytest.raises(PymtpError, match=f"cannot run the assistant of gemma4 .{reason}"):
        Session(five, PARAMS, n_draft_max=3, assistant=loaded)
