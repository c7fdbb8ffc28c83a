"""Heads compute what published code computes: the engine on a GGUF from llama.cpp's converter, against PyTorch.

A wrong hidden state never looks broken, it only costs acceptance. Here it shows: logits have a standard deviation of
about 1, agree within 1e-4 where the states are the right ones, and are off by 0.1 and more where they are not.
"""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import llama_cpp
import numpy as np
import pytest

from conftest import REPOSITORY
from families import FAMILIES, TRANSFORMERS, State
from llama_archive import PIN
from pymtp import Model, SamplingParams
from pymtp.engine.session import Chunk, Session
from random_gguf import N_VOCAB
from reference.convert import Converted, convert
from reference.recipes import RECIPES
from test_families import PARAMS, draft, load
from test_side_files import drafts

if TYPE_CHECKING:  # PyTorch is loaded when a test runs: this file is read with every run of pytest
    from reference.checkpoints import Checkpoint

pytestmark = pytest.mark.reference

K = 3
TOLERANCE = 1e-4
STATES: list[State] = ["normed", "plain"]


class Case(NamedTuple):
    name: str
    checkpoint: Checkpoint
    gguf: Converted


@pytest.fixture(scope="session", autouse=True)
def pytorch() -> None:
    """Skips where PyTorch and transformers are missing, or too old."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch 'transformers>=5.23'")
    pytest.importorskip("transformers.models.bailing_hybrid", reason="not installed: pip install 'transformers>=5.23'")


@pytest.fixture(scope="session")
def llama_cpp_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.cpp's converter and the gguf package that it goes with, from the archive that pymtp is built from."""
    source = REPOSITORY / "build" / PIN.archive
    if not source.is_file():
        pytest.skip("llama.cpp's sources are not at hand (build/ holds no archive): run make")
    folder = tmp_path_factory.mktemp("llama.cpp")
    with tarfile.open(source) as archive:
        for member in archive:
            path = member.name.removeprefix(PIN.prefix)
            if path.startswith(("conversion/", "gguf-py/")) and member.isfile():
                member.name = path
                archive.extract(member, folder, filter="data")
    return folder


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, llama_cpp_source: Path) -> Case:
    """A family, its checkpoint and the GGUFs that the converter makes of it."""
    from reference.checkpoints import write_checkpoint

    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), RECIPES[request.param])
    return Case(request.param, checkpoint, convert(llama_cpp_source, checkpoint.folder))


def test_logits_of_trunk_and_heads_equal_those_of_pytorch(
    case: Case, record_property: Callable[[str, object], None]
) -> None:
    from reference.heads import Reference

    name, checkpoint, gguf = case
    family, rng = FAMILIES[name], random.Random(3)
    tokens = [rng.randrange(N_VOCAB) for _ in range(60)]
    script = [rng.randrange(N_VOCAB) for _ in range(K)]
    model = load(gguf.whole)
    with Session(model, PARAMS, n_draft_max=K, mtp_context="chained") as session:
        assert len(checkpoint.heads) == family.n_heads
        session.decode([Chunk(tokens[:-1], 0, feed=True)])
        trunk = session.logits[0].copy()
        heads = draft(session, tokens[-1], len(tokens) - 1, script)
    llama_cpp.llama_model_free(model)

    def reference_of(fed: State, recycled: State) -> Reference:
        return Reference(checkpoint, fed, recycled, family.deviation, shares_index=family.shares_index)

    reference = reference_of(family.fed, family.recycled)
    np.testing.assert_allclose(trunk, reference.trunk(tokens[:-1])[-1], rtol=0, atol=TOLERANCE)
    expected = reference.draft(tokens, script).numpy()
    np.testing.assert_allclose(heads, expected, rtol=0, atol=TOLERANCE)
    record_property("difference", float(abs(heads - expected).max()))

    def difference(fed: State, recycled: State) -> float:
        return float(abs(heads - reference_of(fed, recycled).draft(tokens, script).numpy()).max())

    wrong = [difference(fed, family.recycled) for fed in STATES if fed != family.fed]
    wrong += [difference(family.fed, recycled) for recycled in STATES if recycled != family.recycled]
    other_state = min(wrong) / float(expected.std())
    assert other_state > 0.1
    record_property("other state", other_state)
    if family.shares_index:
        picking_each_step = Reference(checkpoint, family.fed, family.recycled).draft(tokens, script).numpy()
        np.testing.assert_allclose(heads[0], picking_each_step[0], rtol=0, atol=TOLERANCE)
        assert abs(heads[1:] - picking_each_step[1:]).max(axis=1).min() > 0.1
    if family.deviation:
        published = Reference(checkpoint, family.fed, family.recycled).draft(tokens, script).numpy()
        record_property("published", float(abs(heads - published).max()))


@pytest.mark.parametrize("case", ["glm5-next"], indirect=True)
@pytest.mark.parametrize("n_tokens", [61, 62, 63])
def test_positions_that_fill_no_pool_yet_are_seen_as_in_pytorch(case: Case, n_tokens: int) -> None:
    """The test before this one has none of these."""
    from reference.heads import Reference

    name, checkpoint, gguf = case
    rng = random.Random(4)
    tokens, script = ([rng.randrange(N_VOCAB) for _ in range(n)] for n in (n_tokens, K))
    model = load(gguf.whole)
    with Session(model, PARAMS, n_draft_max=K) as session:
        session.decode([Chunk(tokens[:-1], 0, feed=True)])
        heads = draft(session, tokens[-1], n_tokens - 1, script)
    llama_cpp.llama_model_free(model)
    reference = Reference(checkpoint, FAMILIES[name].fed, FAMILIES[name].recycled, shares_index=True)
    np.testing.assert_allclose(heads, reference.draft(tokens, script).numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["gemma4"])
def test_logits_of_trunk_and_assistant_equal_those_of_transformers(
    name: str, tmp_path: Path, llama_cpp_source: Path, record_property: Callable[[str, object], None]
) -> None:
    from reference import gemma

    pair, rng = gemma.write_pair(tmp_path), random.Random(3)
    tokens = [rng.randrange(N_VOCAB) for _ in range(60)]
    script = [rng.randrange(N_VOCAB) for _ in range(K)]
    model, assistant = (
        load(convert(llama_cpp_source, folder).whole) for folder in (pair.folder, pair.assistant_folder)
    )
    with Session(model, PARAMS, n_draft_max=K, assistant=assistant) as session:
        session.decode([Chunk(tokens[:-1], 0)])
        trunk = session.logits[0].copy()
        drafted = draft(session, tokens[-1], len(tokens) - 1, script)
    for loaded in (assistant, model):
        llama_cpp.llama_model_free(loaded)

    np.testing.assert_allclose(trunk, gemma.trunk(pair, tokens[:-1])[-1], rtol=0, atol=TOLERANCE)
    expected = gemma.draft(pair, tokens, script).numpy()
    np.testing.assert_allclose(drafted, expected, rtol=0, atol=TOLERANCE)
    record_property("difference", float(abs(drafted - expected).max()))

    def difference(**options: Any) -> float:
        return float(abs(drafted - gemma.draft(pair, tokens, script, **options).numpy()).max())

    assert difference(window=gemma.WINDOW - 1) > 0.01
    assert difference(rises=True) > 0.1
    wrong = difference(fed="plain")
    assert wrong > 0.1
    record_property("other state", wrong)


def test_an_assistant_gives_logits_to_the_tokens_that_that_of_transformers_chooses(
    tmp_path: Path, llama_cpp_source: Path
) -> None:
    from reference import gemma

    pair, rng = gemma.write_pair(tmp_path, chooses=True), random.Random(3)
    tokens = [rng.randrange(N_VOCAB) for _ in range(60)]
    script = [rng.randrange(N_VOCAB) for _ in range(K)]
    model, assistant = (
        load(convert(llama_cpp_source, folder).whole) for folder in (pair.folder, pair.assistant_folder)
    )
    with Session(model, PARAMS, n_draft_max=K, assistant=assistant) as session:
        session.decode([Chunk(tokens[:-1], 0)])
        drafted = draft(session, tokens[-1], len(tokens) - 1, script)
    for loaded in (assistant, model):
        llama_cpp.llama_model_free(loaded)

    expected = gemma.draft(pair, tokens, script).numpy()
    is_chosen = expected > expected.min(axis=1, keepdims=True)  # the others have a lower value than any of these
    assert 0 < is_chosen.mean() < 0.5
    np.testing.assert_array_equal(np.isfinite(drafted), is_chosen)
    np.testing.assert_allclose(drafted[is_chosen], expected[is_chosen], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", [name for name in RECIPES if FAMILIES[name].after == TRANSFORMERS], indirect=True)
def test_our_reference_heads_equal_those_of_transformers(case: Case) -> None:
    from reference.heads import Reference, official_draft

    name, checkpoint, _ = case
    rng = random.Random(3)
    tokens = [rng.randrange(N_VOCAB) for _ in range(60)]
    reference = Reference(checkpoint, FAMILIES[name].fed, FAMILIES[name].recycled)
    mine = next(reference.steps(tokens, reference.states(tokens[:-1]), first_row=1))
    np.testing.assert_allclose(mine, official_draft(checkpoint, tokens), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", [name for name in RECIPES if RECIPES[name].is_exported], indirect=True)
def test_heads_that_the_converter_writes_to_their_own_file_draft_the_same(case: Case) -> None:
    gguf = case.gguf
    with Model(gguf.whole, draft="mtp", n_threads=1) as one, Model(gguf.trunk, draft="mtp", n_threads=1) as two:
        assert two.info.draft_model == gguf.heads
        np.testing.assert_array_equal(drafts(two), drafts(one))


def test_the_row_at_position_0_does_not_hurt_a_trained_head(shared: Path) -> None:
    """llama.cpp gives the heads a row at position 0, without a hidden state before it; published code does not."""
    from reference.heads import Reference
    from reference.trained import read_glm4moe

    path = shared / "models" / "nano-glm-Q4_K_M.gguf"
    reference = Reference(read_glm4moe(path), "normed", "normed")
    n_drafts, n_right = 0, [0, 0]
    with Model(path, draft="none", n_threads=1) as model:
        for question in (
            "Tell me about the sea.",
            "Write a Python function that adds two numbers.",
            "What is 17 + 25?",
        ):
            prompt = model.vocabulary.tokenize(model.chat_prompt([{"role": "user", "content": question}]))
            generation = model.generate(prompt, sampling=SamplingParams(temperature=0), max_tokens=100, ignore_eos=True)
            list(generation)
            text, first = [*prompt, *generation.tokens], len(prompt)
            for row in (0, 1):
                drafts = reference.first_drafts(text, row)[first - row : -1].tolist()
                n_right[row] += sum(draft == token for draft, token in zip(drafts, text[first + 1 :], strict=True))
            n_drafts += len(text) - first - 1
    with_row, without = (n / n_drafts for n in n_right)
    assert without > 0.3
    assert with_row == pytest.approx(without, abs=0.03)
